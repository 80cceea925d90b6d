"""The broker's one write-ahead log: append, become durable, read back, recover, forget.

Life of a record: `append` assigns its address and returns. `GroupCommit` writes it with its neighbours and syncs.
`on_durable(lsn)` reports that everything below `lsn` is on stable storage. The journal sees a topic as an id, a batch as
an offset range, and a head as bytes of its owner.

Start: `recover` reads the whole journal and changes nothing. Then `begin` opens a new segment, writes a head of the
proven state (a large one to its own file), copies the unproven tail after it, syncs, and proves that with a mark. Only
then may anything be acknowledged, delivered or answered, because before that the page cache may differ from the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from zlib import crc32

from pydanube_core.batch import BROKER_PART_BYTES
from pydanube_core.errors import ClusterError, Draining, JournalReadOnly, LimitReached

from pydanube_broker.journal.checkpoint import (
    CHECKPOINT_BODY,
    INLINE_BYTES,
    Checkpoints,
    checkpoint_path,
    new_number,
    read_checkpoint,
)
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.file_worker import FileWorker
from pydanube_broker.journal.group_commit import GroupCommit
from pydanube_broker.journal.helper import Preparer, Syncer
from pydanube_broker.journal.index import Run
from pydanube_broker.journal.owner import JournalOwner
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    FLAG_SEGMENT_END,
    HEADER_BYTES,
    SECTOR,
    RecordKind,
    blank_sectors,
    encode_header,
    record_bytes,
)
from pydanube_broker.journal.recovery import SegmentFile
from pydanube_broker.journal.segments import STALLED_S, SegmentFiles
from pydanube_broker.journal.stored import JournalOptions, StoredBatches, encode_segments
from pydanube_broker.journal.tail_cache import CachedBatch

log = logging.getLogger("pydanube.journal")

Buffer = bytes | memoryview
END_MARK_BYTES: Final = HEADER_BYTES
MARK_AFTER_S: Final = 1.0
LEAST_ROOM_BYTES: Final = 1 << 20  # in the active segment: with less, a batch may be refused
LEAST_SEGMENT_BYTES: Final = 256 << 10  # minimum for a start on a nearly full disk
JOINED_BYTES: Final = 4096  # for a smaller batch, a copy costs less than the two objects that it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    bytes: int
    segments: int
    ready_segments: int
    next_lsn: int
    durable_lsn: int
    waiting_bytes: int
    tail_cache_bytes: int
    read_only: bool
    syncs: int
    fsync_s: tuple[float, ...]


class Journal(StoredBatches):
    """See the module. Writes the batches that `StoredBatches` reads. All methods are called from the loop."""

    def __init__(
        self,
        folder: Path,
        options: JournalOptions,
        owner: JournalOwner,
        *,
        disk: Disk,
        syncer: Syncer,
        preparer: Preparer,
        worker: Executor | None = None,
    ) -> None:
        self._worker = FileWorker(worker)
        files = SegmentFiles(folder, disk, preparer, self._worker, options.segment_bytes)
        super().__init__(files, disk, options, owner, self._worker)
        self.folder = folder
        self.read_only: ClusterError | None = None  # the error of everything that would be written
        self._writer = GroupCommit(disk, syncer, on_durable=self._durable, on_failed=self._failed)
        self.write_now = self._writer.write_now  # writes appended records before the loop's turn ends
        self._active: SegmentFile | None = None
        self._room_end = 0  # maximum end of a record in the active segment, without the end mark
        self._next = 0
        self._serving = False
        self._last_kind: RecordKind | None = None
        self._mark_timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._claim: int | None = None  # overrides `synced_lsn` of new records
        self._heads = Checkpoints(folder, disk, self._worker)
        #: returns the address up to which a copy of the journal is complete: segments that end after it stay
        self.copied_lsn: Callable[[], int] | None = None

    # -- start and stop --------------------------------------------------------------------------------------

    async def begin(self, make_room: Callable[[], bool] = lambda: False) -> None:
        """Open a new segment with a durable head and the unproven tail, and start serving.

        Files that recovery used are removed only after the new state is proven on disk. If no segment can be created,
        `make_room` frees a piece of the disk's reserve, and returns whether there was any.

        Raises:
            DiskFull, Unavailable: no segment could be created.
            JournalReadOnly: the first write or sync failed.
        """
        found = self.recovered
        assert found is not None, "recover first"
        largest = max((record_bytes(len(body)) for _, body in found.tail), default=0)
        roomy = min(self.options.segment_bytes, (2 * largest + SECTOR) & ~(SECTOR - 1))
        least = max(min(self.options.segment_bytes, LEAST_SEGMENT_BYTES), roomy)
        self._files.size = max(self._files.size, roomy)
        kept = self._files.sort_out(found)
        await self._files.wait_any_ready(least, make_room)
        self._writer.start(found.proven)
        # Until the whole tail is durable, recovery after a second crash must find the old end, not a part of the copy.
        self._claim = found.proven
        self._roll(0)
        for header, body in found.tail:
            await self._begin_room(len(body), least, make_room)
            at = self._next
            self._put(header.kind, header.topic_id, [body], header.body_crc, header.flags)
            if header.kind is RecordKind.BATCH:
                assert self._active is not None
                self._index_copied(self._active.base, header.topic_id, at, memoryview(body))
            if header.kind is RecordKind.RELEASE:
                self.drop_topic(header.topic_id)
            self._owner.replay(replace(header, lsn=at), memoryview(body))
        await self.until_durable()
        error = await self._heads.until_written()  # from here on recovery needs this head
        if isinstance(error, OSError):
            raise self._files.refusal(error) from error
        if error is not None:
            raise error
        self._claim = None
        await self._begin_room(0, least, make_room)
        self._put(RecordKind.MARK, 0, [], 0, 0)
        await self.until_durable()
        self._serving = True
        self._files.started()
        found.tail = []
        self._write_missing_sidecars()
        self._files.remove(kept)
        self._heads.advance(self._writer.durable)

    async def _begin_room(self, body_bytes: int, least: int, make_room: Callable[[], bool]) -> None:
        if not self._fits(body_bytes):
            await self._files.wait_any_ready(least, make_room)
            self._roll(body_bytes)

    async def close(self) -> None:
        """Make all appended records durable, prove that with a mark, and release everything."""
        try:
            if self._serving and self.read_only is None:
                await self.until_durable()
                if self._last_kind is not RecordKind.MARK:
                    self._put(RecordKind.MARK, 0, [], 0, 0)
                    await self.until_durable()
        except ClusterError:
            if self.read_only is None:
                raise
            # Every waiter has received it already.
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release descriptors and helpers without writing anything, as in a crash."""
        self._serving = False
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        self._writer.close()
        self._files.close()
        self._worker.close()
        self._close_indexes()

    async def until_durable(self, lsn: int | None = None) -> None:
        """Wait until all appended records, or all below an LSN, are on stable storage. Raises `read_only`."""
        target = self._next if lsn is None else lsn
        while self._writer.durable < target and self.read_only is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.read_only is not None:
            raise self.read_only

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, error: ClusterError) -> None:
        """Accept and acknowledge nothing more, because the disk failed or another broker has replaced this one.

        Args:
            error: the error of records under way, and of everything that would be written.
        """
        if self.read_only is not None:
            return
        self.read_only = error
        log.critical("journal_read_only", extra={"error": str(error)})
        self._wake()
        if self._serving:
            self._owner.failed(error)

    # -- a copy of the journal ------------------------------------------------------------------------------------

    def copy_to(
        self,
        written: Callable[[int], None],
        head: Callable[[int, int, Sequence[bytes]], None],
        copied_lsn: Callable[[], int],
    ) -> None:
        """Report progress to a copier: the LSN up to which files are written, and each head with a file of its own.

        Segments stay until `copied_lsn` is past their end.
        """
        self._writer.on_written, self._heads.on_written, self.copied_lsn = written, head, copied_lsn

    def head_in_file(self) -> Callable[[], tuple[int, int, bytes] | None] | None:
        """Return the work that reads the newest head with a file of its own: its base, number and content.

        None if a record has a newer head, or `copy_to` will report it. The work is for a worker thread. It returns None
        if the file has been replaced since. Raises `OSError`.
        """
        known = self._heads.in_file
        if known is None:
            return None
        base, number = known

        def read() -> tuple[int, int, bytes] | None:
            body = read_checkpoint(checkpoint_path(self.folder, base), base, number, self._disk)
            return None if body is None else (base, number, body)

        return read

    @property
    def written_lsn(self) -> int:
        """Return the address below which everything is written to the files, synced or not."""
        return self._writer.written

    @property
    def oldest_base(self) -> int:
        """Return the base of the oldest segment."""
        return next(iter(self._files.live), 0)

    def written_from(self, lsn: int) -> tuple[int, int, int, int] | None:
        """Return (base, segment bytes, start, end) of the written records at or above an address, in one segment."""
        for base, segment in self._files.live.items():
            is_active = self._active is not None and base == self._active.base
            end = self._writer.written if is_active else min(self._ends.get(base, base), self._writer.written)
            start = max(lsn, base + FILE_HEADER_BYTES)
            if start < end:
                return base, segment.size, start, end
        return None

    def read_written(self, base: int, start: int, count: int) -> bytes:
        """Read a range from `written_from`, as it is in the file. For a worker thread. Raises `OSError`."""
        fd = self._disk.open_ro(self._files.path(base))
        try:
            return self._disk.pread(fd, count, start - base)
        finally:
            self._disk.close(fd)

    # -- append ----------------------------------------------------------------------------------------------

    @property
    def next_lsn(self) -> int:
        return self._next

    @property
    def durable_lsn(self) -> int:
        return self._writer.durable

    @property
    def waiting_bytes(self) -> int:
        """Return the appended bytes that are not durable yet."""
        return self._next - self._writer.durable

    def when_room(self, done: Callable[[], None]) -> None:
        """Call `done` once, when `check_room` may succeed again."""
        self._files.when_prepared(done)

    def keep_free(self, guard_bytes: Callable[[], int]) -> None:
        """Create no segment for publishes that would leave less than `guard_bytes` free on the disk."""
        self._files.keep_free = guard_bytes

    def trouble(self) -> tuple[str, str] | None:
        """Return (code, text) of a problem that delays records without failing the journal. None if there is none."""
        waiting_s = self._writer.waiting_s
        if waiting_s > STALLED_S:
            return (
                "JOURNAL_STALLED",
                f"a sync of the journal in {self.folder} has not returned for {waiting_s:.0f} s: nothing is acknowledged "
                "until it does. Look at the disk, and whether the broker's sync helper, if it has one, is stopped",
            )
        ready, left = len(self._files.ready), self._room_end - self._next
        if ready >= 2 or (ready and left >= LEAST_ROOM_BYTES):
            return None
        return self._files.trouble()

    def check_room(self, data_bytes: int) -> None:
        """Check, before an offset is assigned, that a batch of `data_bytes` (producer part and body) may be appended.

        Raises `JournalReadOnly`, `DiskFull`, `Unavailable`, `Overloaded`.
        """
        if self.read_only is not None:
            raise self.read_only
        fits = self._next + record_bytes(BROKER_PART_BYTES + data_bytes) <= self._room_end
        if not fits or not self._files.ready:
            self._files.check_room(next_segment=not fits)

    def append(self, kind: RecordKind, topic_id: int, body: Sequence[Buffer]) -> int:
        """Append a record other than a batch. Return the LSN at which it is durable.

        It may begin the reserve segment.

        Raises `JournalReadOnly`, `DiskFull`, `Unavailable`, `Overloaded`, `LimitReached`: nothing was appended.
        """
        whole = b"".join(body)
        self._make_room(len(whole))
        return self._put(kind, topic_id, [whole], crc32(whole), 0)

    def append_batch(
        self,
        topic_id: int,
        broker_part: bytes,
        data: Buffer,
        *,
        base: int,
        end: int,
        count: int,
        time_ms: int,
    ) -> int:
        """Append a validated batch. Return the LSN at which it is durable. Call `check_room` first.

        Raises `JournalReadOnly`, `DiskFull`, `Draining`, `Unavailable`, `Overloaded`, `LimitReached`: nothing was
        appended.
        """
        body_bytes = BROKER_PART_BYTES + len(data)
        full = self._next + record_bytes(body_bytes) > self._room_end
        if full or self.read_only is not None or not self._serving:
            self._make_room(body_bytes)
        assert self._active is not None
        position = self._next - self._active.base + HEADER_BYTES
        if body_bytes <= JOINED_BYTES:
            buffers: tuple[Buffer, ...] = (b"".join((broker_part, data)),)
        else:
            buffers = (broker_part, data)
        lsn = self._put(RecordKind.BATCH, topic_id, [*buffers], 0, 0)
        self._index(self._active.base, topic_id, base, end, time_ms, position, body_bytes)
        self.cache.add(topic_id, CachedBatch(base, end, count, time_ms, body_bytes, buffers))
        return lsn

    def _fits(self, body_bytes: int) -> bool:
        return self._next + record_bytes(body_bytes) <= self._room_end

    def _make_room(self, body_bytes: int) -> None:
        if self.read_only is not None:
            raise self.read_only
        if not self._serving:
            raise Draining("the broker is shutting down: try again in a moment", retry_after_ms=500)
        if not self._fits(body_bytes):
            self._roll(body_bytes)

    def _roll(self, body_bytes: int) -> None:
        """Switch to the next ready segment and write a head. A record of `body_bytes` fits after it.

        On an error nothing has changed: the end mark is written only when the next segment is open. If only a larger
        segment than the ready ones has room, they are used up, and a later call finds one.
        """
        old, end = self._active, self._next + END_MARK_BYTES
        ends = [
            (base, end if old is not None and base == old.base else self._ends[base])
            for base in self._files.live
        ]
        if not self._files.ready:
            raise self._files.refusal()
        size = self._files.ready[0].size
        head = [
            encode_segments(ends),
            *self._owner.encode_head(),
        ]
        head_bytes = sum(map(len, head))
        behind = record_bytes(body_bytes) + END_MARK_BYTES  # must fit after the head
        inline = head_bytes <= INLINE_BYTES and FILE_HEADER_BYTES + record_bytes(head_bytes) + behind <= size
        needed = FILE_HEADER_BYTES + record_bytes(CHECKPOINT_BODY.size) + behind
        if not inline and size < needed <= self.options.segment_bytes:
            if len(self._files.ready) > 1:  # the last one is the reserve
                self._roll(0)
            raise self._files.refusal()
        if not inline and needed > size:
            raise LimitReached(
                f"a record of {body_bytes} bytes does not fit a journal segment of {size} bytes: raise "
                "journal.segment_bytes",
                field="journal.segment_bytes",
                value=size,
            )
        segment, fd = self._files.take_next()
        if old is not None:
            self._put(RecordKind.MARK, 0, [], 0, FLAG_SEGMENT_END)
            self._end_segment(old.base, self._next)
            if self._serving:
                self._files.grow()
        self._active = segment
        self._room_end = segment.end - END_MARK_BYTES
        self._next = segment.base + FILE_HEADER_BYTES
        self._begin_segment(segment.base)
        self._writer.switch(fd, segment.base)
        if inline:
            whole = b"".join(head)
            self._put(RecordKind.HEAD, 0, [whole], crc32(whole), 0)
            self._heads.in_record(segment.base)
            return
        number = new_number()
        body = CHECKPOINT_BODY.pack(number)
        self._put(RecordKind.CHECKPOINT, 0, [body], crc32(body), 0)
        if self._heads.due(segment.base, head_bytes):
            self._heads.write(segment.base, number, head)

    def _put(self, kind: RecordKind, topic_id: int, body: list[Buffer], crc: int, flags: int) -> int:
        """Write a record. Only the last piece of `body` may contain a sector of zeros."""
        assert self._active is not None
        body_bytes = sum(map(len, body))
        lsn = self._next
        synced = self._writer.durable if self._claim is None else self._claim
        blank = 0
        if body:
            blank = blank_sectors(
                lsn - self._active.base, HEADER_BYTES + body_bytes - len(body[-1]), body[-1]
            )
        header = encode_header(kind, lsn, synced, topic_id, body_bytes, crc, flags, blank)
        self._next = lsn + record_bytes(body_bytes)
        assert self._next <= self._active.end, "a record reaches beyond its segment"
        self._writer.put(lsn, [header, *body], HEADER_BYTES + body_bytes)
        self._last_kind = kind
        return self._next

    # -- durable ---------------------------------------------------------------------------------------------

    def _durable(self, lsn: int) -> None:
        if self._waiters:
            self._wake()
        if not self._serving:
            return
        self._owner.durable(lsn)
        if self._sealing:
            self._seal(lsn)
        if self._mark_timer is None and self._last_kind is not RecordKind.MARK:
            self._mark_timer = asyncio.get_running_loop().call_later(MARK_AFTER_S, self._mark, self._next)

    def _mark(self, seen: int) -> None:
        """Write a mark, which proves the last group, after an idle second."""
        self._mark_timer = None
        if not self._serving or self.read_only is not None or self._last_kind is RecordKind.MARK:
            return
        if self._next != seen or self._writer.durable < self._next:
            self._mark_timer = asyncio.get_running_loop().call_later(MARK_AFTER_S, self._mark, self._next)
        elif self._fits(0):
            self._put(RecordKind.MARK, 0, [], 0, 0)

    def _failed(self, error: OSError) -> None:
        self.refuse(
            JournalReadOnly(
                f"the journal in {self.folder} met an I/O error ({error}): it is read-only until the broker is restarted. "
                "Messages that were not acknowledged may or may not be stored. Check the disk before the restart",
                outcome="unknown",
                reason=str(error),
                field="data.dir",
                value=str(self.folder),
            )
        )

    # -- forgetting ------------------------------------------------------------------------------------------

    def collect(self, needed: Callable[[int], int | None]) -> int:
        """Delete the oldest sealed segments up to the first that is still needed. Return their number.

        Args:
            needed: returns the lowest offset of a topic that must stay, None if the topic is gone.
        """
        gone: list[Path] = []
        self._heads.advance(self._writer.durable)
        for base in list(self._files.live):
            if self._active is None or base >= min(self._active.base, self._heads.base):
                break  # an older head may go only after a newer one is durable
            if self.copied_lsn is not None and self._ends[base] > self.copied_lsn():
                break
            if any(
                (keep := needed(topic_id)) is not None and run.end > keep
                for topic_id, run in self._indexes[base].runs.items()
            ):
                break  # only in order, because recovery expects no gap between segments
            gone.append(self._forget(base))
        self._files.remove(gone)
        return len(gone)

    def sealed(self) -> list[tuple[int, int, dict[int, Run]]]:
        """Return (base LSN, bytes, runs by topic) of each segment that is no longer written, oldest first."""
        return [
            (base, self._ends[base] - base, self._indexes[base].runs)
            for base in self._files.live
            if self._active is not None and base < self._active.base
        ]

    def when_synced(self, callback: Callable[[float, float], None]) -> None:
        """Call `callback` with the duration of each sync and the wait before it, in seconds, from now on."""
        self._writer.on_sync = callback

    @property
    def next_segment_bytes(self) -> int:
        """Return the size of the next segment that is made. It grows with the journal's use."""
        return self._files.size

    def statistics(self) -> JournalStatistics:
        live = self._files.live
        return JournalStatistics(
            bytes=sum(segment.size for segment in live.values()),
            segments=len(live),
            ready_segments=len(self._files.ready),
            next_lsn=self._next,
            durable_lsn=self._writer.durable,
            waiting_bytes=self.waiting_bytes,
            tail_cache_bytes=self.cache.used_bytes,
            read_only=self.read_only is not None,
            syncs=self._writer.statistics.syncs,
            fsync_s=tuple(self._writer.statistics.sync_s),
        )
