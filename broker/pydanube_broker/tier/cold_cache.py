"""Ranges of offsets read from the cold tier that are still of use, bounded in bytes for the whole broker.

Pure. A range says everything about its offsets: one without batches says that there is no message. The least recently
used range goes first, so that one topic's replay does not throw another's out before it is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pydanube_broker.journal import CachedBatch


@dataclass(frozen=True, slots=True, eq=False)
class ColdRange:
    """Offsets `[start, end)` of a topic and all messages in them, ascending."""

    topic_id: int
    start: int
    end: int
    batches: Sequence[CachedBatch]
    bytes: int


class ColdCache:
    """Bounded in bytes; the newest range always stays."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._topics: dict[int, list[ColdRange]] = {}  # ascending by start, not overlapping
        self._order: OrderedDict[int, ColdRange] = OrderedDict()  # by identity, least recently used first
        self.used_bytes = 0

    def find(self, topic_id: int, offset: int) -> ColdRange | None:
        """The range that covers `offset`."""
        ranges = self._topics.get(topic_id)
        if not ranges:
            return None
        at = bisect_right(ranges, offset, key=lambda each: each.start) - 1
        if at < 0 or offset >= ranges[at].end:
            return None
        self._order.move_to_end(id(ranges[at]))
        return ranges[at]

    def add(self, found: ColdRange) -> None:
        """Take a range in place of those that it overlaps."""
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
        """Drop all that is cached of a topic."""
        for old in list(self._topics.get(topic_id, ())):
            self._remove(old)
