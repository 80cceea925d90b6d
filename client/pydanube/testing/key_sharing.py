"""Key-shared subscriptions of the in-memory cluster: one key, one consumer, in order.

A key belongs to the consumer that a hash of both prefers, among those whose filters take it. Messages are looked at
one by one and wait, in the order of offsets, until their owner takes them; while another consumer holds a message of
a key, or one of it waits for its delay, later ones of that key wait too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from pydanube_core.batch import BatchView
from pydanube_core.errors import NotDelivered

from pydanube.testing.log import MemoryTopic
from pydanube.testing.subscription import Attached, MemorySubscription, Part

_WAITING: Final = 16_384  # messages looked at and not sent, as in the broker

Key = bytes | None


class KeySharedSubscription(MemorySubscription):
    """One key-shared subscription of one concrete topic."""

    def __init__(self, topic: MemoryTopic, name: str, start: int, sessions: Callable[[], int]) -> None:
        super().__init__(topic, name, "key-shared", start, sessions)
        self._filters: dict[Attached, tuple[str, ...]] = {}
        self._seen_keys: dict[int, list[Key]] = {}  # of a batch, by its base
        self._delayed: set[int] = set()

    def filter(self, consumer: Attached, patterns: Iterable[str]) -> None:
        """Which keys a consumer takes; said before it joins."""
        self._filters[consumer] = tuple(patterns)

    def leave(self, consumer: Attached) -> None:
        self._filters.pop(consumer, None)
        super().leave(consumer)

    def nacked(
        self, consumer: Attached, session: int, ranges: Sequence[tuple[int, int]], delay_ms: int
    ) -> None:
        if session == consumer.session and delay_ms:
            self._delayed.update(offset for first, end in ranges for offset in range(first, end))
        super().nacked(consumer, session, ranges, delay_ms)

    def seek(self, position: str) -> None:
        self._delayed.clear()
        super().seek(position)

    def acked(self, consumer: Attached, session: int, ranges: Sequence[tuple[int, int]]) -> int:
        waiting = {first for first, _, _ in self._again}
        for first, end in ranges if session == consumer.session else ():
            if not waiting.isdisjoint(range(first, end)) and not self._holds(consumer, first, end):
                raise NotDelivered(f"{self.topic.name}: offset {first} was never delivered", offset=first)
        return super().acked(consumer, session, ranges)

    def _holds(self, consumer: Attached, first: int, end: int) -> bool:
        return any(low < end and first < high for low, high, _ in self._flights[consumer])

    def _put_back(self, parts: Sequence[Part]) -> None:
        singles = [(offset, offset + 1, count) for first, end, count in parts for offset in range(first, end)]
        self._delayed.difference_update(offset for offset, _, _ in singles)
        super()._put_back(singles)

    def _take(self, consumer: Attached, limit: int) -> Part | None:
        self._look()
        held = {
            self._key(offset)
            for other, parts in self._flights.items()
            for first, end, _ in parts
            for offset in range(first, end)
            if other is not consumer or offset in self._delayed
        }
        for at, (first, end, count) in enumerate(self._again):
            key = self._key(first)
            if key in held or self._owner(key) is not consumer:
                if key is not None:
                    held.add(key)  # what follows of it waits behind it
                continue
            del self._again[at]
            return first, end, count
        return None

    def _look(self) -> None:
        """Take notice of further messages; one that nobody here takes counts as acknowledged."""
        while len(self._again) < _WAITING and self.topic.batch_at(self.position) is not None:
            offset = self.position
            self.position += 1
            if self._owner(self._key(offset)) is not None:
                self._again.append((offset, offset + 1, 1))

    def _key(self, offset: int) -> Key:
        stored = self.topic.batch_at(offset)
        assert stored is not None
        keys = self._seen_keys.get(stored.base)
        if keys is None:
            found = BatchView.stored(stored.data).keys()
            keys = self._seen_keys[stored.base] = (
                [None] * (stored.end - stored.base) if found is None else found
            )
        return keys[offset - stored.base]

    def _owner(self, key: Key) -> Attached | None:
        text = "" if key is None else key.decode("utf-8", "replace")
        fitting = [
            consumer
            for consumer in self.consumers
            if not (patterns := self._filters.get(consumer, ()))
            or any(fnmatchcase(text, pattern) for pattern in patterns)
        ]
        seed = b"" if key is None else key
        return max(
            fitting,
            key=lambda consumer: hashlib.blake2b(seed + b"\0" + consumer.name.encode()).digest(),
            default=None,
        )
