"""The segment files: the existing ones, the one being written, and those kept ready.

The first segments are small, and each that was filled doubles the size of the next, so that a broker with little to
store takes little of the disk. Segments are filled with zeros ahead of time. So a lack of space shows here, before an
offset is assigned, and ends when space is free again. One ready segment is the reserve: publishes may not begin it, so
that audit records, cursors and trims can still be written when the disk is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from pydanube_core.errors import DiskFull, Overloaded, Unavailable

from pydanube_broker.journal.checkpoint import HEAD_SUFFIX
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.file_worker import FileWorker
from pydanube_broker.journal.helper import Preparer
from pydanube_broker.journal.index import sidecar_path
from pydanube_broker.journal.records import FILE_HEADER_BYTES, SECTOR
from pydanube_broker.journal.recovery import Recovered, SegmentFile
from pydanube_broker.settings.sizes import FIRST_SEGMENT_BYTES

log = logging.getLogger("pydanube.journal")

CHAIN_FILE: Final = "chain.json"  # in the folder of a journal that has a chain in the object store
READY_TARGET: Final = 3  # the reserve, and two because a fast load fills one while another is prepared
RETRY_S: Final = 0.5
OPEN_FILES: Final = 128
STALLED_S: Final = 5.0


class SegmentFiles:
    """Owns the folder. Single user: the journal."""

    def __init__(
        self, folder: Path, disk: Disk, preparer: Preparer, worker: FileWorker, segment_bytes: int
    ) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.live: dict[int, SegmentFile] = {}  # base → file, ascending. The last is being written
        self.ready: list[SegmentFile] = []
        self.last_error: OSError | None = None
        self._disk = disk
        self._preparer = preparer
        self._worker = worker
        self._to_delete: deque[Path] = deque()
        preparer.done = self._prepared
        self._making: SegmentFile | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._closed = False
        self.floor = 0  # no new segment begins below this address
        self._first_bytes = min(FIRST_SEGMENT_BYTES, segment_bytes)
        # Bytes per new segment. Smaller while a start has no room for more
        self.size = self._first_bytes
        # Bytes that segments for publishes leave free on the disk
        self.keep_free: Callable[[], int] = lambda: 0
        self._made_since = 0.0

    def path(self, base: int) -> Path:
        return self.folder / f"{base:020d}.journal"

    def sort_out(self, found: Recovered) -> list[Path]:
        """Reuse the empty segments at the end, and remove files that are no longer needed.

        Returns:
            Files that recovery still needs until a new head is proven.
        """
        heads = {f"{base:020d}" for base in (*self.live, found.head_lsn - FILE_HEADER_BYTES) if base >= 0}
        for path in self.folder.iterdir():
            orphan = (path.suffix == ".index" and not path.with_suffix(".journal").exists()) or (
                path.suffix == HEAD_SUFFIX and path.stem not in heads
            )
            if orphan or path.suffix == ".new":
                with contextlib.suppress(OSError):
                    self._disk.unlink(path)
        self.floor = max((segment.end for segment in found.segments), default=0)
        dropped = [segment for segment in found.segments if segment.base not in self.live]
        # After a power cut, the chain may have records for a segment that is empty here
        reuse = not (self.folder / CHAIN_FILE).exists()
        ready: list[SegmentFile] = []
        while (
            reuse
            and dropped
            and (not ready or dropped[-1].end == ready[0].base)
            and self.size <= dropped[-1].size <= self.segment_bytes
            and self._reusable(dropped[-1])
        ):
            if dropped[-1].base == found.announced:
                break  # a second recovery would follow the mark into the new head and read the tail twice
            ready.insert(0, dropped.pop())
        self.ready.extend(ready)
        kept: list[Path] = []
        for segment in dropped:
            walked = found.head_lsn - FILE_HEADER_BYTES <= segment.base < found.end
            if walked or segment.base == found.announced:
                kept.append(segment.path)
            else:
                with contextlib.suppress(OSError):  # no head lists it, so the next start tries again
                    self._disk.unlink(segment.path)
                    segment.path.with_suffix(".index").unlink(missing_ok=True)
        return kept

    def _reusable(self, segment: SegmentFile) -> bool:
        """Return whether a segment contains only zeros."""
        try:
            fd = self._disk.open_ro(segment.path)
            try:
                at = FILE_HEADER_BYTES
                while at < segment.size:
                    piece = self._disk.pread(fd, min(8 << 20, segment.size - at), at)
                    if not piece or piece.count(0) != len(piece):
                        return False
                    at += len(piece)
            finally:
                self._disk.close(fd)
        except OSError:
            return False
        return True

    @property
    def next_base(self) -> int:
        """Return the address at which the next new segment would begin."""
        if self._making is not None:
            return self._making.end
        if self.ready:
            return self.ready[-1].end
        return max(self.floor, next(reversed(self.live.values())).end if self.live else 0)

    def started(self) -> None:
        """Make no more segments that are smaller than those of a start with room."""
        self.size = max(self.size, self._first_bytes)

    def grow(self) -> None:
        """Double the size of new segments, because one was filled."""
        self.size = min(2 * self.size, self.segment_bytes)

    def fill(self) -> None:
        """Keep enough segments ready. Called again after each answer of the helper."""
        if self._closed or self._making is not None or len(self.ready) >= READY_TARGET:
            return
        if self.ready and self._guarded():
            self._retry_later()  # the ready one is the reserve, and the remaining room must stay free
            return
        base = self.next_base
        self._making = SegmentFile(self.path(base), base, self.size)
        self._made_since = asyncio.get_running_loop().time()
        self._preparer.prepare(self._making.path, base, self.size)

    def _guarded(self) -> bool:
        """Return whether another segment would leave too little space. If so, store that as the reason of refusals."""
        keep = self.keep_free()
        if not keep:
            return False
        try:
            free = self._disk.free_bytes(self.folder)
        except OSError:
            return False  # the error shows when the segment is created
        if free - self.size >= keep:
            return False
        self.last_error = OSError(errno.ENOSPC, f"{keep} bytes are to stay free (data.min_free_bytes)")
        return True

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._again)

    @property
    def making_s(self) -> float:
        """Return how many seconds a segment has been in preparation. 0 if none is."""
        return 0.0 if self._making is None else asyncio.get_running_loop().time() - self._made_since

    async def wait_any_ready(self, least_bytes: int, make_room: Callable[[], bool]) -> None:
        """As `wait_ready`, but with less room on the disk create smaller segments, down to `least_bytes`.

        A start must not fail because there is no room for a segment that will stay mostly empty. `make_room` frees a
        piece of the reserve for this case, and returns whether there was any.

        Raises `DiskFull`, `Unavailable`: not even the smallest segment could be created.
        """
        while True:
            try:
                await self.wait_ready()
                return
            except DiskFull:
                if self.size <= least_bytes:
                    if not make_room():
                        raise
                    continue
                self.size = max(least_bytes, self.size // 4 & ~(SECTOR - 1))

    def _prepared(self, base: int, error: OSError | None) -> None:
        made, self._making = self._making, None
        if error is not None and error.errno == errno.EEXIST and made is not None and not self._closed:
            # The helper of a killed broker has finished its file, which is empty, after the folder was listed.
            try:
                self._disk.unlink(made.path)
            except OSError as problem:
                error = problem
            else:
                self.fill()
                return
        self.last_error = error
        if error is None and made is not None:
            self.ready.append(made)
            self.fill()
        elif not self._closed:
            self._retry_later()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []

    def _again(self) -> None:
        self._retry = None
        self.fill()

    async def wait_ready(self) -> None:
        """Wait until a segment is ready.

        Raises `DiskFull`, `Unavailable`: none could be created. The next attempt is automatic.
        """
        while not self.ready:
            self.fill()
            if self._making is None and self.last_error is not None:
                raise self.refusal()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
            if not self.ready and self.last_error is not None:
                raise self.refusal()

    def when_prepared(self, done: Callable[[], None]) -> None:
        """Call `done` once, when the segment in preparation is ready or has failed. Without one, call it soon."""
        if self._making is None:
            asyncio.get_running_loop().call_soon(done)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda _: done())
        self._waiters.append(waiter)

    def check_room(self, *, next_segment: bool) -> None:
        """Check that a publish may be accepted.

        Args:
            next_segment: whether it no longer fits the active segment.

        Raises:
            DiskFull, Unavailable: no new segment can be created and only the reserve is left.
            Overloaded: the next segment is still in preparation.
        """
        if len(self.ready) < 2 if next_segment else not self.ready and self.last_error is not None:
            raise self.refusal()

    def refusal(self, error: OSError | None = None) -> DiskFull | Overloaded | Unavailable:
        """Return the error for publishes for which there is no room."""
        error = error or self.last_error
        if error is None:
            return Overloaded("the next journal segment is being made", retry_after_ms=50)
        free: int | None = None
        with contextlib.suppress(OSError):
            free = self._disk.free_bytes(self.folder)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            # Not a lack of space: the folder may be missing, or the file system read-only.
            return Unavailable(
                f"the journal in {self.folder} cannot grow: {error}. No message is stored until it can. The broker tries again without help. "
                "See that the folder is there and can be written",
                field="data.dir",
                value=str(self.folder),
                reason=str(error),
                free_bytes=free,
                retry_after_ms=int(RETRY_S * 1000),
            )
        return DiskFull(
            f"the journal in {self.folder} cannot grow (no space left): a segment takes {self.size} bytes, "
            f"{'an unknown number' if free is None else free} are free. No message is stored until then. Free space and it "
            "goes on without help",
            field="data.dir",
            value=str(self.folder),
            free_bytes=free,
            needed_bytes=self.size,
            retry_after_ms=int(RETRY_S * 1000),
        )

    def take_next(self) -> tuple[SegmentFile, int]:
        """Return the next ready segment, and a descriptor to write to it.

        Raises `DiskFull`, `Unavailable`, `Overloaded`: none is ready or it cannot be opened. Nothing has changed.
        """
        if not self.ready:
            raise self.refusal()
        try:
            fd = self._disk.open_rw(self.ready[0].path)
        except OSError as error:
            raise self.refusal(error) from error
        segment = self.ready.pop(0)
        self.live[segment.base] = segment
        self.fill()
        return segment, fd

    def read_fd(self, base: int) -> int:
        """Return a descriptor to read a live segment. The least recently used ones are closed."""
        fd = self._fds.get(base)
        if fd is None:
            fd = self._fds[base] = self._disk.open_ro(self.live[base].path)
            if len(self._fds) > OPEN_FILES:
                _, old = self._fds.popitem(last=False)
                self._disk.close(old)
        else:
            self._fds.move_to_end(base)
        return fd

    def forget(self, base: int) -> Path:
        """Forget a live segment, whose file the caller removes."""
        segment = self.live.pop(base)
        fd = self._fds.pop(base, None)
        if fd is not None:
            self._disk.close(fd)
        return segment.path

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove files in a thread, in order, with a sync after each, so that a crash leaves no gap."""
        self._to_delete.extend(paths)
        if self._to_delete:
            self._worker.run(self._delete, self._deleted)

    def _delete(self) -> None:
        while self._to_delete:
            path = self._to_delete[0]
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
            sidecar_path(path).unlink(missing_ok=True)
            self._disk.sync_dir(self.folder)
            self._to_delete.popleft()

    @staticmethod
    def _deleted(job: Future[None]) -> None:
        if not job.cancelled() and (error := job.exception()):
            # the next call of `remove` tries again
            log.warning("journal_segment_not_removed", extra={"error": str(error)})

    def trouble(self) -> tuple[str, str] | None:
        """Return (code, text) of the problem that delays the next segment. None if there is none."""
        if self.last_error is not None:
            refusal = self.refusal()
            return "DISK_GUARD" if isinstance(refusal, DiskFull) else "JOURNAL_STALLED", refusal.message
        if self.making_s > STALLED_S:
            return (
                "JOURNAL_STALLED",
                f"the next journal segment in {self.folder} has been in the making for {self.making_s:.0f} s: "
                "publishes wait for it. Look at the disk, and whether the broker's segment helper is stopped",
            )
        return None

    def close(self) -> None:
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._preparer.close()
        for fd in self._fds.values():
            self._disk.close(fd)
        self._fds.clear()
