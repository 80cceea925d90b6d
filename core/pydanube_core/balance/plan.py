"""Choose topics to move: the best single move or swap, then the next, with the earlier ones counted, until none helps.

A broker's excess is its load above the band, as a share of the mean. The cost of a state is the sum of the squares of
all excesses, so the worst counts most. Rules that each move keeps:

* No broker's highest utilisation of any resource rises above the highest before (a plan never raises the maximum), and
  none exceeds its capacity share.
* A topic moves once. One that moved recently stays.
* A move that gains less than `least_gain` of the cost is not made.

Each move is applied to the prediction before the next one is chosen, so that not all topics go to the broker that was
lightest at first. Rejected moves are counted by reason, so that "nothing to do" explains itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydanube_core.balance.facts import Policy, Resource, Snapshot, TopicLoad

_CANDIDATES: Final = 200  # topics of one broker that are considered, the heaviest first
_SWAPS: Final = 24  # of each side
_ROUNDING: Final = 1e-9


class Rejection(StrEnum):
    """Why a topic was not moved."""

    BALANCED = "balanced"
    TOO_FEW_BROKERS = "too_few_brokers"
    STALE_DATA = "stale_data"
    COOLING_DOWN = "cooling_down"
    ALREADY_MOVED = "already_moved"
    NO_GAIN = "no_gain"
    WOULD_RAISE_MAXIMUM = "would_raise_maximum"
    OVER_CAPACITY = "over_capacity"
    SAME_GROUP = "same_group"
    ONE_HEAVY_TOPIC = "one_heavy_topic"  # split it into partitions
    MOVES_USED_UP = "moves_used_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of one topic. `before`, `after`: utilisation of the bottleneck, or load if that is unknown."""

    topic: str
    source: str
    target: str
    load: Mapping[Resource, float]
    unread_messages: int
    pause_s: float
    source_before: float
    source_after: float
    target_before: float
    target_after: float
    swapped_with: str | None = None
    forced: bool = False  # from a broker that must not keep it


class State:
    """Loads while moves are tried."""

    def __init__(self, snapshot: Snapshot, resources: Sequence[Resource], policy: Policy) -> None:
        self.policy = policy
        self.resources = tuple(resources)
        self.brokers = {broker.broker_id: broker for broker in snapshot.brokers}
        self.accepting = [broker.broker_id for broker in snapshot.brokers if broker.accepts]
        self.load = {
            broker.broker_id: {r: broker.load.get(r, 0.0) for r in self.resources}
            for broker in snapshot.brokers
        }
        # If one capacity is unknown, brokers are compared by load, never by an assumed capacity.
        self.scale = {
            r: {b.broker_id: b.capacity[r] for b in snapshot.brokers}
            if all(r in b.capacity for b in snapshot.brokers)
            else {b.broker_id: 1.0 for b in snapshot.brokers}
            for r in self.resources
        }
        self.known = {r: all(r in b.capacity for b in snapshot.brokers) for r in self.resources}
        self.topics: dict[str, dict[str, TopicLoad]] = {broker.broker_id: {} for broker in snapshot.brokers}
        for topic in snapshot.topics:
            self.topics[topic.broker_id][topic.topic] = topic
        self.moved: set[str] = set()
        self._means = {r: self._mean(r) for r in self.resources}  # moves do not change them

    def used(self, broker: str, resource: Resource) -> float:
        return self.load[broker][resource] / self.scale[resource][broker]

    def mean(self, resource: Resource) -> float:
        """Return the mean load over the brokers that take topics."""
        return self._means[resource]

    def _mean(self, resource: Resource) -> float:
        total = sum(load[resource] for load in self.load.values())
        return (
            total / sum(self.scale[resource][broker] for broker in self.accepting) if self.accepting else 0.0
        )

    def cost(self, band: float) -> float:
        return sum(self.excess(broker, r, band) ** 2 for r in self.resources for broker in self.accepting)

    def excess(self, broker: str, resource: Resource, band: float) -> float:
        """Return a broker's load above the band, as a share of the mean."""
        mean = self.mean(resource)
        return max(0.0, self.used(broker, resource) / mean - 1 - band) if mean > 0 else 0.0

    def shift(self, topic: TopicLoad, source: str, target: str) -> None:
        for r in self.resources:
            amount = topic.load.get(r, 0.0)
            self.load[source][r] = max(0.0, self.load[source][r] - amount)
            self.load[target][r] += amount
        del self.topics[source][topic.topic]
        self.topics[target][topic.topic] = topic


