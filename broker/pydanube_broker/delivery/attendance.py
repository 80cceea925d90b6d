"""The consumers of a subscription: the names of those attached, the last departures, and the last answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from pydanube_core.diagnosis.views import Departure, Refusal

from pydanube_broker.delivery.link import ConsumerLink

MOST_DEPARTURES: Final = 16  # per subscription, to show that its consumers come and go
MOST_REFUSALS: Final = 16  # per subscription, to show that others cannot attach


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAnswer:
    """The last acknowledgement or nack of a subscription: when, and by which consumer."""

    at_ms: int
    name: str


class Attendance:
    """See the module. Mutable, owned by its pump, whose `links` it reads."""

    __slots__ = ("_answered", "_links", "departure", "departures", "names", "refusals")

    def __init__(self, links: Mapping[int, ConsumerLink] = MappingProxyType({})) -> None:
        self.names: dict[int, str] = {}
        self.departure: Departure | None = None  # the last one, None if the broker caused it
        self.departures: tuple[Departure, ...] = ()  # the last ones, oldest first
        self.refusals: tuple[Refusal, ...] = ()  # the last ones, oldest first
        self._answered: LastAnswer | None = None  # by a consumer that has left
        self._links = links

    def last_answer(self) -> LastAnswer | None:
        """Return the last answer since the broker started. Computed on demand, so acks cost nothing more."""
        answers = [
            LastAnswer(at_ms=link.answered_at_ms, name=self.names.get(consumer_id, ""))
            for consumer_id, link in self._links.items()
            if link.answered_at_ms is not None
        ]
        answers += [] if self._answered is None else [self._answered]
        return max(answers, key=lambda one: one.at_ms, default=None)

    def leave(self, consumer_id: int) -> str:
        """Remove a consumer's name, before its link goes. Return the name."""
        name = self.names.pop(consumer_id, "")
        link = self._links.get(consumer_id)
        if link is not None and link.answered_at_ms is not None:
            own = LastAnswer(at_ms=link.answered_at_ms, name=name)
            self._answered = max(self._answered or own, own, key=lambda one: one.at_ms)
        return name

    def refused(self, refusal: Refusal) -> None:
        self.refusals = (*self.refusals[1 - MOST_REFUSALS :], refusal)

    def came(self, at_ms: int) -> None:
        """Note that a consumer attaches, before its link is there."""
        if not self._links and self.departure is not None:
            self.departures = (*self.departures[:-1], replace(self.departure, back_at_ms=at_ms))

    def left(self, departure: Departure) -> None:
        self.departure = departure
        self.departures = (*self.departures[1 - MOST_DEPARTURES :], departure)
