"""A heap of deadlines whose entries may die before they are due."""

from __future__ import annotations

import heapq
from typing import Final

from pydanube_broker.subscription.chunk import Timer

# Lists with dead entries are swept when these are at least so many and more than half of all.
SWEEP_ENTRIES: Final = 64


class Timers:
    """Deadlines of flights, retries and dead letters. An entry whose mask has become empty is dead.

    Most flights end long before their deadline. Their entries are not searched for but left to die, and swept out
    when they are the greater part: amortised O(1), and the heap never holds much more than what lives.
    """

    __slots__ = ("_dead", "_entries", "_made")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Timer]] = []
        self._made = 0  # the order among equals
        self._dead = 0

    def set(self, when_ms: int, timer: Timer) -> None:
        self._made += 1
        heapq.heappush(self._entries, (when_ms, self._made, timer))

    def died(self) -> None:
        """A timer has lost its last message. Counts those that have fired too: a sweep may come early."""
        self._dead += 1
        if self._dead >= SWEEP_ENTRIES and self._dead * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].mask]
            heapq.heapify(self._entries)
            self._dead = 0

    def next_ms(self) -> int | None:
        """When the next living timer is due; None if there is none."""
        entries = self._entries
        while entries and not entries[0][2].mask:
            heapq.heappop(entries)
            self._dead = max(self._dead - 1, 0)
        return entries[0][0] if entries else None

    def due(self, now_ms: int) -> list[Timer]:
        """Take the living timers due by `now_ms`, in order. O(due)."""
        found: list[Timer] = []
        while (when := self.next_ms()) is not None and when <= now_ms:
            found.append(heapq.heappop(self._entries)[2])
        return found

    def clear(self) -> None:
        self._entries.clear()
        self._dead = 0
