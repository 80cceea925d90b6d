"""Read messages that the journal no longer has: cold tier → journal → tail, by offset, for every kind of reader.

`read` returns batches from memory, or None. `fill` loads the missing range and calls back. Pumps use both as they do
for the journal's disk, and do not see the hand-over: each read decides it by where the journal begins at that moment.
An object covers a range: offsets in it without a message are holes, counted as read.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import ClusterError, CorruptObject, Internal, MissingExtra, ObjectMissing
from pydanube_core.recent import RecentDict
from pydanube_storage.catalog import CatalogEntry, ObjectCatalog

from pydanube_broker.journal import CachedBatch, Journal
from pydanube_broker.journal.index import Entry
from pydanube_broker.tier.child import ChildDied, TierChild
from pydanube_broker.tier.messages import unpack_batches
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.tier")


@dataclass(frozen=True, slots=True, eq=False)
class ColdRange:
    """The offsets `[start, end)` of a topic, with all messages in them, ascending."""

    topic_id: int
    start: int
    end: int
    batches: Sequence[CachedBatch]
    bytes: int

    @classmethod
    def of(cls, topic_id: int, start: int, end: int, blob: memoryview) -> ColdRange:
        """Return the range whose batches are packed in `blob`, with the memory that blob and objects take."""
        batches = list(unpack_batches(blob))
        return cls(topic_id, start, end, batches, len(blob) + RANGE_BYTES + BATCH_BYTES * len(batches))


RANGE_BYTES: Final = 200  # of a range beside its batches
BATCH_BYTES: Final = 500  # of a batch beside its bytes: a tuple of seven, a view in a tuple, four numbers


class ColdCache:
    """Ranges that were read and may be needed again, bounded in bytes for the whole broker. Pure.

    A range is complete: offsets in it without a batch have no message. The least recently used range is evicted first,
    so that one topic's replay does not evict another's before it is used. The newest always stays.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._topics: dict[int, list[ColdRange]] = {}  # ascending by start, not overlapping
        self._order: OrderedDict[int, ColdRange] = OrderedDict()  # by identity, least recently used first
        self.used_bytes = 0

    def find(self, topic_id: int, offset: int) -> ColdRange | None:
        """Return the cached range that covers `offset`."""
        ranges = self._topics.get(topic_id)
        if not ranges:
            return None
        at = bisect_right(ranges, offset, key=lambda each: each.start) - 1
        if at < 0 or offset >= ranges[at].end:
            return None
        self._order.move_to_end(id(ranges[at]))
        return ranges[at]

    def add(self, found: ColdRange) -> None:
        """Add a range in place of the ranges that it overlaps."""
        ranges = self._topics.setdefault(found.topic_id, [])
        for old in [each for each in ranges if each.start < found.end and found.start < each.end]:
            self._remove(old)
        ranges = self._topics.setdefault(found.topic_id, [])
        ranges.insert(bisect_right(ranges, found.start, key=lambda each: each.start), found)
        self._order[id(found)] = found
        self.used_bytes += found.bytes
        while self.used_bytes > self._limit and len(self._order) > 1:
            self._remove(next(iter(self._order.values())))

    def _remove(self, old: ColdRange) -> None:
        del self._order[id(old)]
        self.used_bytes -= old.bytes
        ranges = self._topics[old.topic_id]
        ranges.remove(old)
        if not ranges:
            del self._topics[old.topic_id]

    def drop(self, topic_id: int) -> None:
        """Drop a topic's ranges."""
        for old in list(self._topics.get(topic_id, ())):
            self._remove(old)

    def release(self, starts_of: Callable[[int], int | None]) -> None:
        """Drop the ranges of deleted messages: those below their topic's start, or all if it is None.

        No reader needs them again. Left to eviction, they fill the cache with data that was deleted long ago.
        """
        for topic_id, ranges in list(self._topics.items()):
            start = starts_of(topic_id)
            for old in [each for each in ranges if start is None or each.end <= start]:
                self._remove(old)


CACHE_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 2 << 20  # of one call of the child
_ATTEMPTS: Final = 3
_REMEMBERED: Final = 1024

Filled = Callable[[Any], None]


