"""Choose the broker for a topic without an owner. Pure except for the random draw.

Partitions of one topic spread over zones first. Two brokers in the zones with the fewest partitions are picked at
random, and the less busy one gets the topic: by their last reported loads if one is clearly busier, else by the
number of topics. A load is scaled up by the topics that arrived since its report, so that a thousand topics created in
one moment do not all go to the same broker.

Power of two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydanube_core.balance import Resource

from pydanube_broker.cluster.ids import BrokerId

#: loads below these floors count as none: share of the broker's processors, bytes per second, as in the load manager
FLOORS: Final[Mapping[str, float]] = {
    Resource.CPU: 0.05,
    Resource.NETWORK_IN: 1 << 20,
    Resource.NETWORK_OUT: 1 << 20,
}
CLEARLY: Final = 1.2  # ratio of loads: the load manager does not balance smaller differences either


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A broker that takes topics, in the view of another broker."""

    topics: int  # number that it has, or is about to have
    zone: str = ""
    load: Mapping[str, float] | None = None  # last reported, None if never
    topics_then: int = 0  # number at the time of the report

    def expected(self, resource: str) -> float:
        """Return its load in multiples of the floor. Topics that arrived since its report count as busy as the others."""
        reported = 0.0 if self.load is None else self.load.get(resource, 0.0)
        return reported / FLOORS[resource] * (self.topics + 1) / (self.topics_then + 1)


def rounded_load(load: Mapping[str, float]) -> dict[str, float]:
    """Round a load to two digits and leave out loads below the floors, so that the reported load seldom changes."""
    return {name: float(f"{value:.2g}") for name, value in load.items() if value >= FLOORS[name]}


def choose_owner(
    standings: Mapping[BrokerId, Candidate], beside: Mapping[str, int], draw: random.Random
) -> BrokerId:
    """Choose the broker that gets a topic.

    Args:
        standings: the brokers that take topics, at least one.
        beside: zone → number of partitions of the same topic in it.
    """
    fewest = min(beside.get(each.zone, 0) for each in standings.values())
    members = [broker for broker, each in standings.items() if beside.get(each.zone, 0) == fewest]
    pair = members if len(members) <= 2 else draw.sample(members, 2)
    quieter = _quieter(pair[0], pair[-1], standings)
    return quieter or min(pair, key=lambda broker: (standings[broker].topics, draw.random()))


def _quieter(one: BrokerId, other: BrokerId, standings: Mapping[BrokerId, Candidate]) -> BrokerId | None:
    """Return the clearly less busy one of two brokers, or None if neither is, or one has not reported."""
    pair = [standings[one], standings[other]]
    if any(each.load is None for each in pair):
        return None
    decisive = max(FLOORS, key=lambda resource: max(each.expected(resource) for each in pair))
    ours, theirs = (each.expected(decisive) for each in pair)
    if max(ours, theirs) < 1 or max(ours, theirs) < CLEARLY * min(ours, theirs):
        return None
    return one if ours < theirs else other
