"""Which broker gets a topic that has no owner; pure but for the draw.

Partitions of one topic spread over zones first. Among the brokers of those zones two are picked at random, and the one that is less busy
gets it: by what both told last of their load, where one is clearly busier, else by the number of topics. A load counts as grown by
the topics that came since it was told, so that of a thousand topics made in one moment not all go to the same broker.

Power of two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydanube_core.balance import Resource

from pydanube_broker.cluster.ids import BrokerId

#: below it nobody is busy: a share of the broker's processors, bytes a second; as the load manager has it
FLOORS: Final[Mapping[str, float]] = {
    Resource.CPU: 0.05,
    Resource.NETWORK_IN: 1 << 20,
    Resource.NETWORK_OUT: 1 << 20,
}
CLEARLY: Final = 1.2  # times as busy: less is as even as the load manager leaves it


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A broker that takes topics, as the others know it."""

    topics: int  # that it has, or is about to have
    zone: str = ""
    load: Mapping[str, float] | None = None  # as it told last; None: it never did
    topics_then: int = 0  # when it told

    def expected(self, resource: str) -> float:
        """Return its load now, in multiples of the floor, if topics that arrived since its report are as busy as the others."""
        told = 0.0 if self.load is None else self.load.get(resource, 0.0)
        return told / FLOORS[resource] * (self.topics + 1) / (self.topics_then + 1)


def told_load(load: Mapping[str, float]) -> dict[str, float]:
    """Return the load that a broker reports to the others: two digits, without loads below the floors, so it seldom changes."""
    return {name: float(f"{value:.2g}") for name, value in load.items() if value >= FLOORS[name]}


def choose_owner(
    standings: Mapping[BrokerId, Candidate], beside: Mapping[str, int], draw: random.Random
) -> BrokerId:
    """The broker that gets a topic.

    Args:
        standings: who takes topics; not empty.
        beside: zone → how many partitions of the same topic it has.
    """
    fewest = min(beside.get(each.zone, 0) for each in standings.values())
    members = [broker for broker, each in standings.items() if beside.get(each.zone, 0) == fewest]
    pair = members if len(members) <= 2 else draw.sample(members, 2)
    quieter = _quieter(pair[0], pair[-1], standings)
    return quieter or min(pair, key=lambda broker: (standings[broker].topics, draw.random()))


def _quieter(one: BrokerId, other: BrokerId, standings: Mapping[BrokerId, Candidate]) -> BrokerId | None:
    """Return the one of two brokers that is clearly less busy; None if neither is, or one has not reported."""
    pair = [standings[one], standings[other]]
    if any(each.load is None for each in pair):
        return None
    decisive = max(FLOORS, key=lambda resource: max(each.expected(resource) for each in pair))
    ours, theirs = (each.expected(decisive) for each in pair)
    if max(ours, theirs) < 1 or max(ours, theirs) < CLEARLY * min(ours, theirs):
        return None
    return one if ours < theirs else other