class ColdReads:
    """Reads of the cold tier. `start` runs a coroutine as a task of the broker. Single user: the loop."""

    def __init__(
        self,
        journal: Journal,
        catalog: ObjectCatalog,
        child: TierChild,
        folders: dict[int, str],
        start: Callable[[Coroutine[Any, Any, None]], None],
        *,
        missing: MissingExtra | None = None,
    ) -> None:
        self.cache = ColdCache(CACHE_BYTES)
        self.errors = 0
        self.reads = 0
        self.on_bad: Callable[[int, int], None] = lambda topic_id, offset: None  # a missing or damaged object
        self._journal = journal
        self._catalog = catalog
        self._child = child
        self._folders = folders  # topic id → folder of its objects
        self._start = start
        self._missing = missing
        self._waiting: dict[tuple[int, int], list[Filled]] = {}
        self._entries: RecentDict[int, CatalogEntry] = RecentDict(_REMEMBERED)  # the last used of each topic
        self._failed: RecentDict[tuple[int, int], None] = RecentDict(_REMEMBERED)  # not read ahead again
        self._times: RecentDict[tuple[int, int], int] = RecentDict(_REMEMBERED)  # (topic id, time) → offset

    # -- offsets ---------------------------------------------------------------------------------------------

    def _in_journal(self, topic: Topic, offset: int) -> bool:
        return offset >= topic.state.tiered_offset or self._journal.holds(topic.topic_id, offset)

    def read(self, topic: Topic, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None:
        """As `Journal.read`, for an offset below the topic's tiered offset."""
        tail = self._journal.cache.read(topic.topic_id, offset, end, max_bytes)
        if tail is not None:
            return tail[: _to_gap(tail)]
        at, size = offset, 0
        found: list[CachedBatch] = []
        while at < end and not self._in_journal(topic, at):
            known = self.cache.find(topic.topic_id, at)
            if known is None:
                return found or None
            self._read_ahead(topic, known.end)
            for batch in known.batches[bisect_right(known.batches, offset, key=lambda each: each.end) :]:
                if batch.base >= end or (found and size + batch.stored_bytes > max_bytes):
                    return found
                found.append(batch)
                size += batch.stored_bytes
            at = known.end
        if found or at >= end:
            return found
        stored = self._journal.read(topic.topic_id, at, end, max_bytes)
        return stored if stored is None else stored[: _to_gap(stored)]

    def fill(
        self, topic: Topic, offset: int, end: int, max_bytes: int, worker_threads: WorkerThreads, done: Filled
    ) -> None:
        """Load the range that `read` missed. The loop calls `done` with an error, or another value: read again."""
        at = offset
        while at < end and not self._in_journal(topic, at):
            known = self.cache.find(topic.topic_id, at)
            if known is None:
                self._fetch(topic, at, done)
                return
            at = known.end
        plan = self._journal.plan_read(topic.topic_id, at, end, max_bytes)
        worker_threads.run(self._journal.read_planned(plan[: _to_gap(plan)]), done)

    def _read_ahead(self, topic: Topic, offset: int) -> None:
        key = (topic.topic_id, offset)
        if (
            key not in self._waiting
            and key not in self._failed
            and not self._in_journal(topic, offset)
            and self.cache.find(topic.topic_id, offset) is None
        ):
            self._fetch(topic, offset, None)

    def _fetch(self, topic: Topic, offset: int, done: Filled | None) -> None:
        key = (topic.topic_id, offset)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [] if done is None else [done]
            self._start(self._fetched(topic, offset))
        elif done is not None:
            waiting.append(done)

    async def _fetched(self, topic: Topic, offset: int) -> None:
        key = (topic.topic_id, offset)
        result: Any = ()
        self._failed.pop(key, None)
        try:
            await self._load(topic, offset)
        except ClusterError as error:
            result = error
            self.errors += 1
            self._failed[key] = None
            log.error(
                "cold_read_failed",
                extra={"topic": topic.name, "offset": offset, "code": error.code, "error": error.message},
            )
        except Exception as error:
            log.exception("cold_read_failed", extra={"topic": topic.name})
            result = Internal(f"the cold part of {topic.name} could not be read: {error!r}")
        finally:
            waiting = self._waiting.pop(key, [])
            for done in waiting:
                done(result)

    async def _load(self, topic: Topic, offset: int) -> None:
        """Load the range that begins at `offset` into the cache."""
        if self._missing is not None:
            raise self._missing
        for attempt in range(_ATTEMPTS):
            entry = await self._entry(topic.topic_id, offset)
            if entry is None or entry.start > offset:
                head = await self._catalog.head(topic.topic_id)
                begins = max(topic.start_offset, 0 if head is None else head.head.start_offset)
                if offset < begins:  # retention dropped it since
                    self.cache.add(ColdRange(topic.topic_id, offset, begins, [], 0))
                    return
                self._entries.pop(topic.topic_id, None)
                if attempt + 1 < _ATTEMPTS:
                    continue  # a merge or retention may have come between the two look-ups
                end = topic.state.tiered_offset if entry is None else entry.start
                log.error("tier_gap", extra={"topic": topic.name, "start": offset, "end": end})
                # Objects cover the tiered offsets without a gap: this is a loss, and no hole to skip silently.
                raise ObjectMissing(
                    f"no object of the cold tier holds offsets {offset} to {end} of {topic.name}: see `danube objects "
                    "verify`, and restore the metadata from a backup. To go on behind them, seek there",
                    topic=topic.name,
                    offset=offset,
                    end=end,
                )
            try:
                said, blob = await self._child.call(
                    "read",
                    {
                        **self.where(topic.topic_id, entry),
                        "offset": offset,
                        "max_bytes": CHUNK_BYTES,
                        "epoch": entry.epoch,
                    },
                )
            except (ObjectMissing, CorruptObject):
                now = await self._catalog.find(topic.topic_id, offset)
                self._entries.pop(topic.topic_id, None)
                if attempt + 1 == _ATTEMPTS or (now is not None and now.name == entry.name):
                    self.on_bad(topic.topic_id, offset)
                    raise
                continue  # it was compacted since: another object replaces it
            except ChildDied:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            self.reads += 1
            self.cache.add(ColdRange.of(topic.topic_id, offset, said["end"], blob))
            return

    async def _entry(self, topic_id: int, offset: int) -> CatalogEntry | None:
        entry = self._entries.get(topic_id)
        if entry is None or not entry.start <= offset < entry.end:
            entry = await self._catalog.find(topic_id, offset)
            if entry is not None:
                self._entries[topic_id] = entry
        return entry

    def where(self, topic_id: int, entry: CatalogEntry) -> dict[str, Any]:
        return where(self._folders[topic_id], entry)

    def forget(self, topic_id: int) -> None:
        """Drop a topic's cached entry: its objects were replaced or dropped, or it was deleted."""
        self._entries.pop(topic_id, None)

    # -- time ------------------------------------------------------------------------------------------------

    def may_hold_time(self, topic: Topic, found: int | None) -> bool:
        """Return whether the cold tier may have an earlier message for a time than `found`, which is in the journal."""
        return topic.state.tiered_offset > topic.start_offset and (
            found is None or not self._journal.holds(topic.topic_id, found - 1)
        )

    def offset_at_time(self, topic: Topic, time_ms: int) -> int | None:
        """Return the offset that `prepare_time` found. Not prepared: the start, which skips nothing."""
        return self._times.get((topic.topic_id, time_ms), topic.start_offset)

    async def prepare_time(self, topic: Topic, time_ms: int) -> None:
        """Find the offset of a time in the cold part, for `offset_at_time`."""
        if self._missing is not None:
            raise self._missing
        entry = await self._catalog.find_time(topic.topic_id, time_ms)
        offset = topic.state.tiered_offset
        if entry is not None:
            said, _ = await self._child.call(
                "time", {**self.where(topic.topic_id, entry), "time_ms": time_ms}
            )
            offset = entry.end if said["offset"] is None else said["offset"]
        self._times[topic.topic_id, time_ms] = offset


def where(folder: str, entry: CatalogEntry) -> dict[str, Any]:
    """Return the facts by which the tier's process opens an object."""
    return {
        "key": f"{folder}/{entry.name}",
        "bytes": entry.bytes,
        "footer_bytes": entry.footer_bytes,
        "footer_crc": entry.footer_crc,
    }


def _to_gap(batches: Sequence[CachedBatch] | Sequence[Entry]) -> int:
    """Return how many of these batches follow each other without a gap: a gap in the journal is filled by objects."""
    for i in range(1, len(batches)):
        if batches[i].base != batches[i - 1].end:
            return i
    return len(batches)
