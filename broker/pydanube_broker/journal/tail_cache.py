"""The newest batches of all topics, in memory, bounded in bytes for the whole broker.

A consumer that keeps up is served from here without reading a file. Batches are evicted in the order in which they
were added, across all topics. A topic's part of the cache is therefore always its newest batches without a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

# Memory of the objects around a batch's bytes, measured by tracemalloc. For lone small messages it exceeds their bytes:
# a cache that did not count it took twice its limit.
_AROUND_BYTES: Final = 440
_PIECE_BYTES: Final = 340  # for each further buffer, a memoryview of the received message
_COMPACT_AT: Final = 1024  # evicted entries at the front of a topic's list before they are removed


class CachedBatch(NamedTuple):
    """A stored batch: `buffers` joined are broker part, producer part and body.

    A tuple is created in a third of the time of a frozen dataclass, and each append or read creates one per batch.
    """

    base: int
    end: int  # exclusive
    count: int  # type: ignore[assignment]  # it hides the tuple's method
    append_time_ms: int
    stored_bytes: int
    buffers: tuple[bytes | memoryview, ...]


class _TopicTail:
    __slots__ = ("batches", "ends", "first")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.batches: list[CachedBatch | None] = []
        self.first = 0


class TailCache:
    """Bounded in bytes: adding a batch evicts the oldest batches of the broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._topics: dict[int, _TopicTail] = {}
        self._order: deque[tuple[int, int]] = deque()  # (topic id, bytes), oldest first
        self._bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def add(self, topic_id: int, batch: CachedBatch) -> None:
        tail = self._topics.get(topic_id)
        if tail is None:
            tail = self._topics[topic_id] = _TopicTail()
        tail.ends.append(batch.end)
        tail.batches.append(batch)
        cost = batch.stored_bytes + _AROUND_BYTES + _PIECE_BYTES * (len(batch.buffers) - 1)
        self._order.append((topic_id, cost))
        self._bytes += cost
        while self._bytes > self._limit and len(self._order) > 1:
            self._evict()

    def _evict(self) -> None:
        topic_id, cost = self._order.popleft()
        self._bytes -= cost
        tail = self._topics.get(topic_id)
        if tail is None:
            return  # the topic was dropped, and only its cost was left
        tail.batches[tail.first] = None
        tail.first += 1
        if tail.first == len(tail.batches):
            del self._topics[topic_id]
        elif tail.first >= _COMPACT_AT and tail.first * 2 > len(tail.batches):
            del tail.batches[: tail.first], tail.ends[: tail.first]
            tail.first = 0

    def drop(self, topic_id: int) -> None:
        """Forget a deleted topic. Ids are never reused, so its entries in the order are skipped."""
        self._topics.pop(topic_id, None)

    def read(self, topic_id: int, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None:
        """Return batches from the one that holds `offset`, up to `end`: at least one, at most about `max_bytes`.

        Returns:
            None if the cache does not reach back to `offset`.
        """
        tail = self._topics.get(topic_id)
        if tail is None:
            return None
        at = bisect_right(tail.ends, offset, tail.first)
        if at == tail.first:
            first = tail.batches[at] if at < len(tail.batches) else None
            if first is None or first.base > offset:
                return None
        found: list[CachedBatch] = []
        size = 0
        for i in range(at, len(tail.batches)):
            batch = tail.batches[i]
            assert batch is not None
            if batch.base >= end or (found and size + batch.stored_bytes > max_bytes):
                break
            found.append(batch)
            size += batch.stored_bytes
        return found