class _Planner:
    def __init__(self, state: State, bottleneck: Resource, policy: Policy) -> None:
        self.state = state
        self.bottleneck = bottleneck
        self.policy = policy
        self.moves: list[Move] = []
        self.rejected: dict[Rejection, int] = {}

    def reject(self, reason: Rejection, count: int = 1) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + count

    # -- hard: brokers that must not keep topics --------------------------------------------------------------

    def empty_leaving(self) -> None:
        state = self.state
        for broker in state.brokers.values():
            if broker.accepts or not state.accepting:
                continue
            for topic in sorted(state.topics[broker.broker_id].values(), key=self._weight, reverse=True):
                target = min(state.accepting, key=lambda one: (state.used(one, self.bottleneck), one))
                self._carry_out(topic, broker.broker_id, target, forced=True)

    # -- soft: the band ---------------------------------------------------------------------------------------

    def level(self) -> None:
        state, policy = self.state, self.policy
        while True:
            cost = state.cost(policy.target_band)
            if cost <= _ROUNDING:
                return
            if len(self.moves) >= policy.max_moves:
                self.reject(Rejection.MOVES_USED_UP)
                return
            found = self._best_move(cost) or self._best_swap(cost)
            if found is None:
                return
            for topic, source, target, other in found:
                self._carry_out(topic, source, target, swapped_with=other)

    def _sources(self) -> list[str]:
        state, band = self.state, self.policy.target_band
        over = {b: max(state.excess(b, r, band) for r in state.resources) for b in state.accepting}
        return sorted((b for b in state.accepting if over[b] > 0), key=lambda b: -over[b])

    def _weight(self, topic: TopicLoad) -> tuple[float, str]:
        return (
            sum(topic.load.get(r, 0.0) / max(self.state.mean(r), _ROUNDING) for r in self.state.resources),
            topic.topic,
        )

    def _movable(self, broker: str, most: int) -> list[TopicLoad]:
        """Return the topics that may leave a broker, heaviest first."""
        found = []
        for topic in sorted(self.state.topics[broker].values(), key=self._weight, reverse=True):
            if topic.cooling_down:
                self.reject(Rejection.COOLING_DOWN)
            elif topic.topic in self.state.moved:
                self.reject(Rejection.ALREADY_MOVED)
            else:
                found.append(topic)
                if len(found) == most:
                    break
        return found

    def _best_move(self, cost: float) -> list[tuple[TopicLoad, str, str, str | None]] | None:
        state = self.state
        best: tuple[float, TopicLoad, str, str] | None = None
        for source in self._sources():
            topics = self._movable(source, _CANDIDATES)
            for topic in topics:
                for target in state.accepting:
                    if target == source:
                        continue
                    refused = self._refused(topic, target) or self._raises([(topic, source, target)])
                    after = None if refused else self._cost_after(cost, [(topic, source, target)])
                    if after is None or cost - after < self.policy.least_gain * cost:
                        self.reject(refused or Rejection.NO_GAIN)
                    elif best is None or after < best[0] - _ROUNDING:
                        best = (after, topic, source, target)
            if best is not None:
                break
            if len(state.topics[source]) == 1:
                self.reject(Rejection.ONE_HEAVY_TOPIC)
        return None if best is None else [(best[1], best[2], best[3], None)]

    def _best_swap(self, cost: float) -> list[tuple[TopicLoad, str, str, str | None]] | None:
        state = self.state
        best: tuple[float, TopicLoad, TopicLoad, str, str] | None = None
        for source in self._sources()[:2]:
            for target in state.accepting:
                if target == source:
                    continue
                for one in self._movable(source, _SWAPS):
                    for other in self._movable(target, _SWAPS):
                        steps = [(one, source, target), (other, target, source)]
                        refused = (
                            self._refused(one, target) or self._refused(other, source) or self._raises(steps)
                        )
                        after = None if refused else self._cost_after(cost, steps)
                        if after is None or cost - after < self.policy.least_gain * cost:
                            self.reject(refused or Rejection.NO_GAIN)
                        elif best is None or after < best[0] - _ROUNDING:
                            best = (after, one, other, source, target)
        if best is None:
            return None
        _, one, other, source, target = best
        return [(one, source, target, other.topic), (other, target, source, one.topic)]

    def _refused(self, topic: TopicLoad, target: str) -> Rejection | None:
        if topic.group is not None:
            here = sum(each.group == topic.group for each in self.state.topics[target].values())
            there = sum(each.group == topic.group for each in self.state.topics[topic.broker_id].values())
            if here + 1 > max(there, 1):
                return Rejection.SAME_GROUP
        return None

    def _raises(self, steps: Sequence[tuple[TopicLoad, str, str]]) -> Rejection | None:
        """Return the rejection if the steps together raise a maximum, or take a broker above its share of capacity."""
        state = self.state
        for r in state.resources:
            highest = max(state.used(broker, r) for broker in state.accepting)
            for broker, amount in _change(steps, r).items():
                after = (state.load[broker][r] + amount) / state.scale[r][broker]
                if amount > 0 and after > highest * (1 + _ROUNDING):
                    return Rejection.WOULD_RAISE_MAXIMUM
                if amount > 0 and state.known[r] and after > self.policy.capacity_share:
                    return Rejection.OVER_CAPACITY
        return None

    def _cost_after(self, cost: float, steps: Sequence[tuple[TopicLoad, str, str]]) -> float:
        """Return the cost after the steps. Only their brokers change, means do not."""
        state, band = self.state, self.policy.target_band
        for r in state.resources:
            mean = state.mean(r)
            if mean <= 0:
                continue
            for broker, amount in _change(steps, r).items():
                after = max(0.0, state.load[broker][r] + amount) / state.scale[r][broker]
                cost += max(0.0, after / mean - 1 - band) ** 2 - state.excess(broker, r, band) ** 2
        return cost

    def _carry_out(
        self,
        topic: TopicLoad,
        source: str,
        target: str,
        *,
        swapped_with: str | None = None,
        forced: bool = False,
    ) -> None:
        state, r = self.state, self.bottleneck
        before = state.used(source, r), state.used(target, r)
        state.shift(topic, source, target)
        state.moved.add(topic.topic)
        self.moves.append(
            Move(
                topic=topic.topic,
                source=source,
                target=target,
                load=dict(topic.load),
                unread_messages=topic.unread_messages,
                pause_s=self.policy.pause_s,
                source_before=before[0],
                source_after=state.used(source, r),
                target_before=before[1],
                target_after=state.used(target, r),
                swapped_with=swapped_with,
                forced=forced,
            )
        )


def _change(steps: Sequence[tuple[TopicLoad, str, str]], resource: Resource) -> dict[str, float]:
    """Return the load that the steps add to each broker, or take off it."""
    change: dict[str, float] = {}
    for topic, source, target in steps:
        amount = topic.load.get(resource, 0.0)
        change[source] = change.get(source, 0.0) - amount
        change[target] = change.get(target, 0.0) + amount
    return change


def plan_moves(
    state: State, bottleneck: Resource, policy: Policy, *, level: bool
) -> tuple[list[Move], dict[Rejection, int]]:
    """Plan moves off brokers that must not keep topics and, with `level`, moves that level the load. Changes `state`."""
    planner = _Planner(state, bottleneck, policy)
    planner.empty_leaving()
    if level:
        planner.level()
    return planner.moves, planner.rejected
