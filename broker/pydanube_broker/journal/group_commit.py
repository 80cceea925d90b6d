"""The journal's single writer: group commit without a timer.

Pending records are written together at the end of the loop's turn, in the loop (15 µs for 128 KiB), and one sync in
the helper process makes them durable. While a sync is in flight, the next group gathers and is written. When the sync
completes, the next one starts immediately. A lone record therefore waits only for the disk, and groups grow with load.

Failure is terminal: after a failed write or sync the content of the disk is unknown, and a repeated sync may succeed
although the kernel has discarded the pages. The journal is then read-only until a restart reads the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.helper import Syncer

Buffer = bytes | memoryview

IOV_MAX: Final = 1000  # Linux takes 1024
GROUP_BYTES: Final = 8 << 20  # a group is closed at this size, so that its sync stays short
SLICE_BYTES: Final = 1 << 20  # maximum per callback, so that other callbacks of the loop get a turn
_PAD: Final = tuple(bytes(n) for n in range(8))


@dataclass(slots=True)
class _Target:
    """A segment being written: its descriptor and its slot at the syncer."""

    fd: int
    base: int
    slot: int


@dataclass(slots=True)
class WriterStatistics:
    syncs: int = 0
    #: durations of the last syncs in seconds, newest last
    sync_s: deque[float] = field(default_factory=lambda: deque(maxlen=512))


class GroupCommit:
    """Writes the records passed to `put`, in order.

    Args:
        on_durable: called from the loop with an LSN whenever everything below it is on stable storage.
        on_failed: called once. The outcome of everything not durable by then is unknown.
    """

    def __init__(
        self,
        disk: Disk,
        syncer: Syncer,
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._disk = disk
        self._syncer = syncer
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[_Target, int, list[Buffer], int]] = deque()
        self._target: _Target | None = None
        self._scheduled = False
        self._syncing = False
        self._requested_at = 0.0  # loop time at which the sync in flight was requested
        self._group = 0
        self._unsynced: list[_Target] = []
        self._in_flight: list[_Target] = []
        self._retired: list[_Target] = []
        self._slots = 0
        self.failed: OSError | None = None
        self.written = 0
        self.durable = 0
        self.statistics = WriterStatistics()
        # Called after each sync with the seconds that it took, and those until the helper began with it
        self.on_sync: Callable[[float, float], None] = lambda seconds, waited_s: None
        # Called after each slice with the LSN up to which the files are written
        self.on_written: Callable[[int], None] | None = None
        syncer.done = self._synced

    @property
    def waiting_s(self) -> float:
        """Return how many seconds the sync in flight has taken so far. 0 if none is in flight."""
        return self._loop.time() - self._requested_at if self._syncing and self.failed is None else 0.0

    def start(self, lsn: int) -> None:
        """Begin at `lsn`. Everything below it is durable already."""
        self.written = self.durable = lsn

    def switch(self, fd: int, base: int) -> None:
        """Write to another segment from now on. The old descriptor is closed once it is synced."""
        self._slots += 1
        if self._target is not None:
            self._retired.append(self._target)
        self._target = _Target(fd, base, self._slots)
        self._syncer.open(self._slots, fd)

    def put(self, lsn: int, buffers: list[Buffer], length: int) -> None:
        """Queue a record of `length` bytes, before padding, for address `lsn`."""
        assert self._target is not None
        if pad := -length & 7:
            buffers.append(_PAD[pad])
            length += pad
        self._pending.append((self._target, lsn, buffers, length))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def write_now(self) -> None:
        """Write now, without waiting for further records in this turn of the loop."""
        if self._pending:
            self._write()

    def _write(self) -> None:
        """Write a slice of the pending records, and start a sync when the group is complete."""
        self._scheduled = False
        if self.failed is not None:
            return
        pending, budget = self._pending, SLICE_BYTES
        try:
            while pending and budget > 0:
                target, start, _, _ = pending[0]
                run: list[Buffer] = []
                size = 0
                while pending and pending[0][0] is target and size < SLICE_BYTES:
                    _, _, buffers, length = pending[0]
                    if run and len(run) + len(buffers) > IOV_MAX:
                        break
                    pending.popleft()
                    run += buffers
                    size += length
                self._disk.pwritev(target.fd, run, start - target.base)
                self.written = start + size
                budget -= size
                self._group += size
                if not self._unsynced or self._unsynced[-1] is not target:
                    self._unsynced.append(target)
        except OSError as error:
            self._fail(error)
            return
        if pending:
            self._scheduled = True
            self._loop.call_soon(self._write)
        if not self._syncing and (not pending or self._group >= GROUP_BYTES):
            self._sync()
        if self.on_written is not None:
            self.on_written(self.written)

    def _sync(self) -> None:
        if self.written <= self.durable or self.failed is not None:
            return
        self._syncing = True
        self._requested_at = self._loop.time()
        self._group = 0
        self._in_flight, self._unsynced = self._unsynced, []
        self._syncer.sync(tuple(target.slot for target in self._in_flight), self.written)

    def _synced(self, lsn: int, error: OSError | None, seconds: float, waited_s: float) -> None:
        self._syncing = False
        self._in_flight = []
        if error is not None:
            self._fail(error)
            return
        if self.failed is not None:
            return
        self.statistics.syncs += 1
        self.statistics.sync_s.append(seconds)
        self.on_sync(seconds, waited_s)
        self.durable = lsn
        if self.written > lsn and (not self._pending or self._group >= GROUP_BYTES):
            self._sync()  # before the acknowledgements, so that disk and loop work in parallel
        if self._retired:
            self._retire()
        self._on_durable(lsn)
        self.write_now()  # records that waited for this sync

    def _retire(self) -> None:
        """Close segments whose last byte is durable."""
        busy = {target.slot for target in (*self._unsynced, *self._in_flight)}
        busy.update(item[0].slot for item in self._pending)
        for target in self._retired:
            if target.slot not in busy:
                self._syncer.forget(target.slot)
                self._disk.close(target.fd)
        self._retired = [target for target in self._retired if target.slot in busy]

    def _fail(self, error: OSError) -> None:
        if self.failed is None:
            self.failed = error
            self._pending.clear()
            self._on_failed(error)

    def close(self) -> None:
        """Release the descriptors and discard pending records. Stop appending and wait for `durable` first."""
        self.failed = self.failed or OSError("the journal is closed")
        self._pending.clear()
        self._syncer.close()
        for target in self._retired:
            self._disk.close(target.fd)
        self._retired = []
        if self._target is not None:
            self._disk.close(self._target.fd)
            self._target = None
