"""The consumers of a shared subscription that may be sent messages, ordered by how many they hold."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final

from pydanube_broker.subscription.consumer import Consumer

NO_RANK: Final = -1  # below all ranks


class Takers:
    """Finds the next consumer in O(log consumers), however many there are.

    Consumers note themselves in `changed` when their credit or their number of messages changes. They are filed
    again at the next look-up, so changes between two look-ups cost little. The lists are moved in C.
    """

    __slots__ = ("_by_held", "_by_rank", "_filed", "_held", "_ranks", "changed", "in_flight")

    def __init__(self) -> None:
        self.changed: set[Consumer] = set()
        self.in_flight = 0  # messages that the consumers with credit hold
        self._filed: dict[Consumer, int] = {}  # those with credit, and how many messages they hold
        self._by_rank: dict[int, Consumer] = {}
        self._ranks: list[int] = []  # of all with credit, ascending
        self._by_held: dict[int, list[int]] = {}  # their ranks, ascending, by the number of messages held
        self._held: list[int] = []  # the keys of `_by_held`, ascending

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer that left."""
        self.changed.discard(consumer)
        self._file(consumer, None)

    def count(self) -> int:
        """Return how many consumers have credit."""
        self._settle()
        return len(self._filed)

    @property
    def idle(self) -> bool:
        """Return whether a consumer with credit holds nothing."""
        self._settle()
        return bool(self._held) and not self._held[0]

    def least_loaded(
        self, after: int, passed_over: Callable[[Consumer], bool] | None = None
    ) -> Consumer | None:
        """Return the consumer that holds the fewest messages, or among equals the next after the rank `after`.

        Those that are `passed_over` come last. O(consumers passed over).
        """
        self._settle()
        first = None
        for rank in self._in_order(after):
            consumer = self._by_rank[rank]
            if passed_over is None or not passed_over(consumer):
                return consumer
            first = first or consumer
        return first

    def in_turn(self, after: int, most: int) -> list[Consumer]:
        """Return up to `most` consumers with credit, the next after the rank `after` first."""
        self._settle()
        at = bisect_right(self._ranks, after)
        ranks = self._ranks[at : at + most]
        ranks += self._ranks[: min(at, most - len(ranks))]
        return [self._by_rank[rank] for rank in ranks]

    def _in_order(self, after: int) -> Iterator[int]:
        for held in self._held:
            ranks = self._by_held[held]
            at = bisect_right(ranks, after)
            for number in range(at, at + len(ranks)):
                yield ranks[number % len(ranks)]

    def _settle(self) -> None:
        for consumer in self.changed:
            self._file(consumer, consumer.in_flight if consumer.has_credit else None)
        self.changed.clear()

    def _file(self, consumer: Consumer, held: int | None) -> None:
        before = self._filed.get(consumer)
        if before == held:
            return
        rank = consumer.rank
        if before is None:
            insort(self._ranks, rank)
            self._by_rank[rank] = consumer
        else:
            self.in_flight -= before
            ranks = self._by_held[before]
            del ranks[bisect_left(ranks, rank)]
            if not ranks:
                del self._by_held[before]
                del self._held[bisect_left(self._held, before)]
        if held is None:
            del self._filed[consumer], self._by_rank[rank]
            del self._ranks[bisect_left(self._ranks, rank)]
            return
        self.in_flight += held
        self._filed[consumer] = held
        if held not in self._by_held:
            self._by_held[held] = []
            insort(self._held, held)
        insort(self._by_held[held], rank)
