"""The reading half of the journal: recovery at a start, the place of every batch by offset and time, and the batches.

A batch is in the tail cache, in a segment in the page cache (read in the loop), or on disk (planned here, read by a
worker thread). A batch read from a file is verified before it is returned.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part, read_producer_part
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.errors import ClusterError, CorruptJournal, InvalidArgument

from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.file_worker import FileWorker
from pydanube_broker.journal.index import Entry, Run, SegmentIndex, load_sidecar, sidecar_path, write_sidecar
from pydanube_broker.journal.owner import JournalOwner
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    SECTOR,
    WITHOUT_TOPIC,
    RecordKind,
    read_header,
)
from pydanube_broker.journal.recovery import Recovered, SegmentFile, recover, unreadable
from pydanube_broker.journal.scan import Records, scan
from pydanube_broker.journal.segments import SegmentFiles
from pydanube_broker.journal.tail_cache import CachedBatch, TailCache
from pydanube_broker.settings.sizes import MAX_SEGMENT_BYTES

log = logging.getLogger("pydanube.journal")

MIN_SEGMENT_BYTES: Final = 16 << 10  # a head and a few records. The settings choose a sensible size
FEW: Final = 16  # up to this many batches, a sum in Python is faster than in numpy
READ_GAP_BYTES: Final = 4096  # up to this many bytes of other topics, one read is faster than two
# head prefix: number of segments, reserved, then (base, valid end) for each
_SEGMENTS: Final = struct.Struct("<II")
_SEGMENT: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    segment_bytes: int = 64 << 20
    tail_cache_bytes: int = 128 << 20
    verify_reads: bool = True

    def __post_init__(self) -> None:
        if not MIN_SEGMENT_BYTES <= self.segment_bytes <= MAX_SEGMENT_BYTES or self.segment_bytes % SECTOR:
            raise InvalidArgument(
                f"journal.segment_bytes is {self.segment_bytes}: from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}, "
                f"and a multiple of {SECTOR}",
                field="journal.segment_bytes",
                value=self.segment_bytes,
            )


def encode_segments(ends: Sequence[tuple[int, int]]) -> bytes:
    """Encode (base, valid end) of each segment, the beginning of a head."""
    return b"".join((_SEGMENTS.pack(len(ends), 0), *(_SEGMENT.pack(*pair) for pair in ends)))


class StoredBatches:
    """See the module. Its user, the journal, reports appended batches and segments that are given up."""

    def __init__(
        self,
        files: SegmentFiles,
        disk: Disk,
        options: JournalOptions,
        owner: JournalOwner,
        worker: FileWorker,
    ) -> None:
        self.options = options
        self.cache = TailCache(options.tail_cache_bytes)
        self._files = files
        self._disk = disk
        self._owner = owner
        self._worker = worker
        self._runs: dict[int, list[Run]] = {}  # topic → one run per segment, ascending
        self._indexes: dict[int, SegmentIndex] = {}
        self._ends: dict[int, int] = {}  # segment base → where its valid records end
        self._sealing: set[int] = set()  # ended segments without a sidecar yet
        self._unwritten: set[int] = set()  # segments whose sidecar is missing or out of date
        self.recovered: Recovered | None = None

    # -- recovery ------------------------------------------------------------------------------------------------

    def recover(self, begins: Callable[[], Mapping[int, int]] = dict) -> Recovered:
        """Read the journal without changing the disk: call the owner's `restore` and `replay`, then `begins`.

        `begins` returns topic → the address below which its batches no longer count.

        Raises `CorruptJournal`, `FormatTooNew`.
        """
        self._files.folder.mkdir(parents=True, exist_ok=True)
        found = recover(self._files.folder, self._disk, restore=self._restore, replay=self._replay)
        self.recovered = found
        self._check_listed(found)
        oldest_walked = found.head_lsn - FILE_HEADER_BYTES
        for segment in found.segments:
            # Not live: deleted segments that came back, segments of zeros, and unproven ones, which are in the tail.
            walked = segment.base >= oldest_walked and segment.base + FILE_HEADER_BYTES < found.proven
            if walked or segment.base in self._ends:
                self._files.live[segment.base] = segment
        self._ends = {base: end for base, end in self._ends.items() if base in self._files.live}
        self._unwritten = self._load_indexes(found.proven, begins())
        return found

    def _check_listed(self, found: Recovered) -> None:
        """Check that the segments named by the head exist. Leading ones may be missing: removal is oldest first."""
        there = {segment.base for segment in found.segments}
        known = sorted(self._ends)
        first = next((i for i, base in enumerate(known) if base in there), len(known))
        for base in known[first:]:
            if base not in there:
                name = self._files.path(base).name
                raise CorruptJournal(
                    f"journal segment {name} is missing. Nothing was changed. Restore the file from a backup",
                    segment=name,
                    offset=0,
                    lsn=base,
                )

    def _restore(self, head: bytes) -> None:
        view = memoryview(head)
        count, _ = _SEGMENTS.unpack_from(view)
        for i in range(count):
            base, end = _SEGMENT.unpack_from(view, _SEGMENTS.size + i * _SEGMENT.size)
            self._ends[base] = end
        self._owner.restore(view[_SEGMENTS.size + count * _SEGMENT.size :])

    def _replay(self, records: Records, raw: bytes, segment: SegmentFile) -> None:
        index = self._indexes.get(segment.base)
        if index is None:
            index = self._indexes[segment.base] = SegmentIndex(segment.base)
        index.extend(records)
        view = memoryview(raw)
        for i in np.flatnonzero(~np.isin(records.kind, WITHOUT_TOPIC)).tolist():
            header, body = records.header(i), records.position[i] + HEADER_BYTES
            self._owner.replay(header, view[body : body + header.body_bytes])

    def _load_indexes(self, proven: int, begins: Mapping[int, int]) -> set[int]:
        """Load the indexes of all live segments: from sidecars, from the recovery's scan, or by a new scan.

        Args:
            proven: end of the proven records.
            begins: topic → the address below which its batches no longer count.

        Returns:
            Segments whose sidecar is missing or out of date.
        """
        unwritten: set[int] = set()
        for segment in self._files.live.values():
            base = segment.base
            if base in self._indexes:
                index = self._indexes[base]
                self._ends[base] = min(proven, segment.end)
                index.end_lsn = self._ends[base]
                unwritten.add(base)
            else:
                end = self._ends.get(base, min(proven, segment.end))
                self._ends[base] = end
                loaded = load_sidecar(sidecar_path(segment.path), base)
                if loaded is None or loaded.end_lsn != end:
                    if loaded is not None:
                        loaded.close()
                    loaded = self._rescan(segment, end)
                    unwritten.add(base)
                self._indexes[base] = loaded
        for topic_id, lsn in begins.items():
            for index in self._indexes.values():
                index.forget_below(topic_id, lsn)
        for base in sorted(self._indexes):
            for topic_id, run in self._indexes[base].runs.items():
                self._runs.setdefault(topic_id, []).append(run)
        return unwritten

    def _rescan(self, segment: SegmentFile, end: int) -> SegmentIndex:
        index = SegmentIndex(segment.base)
        index.end_lsn = end
        try:
            fd = self._disk.open_ro(segment.path)
            try:
                data = self._disk.pread(fd, segment.size, 0)
            finally:
                self._disk.close(fd)
        except OSError as error:
            raise unreadable(segment.path, 0, error) from error
        for item in scan(data, segment.base, segment.base + FILE_HEADER_BYTES, bodies=False):
            if isinstance(item, int):
                if item < end:
                    raise CorruptJournal(
                        f"journal segment {segment.path.name} is damaged at byte {item - segment.base} "
                        f"(LSN {item}). Restore the file from a backup",
                        segment=segment.path.name,
                        offset=item - segment.base,
                        lsn=item,
                    )
                break
            index.extend(item.head(int(np.searchsorted(item.lsn, end))))
            if item.end >= end:
                break
        return index

    # -- index -----------------------------------------------------------------------------------------------

    def _index(
        self, segment: int, topic_id: int, base: int, end: int, time_ms: int, position: int, body_bytes: int
    ) -> None:
        """Add a batch that was appended to the segment that begins at `segment`."""
        run = self._indexes[segment].add(topic_id, base, end, time_ms, position, body_bytes)
        if run is not None:
            self._runs.setdefault(topic_id, []).append(run)

    def _index_copied(self, segment: int, topic_id: int, lsn: int, body: memoryview) -> None:
        """Add a batch of the tail that was copied to an address."""
        part = read_broker_part(body[:BROKER_PART_BYTES])
        position = lsn - segment + HEADER_BYTES
        first, end = part.base_offset, part.last_offset + 1
        self._index(segment, topic_id, first, end, part.append_time_ms, position, len(body))

    def _begin_segment(self, base: int) -> None:
        self._indexes[base] = SegmentIndex(base)

    def _end_segment(self, base: int, end: int) -> None:
        """End a segment. `_seal` writes its sidecar later."""
        self._ends[base] = self._indexes[base].end_lsn = end
        self._sealing.add(base)

    def _seal(self, lsn: int) -> None:
        """Write the sidecars of ended segments whose last record is durable, and use them from then on."""
        for base in [base for base in self._sealing if self._ends[base] <= lsn]:
            self._sealing.discard(base)
            self._write_sidecar(base)

    def _write_sidecar(self, base: int) -> None:
        index, path = self._indexes[base], sidecar_path(self._files.live[base].path)
        frozen = index.snapshot()

        def work() -> SegmentIndex | None:
            write_sidecar(path, frozen.encode())
            return load_sidecar(path, base)

        self._worker.run(work, lambda job: self._sidecar_written(base, index, job))

    def _sidecar_written(self, base: int, index: SegmentIndex, job: Future[SegmentIndex | None]) -> None:
        """Use the sidecar instead of memory, unless the segment was removed."""
        if job.cancelled():
            return
        if error := job.exception():  # the sidecar is a cache, and the next start rebuilds it
            log.warning("journal_index_not_written", extra={"error": str(error)})
            return
        mapped = job.result()
        if mapped is not None:
            self._install(base, index, mapped)

    def _write_missing_sidecars(self) -> None:
        for base in sorted(self._unwritten & self._indexes.keys()):
            self._write_sidecar(base)
        self._unwritten.clear()

    def _install(self, base: int, index: SegmentIndex, mapped: SegmentIndex) -> None:
        """Replace the `index` in memory by a mapped sidecar, unless the segment was removed."""
        if self._indexes.get(base) is not index:
            mapped.close()
            return
        mapped.runs = {topic_id: run for topic_id, run in mapped.runs.items() if topic_id in index.runs}
        for topic_id, run in mapped.runs.items():
            runs = self._runs.get(topic_id)
            if runs is not None:
                runs[:] = [run if old.segment == base else old for old in runs]
        self._indexes[base] = mapped

    def _forget(self, base: int) -> Path:
        self._sealing.discard(base)
        for topic_id in self._indexes[base].runs:
            runs = [run for run in self._runs.pop(topic_id, []) if run.segment != base]
            if runs:
                self._runs[topic_id] = runs
        self._indexes.pop(base).close()
        self._ends.pop(base, None)
        return self._files.forget(base)

    def drop_topic(self, topic_id: int) -> None:
        """Forget the batches of a deleted topic. A segment without other batches can then be deleted."""
        self._runs.pop(topic_id, None)
        self.cache.drop(topic_id)
        for index in self._indexes.values():
            if isinstance(index.runs, dict):
                index.runs.pop(topic_id, None)

    def _close_indexes(self) -> None:
        self._runs.clear()
        for index in self._indexes.values():
            index.close()
        self._indexes.clear()

    # -- read ------------------------------------------------------------------------------------------------

    def read(self, topic_id: int, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None:
        """Return batches from the first that ends after `offset`, below `end`: at least one, about `max_bytes`.

        Returns:
            [] if there is none. None if they must be read from disk, with `plan_read` and `read_planned`.

        Raises:
            CorruptJournal: the stored batch is damaged.
        """
        cached = self.cache.read(topic_id, offset, end, max_bytes)
        if cached is not None:
            return cached
        plan = self.plan_read(topic_id, offset, end, max_bytes)
        return self._fetch(plan, self._disk.pread_cached) if plan else []

    def plan_read(self, topic_id: int, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """Return the places of these batches. They are durable, because `end` is a commit offset."""
        runs = self._runs.get(topic_id, [])
        plan: list[Entry] = []
        size = 0
        at = bisect_right(runs, offset, key=lambda run: run.end)
        for run in runs[at:]:
            for i in range(run.at_or_after(offset), len(run)):
                entry = run.entry(i)
                if entry.base >= end or (plan and size + entry.body_bytes > max_bytes):
                    return plan
                plan.append(entry)
                size += entry.body_bytes
        return plan

    def read_planned(self, plan: Sequence[Entry]) -> Callable[[], list[CachedBatch]]:
        """Return a function that reads the plan from disk, for a worker thread.

        It returns [] if a segment has been removed since: plan again. It holds no resources until it is called, and
        raises CorruptJournal or Unavailable.
        """

        def work() -> list[CachedBatch]:
            fds: dict[int, int] = {}
            try:
                for entry in plan:
                    if entry.segment not in fds:
                        path = self._files.path(entry.segment)
                        try:
                            fds[entry.segment] = self._disk.open_ro(path)
                        except OSError as error:
                            if entry.segment not in self._files.live:
                                return []
                            raise unreadable(path, entry.position, error) from error
                found = self._fetch(plan, self._disk.pread, fds)
                assert found is not None
                return found
            finally:
                for fd in fds.values():
                    self._disk.close(fd)

        return work

    def _fetch(
        self,
        plan: Sequence[Entry],
        pread: Callable[[int, int, int], bytes | None],
        fds: dict[int, int] | None = None,
    ) -> list[CachedBatch] | None:
        """Read the entries, adjacent ones in one call, and verify each."""
        found: list[CachedBatch] = []
        i = 0
        while i < len(plan):
            first = plan[i]
            stop, j = first.position + first.body_bytes, i + 1
            while (
                j < len(plan)
                and plan[j].segment == first.segment
                and 0 <= plan[j].position - stop <= READ_GAP_BYTES
            ):
                stop = plan[j].position + plan[j].body_bytes
                j += 1
            start = first.position - HEADER_BYTES
            try:
                fd = fds[first.segment] if fds is not None else self._files.read_fd(first.segment)
                data = pread(fd, stop - start, start)
            except OSError as error:
                raise unreadable(self._files.path(first.segment), first.position, error) from error
            if data is None:
                return None
            view = memoryview(data)
            found += [self._checked(entry, view, entry.position - start) for entry in plan[i:j]]
            i = j
        return found

    def _checked(self, entry: Entry, data: memoryview, at: int) -> CachedBatch:
        header = read_header(data, at - HEADER_BYTES, entry.segment + entry.position - HEADER_BYTES)
        body = data[at : at + entry.body_bytes]
        if header is None or header.kind is not RecordKind.BATCH or header.body_bytes != entry.body_bytes:
            raise self._damaged(entry, "there is no batch")
        if self.options.verify_reads:
            try:
                broker = read_broker_part(body)
                count = read_producer_part(body[BROKER_PART_BYTES:]).count
            except ClusterError as error:
                raise self._damaged(entry, error.message) from error
            if (broker.base_offset, broker.last_offset + 1) != (entry.base, entry.end):
                raise self._damaged(entry, f"it holds offset {broker.base_offset}")
        else:
            count = PRODUCER_PART.unpack_from(body, BROKER_PART_BYTES)[4]
        return CachedBatch(entry.base, entry.end, count, entry.append_time_ms, entry.body_bytes, (body,))

    def _damaged(self, entry: Entry, why: str) -> CorruptJournal:
        name = self._files.path(entry.segment).name
        return CorruptJournal(
            f"journal segment {name} is damaged at byte {entry.position} (message offset {entry.base}): {why}",
            segment=name,
            offset=entry.position,
            message_offset=entry.base,
        )

    # -- questions about a topic -----------------------------------------------------------------------------

    def holds(self, topic_id: int, offset: int) -> bool:
        """Return whether a batch here has that offset. A restored journal may have gaps that objects fill."""
        runs = self._runs.get(topic_id, [])
        at = bisect_right(runs, offset, key=lambda run: run.end)
        return at < len(runs) and runs[at].bases[runs[at].at_or_after(offset)] <= offset

    def first_offset(self, topic_id: int) -> int | None:
        """Return the topic's lowest offset in the journal. None if it has none."""
        runs = self._runs.get(topic_id)
        return runs[0].first if runs else None

    def offset_at_lsn(self, topic_id: int, lsn: int) -> int | None:
        """Return the offset of the first batch whose record is at or above an address. None if there is none."""
        following: int | None = None
        for run in reversed(self._runs.get(topic_id, [])):
            at = bisect_left(run.places, max(0, lsn - run.segment) << 32)
            if at:
                return run.bases[at] if at < len(run) else following
            following = run.first
        return following

    def offset_at_time(self, topic_id: int, time_ms: int) -> int | None:
        """Return the offset of the first batch appended at or after `time_ms`. None if there is none."""
        following: int | None = None
        for run in reversed(self._runs.get(topic_id, [])):
            # Within a run times never decrease. Between runs they may, once, after the clock was ahead.
            if run.times[0] < time_ms:
                at = run.at_time(time_ms)
                return run.bases[at] if at < len(run) else following
            following = run.first
        return following

    def time_at_offset(self, topic_id: int, offset: int) -> int | None:
        """Return the append time of the batch that holds `offset`, or of the next."""
        runs = self._runs.get(topic_id, [])
        at = bisect_right(runs, offset, key=lambda run: run.end)
        if at == len(runs):
            return None
        run = runs[at]
        return run.times[run.at_or_after(offset)]

    def stored_bytes(self, topic_id: int, offset: int = 0) -> int:
        """Return the bytes of the batches that end after `offset`."""
        total = 0
        for run in self._runs.get(topic_id, []):
            if run.end > offset:
                at = run.at_or_after(offset)
                if len(run.places) - at <= FEW:
                    total += int(sum(place & 0xFFFFFFFF for place in run.places[at:]))
                else:
                    places = np.frombuffer(run.places, dtype=np.uint64)[at:]  # type: ignore[call-overload]
                    total += int((places & np.uint64(0xFFFFFFFF)).sum())
        return total

    def places(
        self, topic_id: int, offset: int, end: int, max_bytes: int
    ) -> tuple[list[tuple[Path, bytes]], int, int]:
        """Return the places of batches that end after `offset` and begin below `end`: about `max_bytes`, at least one.

        Returns:
            In order, (segment, uint64 position << 32 | body bytes of each batch). The last offset + 1. Their total bytes.
        """
        found: list[tuple[Path, bytes]] = []
        total = 0
        runs = self._runs.get(topic_id, [])
        for run in runs[bisect_right(runs, offset, key=lambda run: run.end) :]:
            first, stop = run.at_or_after(offset), bisect_left(run.bases, end)
            if first >= stop or total >= max_bytes:
                break
            places = np.frombuffer(run.places, dtype=np.uint64)[first:stop]  # type: ignore[call-overload]
            sizes = np.cumsum(places & np.uint64(0xFFFFFFFF)) + np.uint64(total)
            taken = min(len(sizes), int(np.searchsorted(sizes, max_bytes)) + 1)
            found.append((self._files.path(run.segment), places[:taken].tobytes()))
            total = int(sizes[taken - 1])
            offset = run.ends[first + taken - 1]
        return found, offset, total
