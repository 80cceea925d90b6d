"""The lag of a cursor that stands in the cold tier: bytes of objects after it, append time of its message.

Bytes are the stored bytes of the objects, of the first in proportion to its unread offsets. Beyond `_EXACT_OBJECTS`
objects, the bytes are the whole topic's in proportion to its unread offsets, which costs one look-up regardless of the
number of objects. A figure is kept while its topic's part of the tier has the same bounds, for 30 s at most because
objects are merged: two look-ups for each of ten thousand cursors take seconds.

A cursor that moves has another offset at each sample. So a look-up also returns the append times of later messages, and
times between two close ones are interpolated.

While the metadata store, which has the catalog, does not answer, the last figure stands, or the bytes are estimated from
the size of all objects. Only a figure would be missing, and the cursors would not be shown at all.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import ClusterError, StoreUnavailable
from pydanube_core.recent import RecentDict
from pydanube_storage.catalog import CatalogEntry, ObjectCatalog

from pydanube_broker.tier.child import TierChild
from pydanube_broker.topics.topic import Topic, now_ms

_EXACT_OBJECTS: Final = 500  # one page of the catalog
_REMEMBERED: Final = 16_384  # cursors, looked up in turn: with fewer places than cursors none would be found
KEPT_S: Final = 30.0
_AWAY_S: Final = 5.0  # between two look-ups while the metadata store is away: each waits for it
_POINTS: Final = 64  # append times of one look-up
_COURSES: Final = 16  # look-ups of a topic whose points are kept
_TOPICS: Final = 256
_AHEAD: Final = 8  # look-ups for one cursor that moves fast
_CLOSE: Final = 0.01  # of the age. A second always is close


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdPart:
    """The unread part of the cold tier for a cursor. `append_time_ms` is None if the object cannot be read."""

    offset: int
    bytes: int
    append_time_ms: int | None


class ColdLag:
    """The unread messages that lie in the cold tier. Single user: the loop."""

    def __init__(
        self,
        catalog: ObjectCatalog,
        child: TierChild,
        where: Callable[[int, CatalogEntry], dict[str, Any]],
        object_bytes: Mapping[int, int],
    ) -> None:
        self._catalog = catalog
        self._object_bytes = object_bytes  # by topic id
        self._away_until = 0.0
        self._child = child
        self._where = where
        # By topic id and offset
        self._parts = RecentDict[tuple[int, int], tuple[tuple[float, ...], ColdPart | None]](_REMEMBERED)
        # (topic id, offset) → append time
        self._times = RecentDict[tuple[int, int], int](_REMEMBERED)
        # (topic id, subscription id) → offset
        self._were = RecentDict[tuple[int, int], int](_REMEMBERED)
        # topic id → points of look-ups
        self._courses = RecentDict[int, list[list[tuple[int, int]]]](_TOPICS)

    async def part(self, topic: Topic, offset: int) -> ColdPart | None:
        """Return the unread part of the cold tier from `offset` on, or None if there is none."""
        key, bounds = (topic.topic_id, offset), (topic.start_offset, topic.state.tiered_offset)
        now = asyncio.get_running_loop().time()
        (*known, until), part = self._parts.get(key, ((0.0,), None))
        if tuple(known) == bounds and until >= now:
            return part
        if now >= self._away_until:
            try:
                found = await self._look_up(topic, offset)
            except StoreUnavailable:
                self._away_until = asyncio.get_running_loop().time() + _AWAY_S
            else:
                self._parts[key] = ((*bounds, now + KEPT_S), found)
                return found
        return part or self._estimate(topic, offset)

    def _estimate(self, topic: Topic, offset: int) -> ColdPart | None:
        """Return the unread part without a look-up in the catalog."""
        start, end = topic.start_offset, topic.state.tiered_offset
        if offset >= end:
            return None
        size = self._object_bytes.get(topic.topic_id, 0) * (end - offset) // max(1, end - start)
        return ColdPart(offset=offset, bytes=size, append_time_ms=self.known_time_ms(topic.topic_id, offset))

    async def _look_up(self, topic: Topic, offset: int) -> ColdPart | None:
        held = await self._catalog.head(topic.topic_id)
        if held is None or offset >= held.head.tiered_offset:
            return None
        head = held.head
        offset = max(offset, head.start_offset)
        if head.objects <= _EXACT_OBJECTS:
            entries = await self._catalog.entries_page(topic.topic_id, after=offset)
            size = sum(entry.bytes for entry in entries)
            if entries and entries[0].start < offset:
                first = entries[0]
                size -= first.bytes * (offset - first.start) // (first.end - first.start)
        else:
            entries = await self._catalog.entries_page(topic.topic_id, after=offset, limit=1)
            whole = head.tiered_offset - head.start_offset
            size = head.bytes * (head.tiered_offset - offset) // whole
        time_ms = await self._time(topic.topic_id, offset, entries[0]) if entries else None
        return ColdPart(offset=offset, bytes=size, append_time_ms=time_ms)

    async def follow(self, topic: Topic, subscription_id: int, offset: int) -> None:
        """Look up append times ahead of a moving cursor, for twice the messages that it passed since the last call."""
        key = (topic.topic_id, subscription_id)
        until = offset + 2 * (offset - self._were.get(key, offset))
        self._were[key] = offset
        if until <= offset:
            return
        entries = await self._catalog.entries_page(topic.topic_id, after=offset, limit=_AHEAD)
        for _ in range(_AHEAD):
            course = self._course(topic.topic_id, offset)
            if course is None:
                entry = next((each for each in entries if each.start <= offset < each.end), None)
                course = None if entry is None else await self._points(topic.topic_id, offset, entry)
            if not course or course[-1][0] >= until:
                return
            offset = course[-1][0] + 1

    def known_time_ms(self, topic_id: int, offset: int) -> int | None:
        """Return the append time at an offset from earlier look-ups, or None if they do not cover it."""
        known = self._times.get((topic_id, offset))
        course = None if known is not None else self._course(topic_id, offset)
        if course is None:
            return known
        at = bisect_right(course, (offset, 1 << 63)) - 1
        (before, low), (after, high) = course[at], course[min(at + 1, len(course) - 1)]
        if offset > before and high - low > max(1000, _CLOSE * (now_ms() - high)):
            return None
        return low + (high - low) * (offset - before) // max(1, after - before)

    def _course(self, topic_id: int, offset: int) -> list[tuple[int, int]] | None:
        courses = self._courses.get(topic_id, ())
        return next((each for each in courses if each[0][0] <= offset <= each[-1][0]), None)

    async def _points(self, topic_id: int, offset: int, entry: CatalogEntry) -> list[tuple[int, int]] | None:
        asked = {**self._where(topic_id, entry), "offset": offset, "points": _POINTS}
        try:
            said, _ = await self._child.call("when", asked)
        except ClusterError:
            return None  # readers of the topic get the error. Here only a figure is missing
        course = [(at, time_ms) for at, time_ms in said["points"]]
        if course:
            end = course[-1][0]
            kept = [each for each in self._courses.get(topic_id, ()) if not offset <= each[0][0] <= end]
            self._courses[topic_id] = [*kept[1 - _COURSES :], course]
        return course

    async def _time(self, topic_id: int, offset: int, entry: CatalogEntry) -> int | None:
        key = (topic_id, offset)
        if offset <= entry.start:
            self._times[key] = entry.min_append_time_ms
        elif key not in self._times:
            course = await self._points(topic_id, offset, entry)
            if not course:
                return None
            self._times[key] = course[0][1]
        return self._times.get(key)
