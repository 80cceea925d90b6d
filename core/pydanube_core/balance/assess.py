"""Judge how evenly a cluster is loaded: one score for reports, leader and consoles.

Utilisation is load ÷ capacity. If a capacity is unknown, brokers are compared by load, and values that depend on the
capacity are None, because no default capacity is assumed. A resource counts once a broker uses more of it than its
floor. The bottleneck is the resource whose busiest broker is fullest, or furthest above the mean.

| verdict | holds when |
|---|---|
| `UNDECIDED` | fewer than 80 % of the brokers were sampled within two intervals, or a broker's load is unknown |
| `OVERLOADED` | a broker is beyond its share of capacity, and no move brings it below |
| `IMBALANCED` | a broker is more than 20 % above the mean, beyond its share, or keeps topics it must not keep |
| `BALANCED` | otherwise |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydanube_core.balance.facts import BrokerLoad, Policy, Resource, Snapshot
from pydanube_core.balance.measures import Spread, robust_z, spread_of
from pydanube_core.balance.plan import Move, Rejection, State, plan_moves
from pydanube_core.diagnosis.skew import hot_parts
from pydanube_core.units import counted

_WORST_RATIO: Final = 2.0  # max ÷ mean at which a resource loses all of its points
_POINTS: Final = {
    "bottleneck": 30.0,
    "other": 10.0,
    "capacity": 20.0,
    "leaving": 20.0,
    "count": 5.0,
    "hot": 5.0,
}
_MOST_FOR_CAPACITY: Final = 40.0


class BalanceVerdict(StrEnum):
    UNDECIDED = "UNDECIDED"
    BALANCED = "BALANCED"
    IMBALANCED = "IMBALANCED"
    OVERLOADED = "OVERLOADED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduction:
    points: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceView:
    """One resource over the brokers. `used`: broker → utilisation, or load where `capacity_known` is false.

    `must_move`: minimum that any plan has to move, in the resource's unit: the sum of the loads above the band.
    """

    resource: Resource
    counts: bool  # a broker uses more than the floor
    capacity_known: bool
    used: Mapping[str, float]
    spread: Spread
    robust_z: Mapping[str, float | None]
    upper: float
    lower: float
    must_move: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The bottleneck with another number of brokers, load spread evenly. None: capacity is unknown."""

    brokers: int
    mean_used: float | None
    fits: bool | None  # below the capacity share


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    verdict: BalanceVerdict
    because: str
    score: float | None = None  # 0 to 100. None: undecided
    deductions: Sequence[Deduction] = ()
    bottleneck: Resource | None = None
    resources: Mapping[Resource, ResourceView] = field(default_factory=dict)
    hot_topics: Sequence[str] = ()
    moves: Sequence[Move] = ()
    rejected: Mapping[Rejection, int]
    highest_before: float | None = None  # of the bottleneck
    highest_after: float | None = None
    what_if: Sequence[WhatIf] = ()
    missing: Sequence[str] = ()  # brokers whose samples are old
    epoch: int = 0


def assess(snapshot: Snapshot, policy: Policy) -> Assessment:
    """Judge one snapshot and plan moves for it. The result does not depend on broker names or the unit of load."""
    stale = [b.broker_id for b in snapshot.brokers if b.age_s > 2 * snapshot.interval_s]
    fresh = len(snapshot.brokers) - len(stale)
    if not snapshot.brokers or fresh < policy.fresh_share * len(snapshot.brokers):
        return _undecided(snapshot, stale, _no_news(snapshot, stale, fresh))
    unknown = [f"broker {b.broker_id}: {b.unknown}" for b in snapshot.brokers if b.unknown is not None]
    if unknown:
        return _undecided(snapshot, stale, f"some loads are missing: {'; '.join(unknown[:5])}")
    accepting = [broker for broker in snapshot.brokers if broker.accepts]
    views = {r: _view(r, snapshot, accepting, policy) for r in Resource}
    active = [r for r, view in views.items() if view.counts]
    bottleneck = max(active, key=lambda r: _fullness(views[r]), default=None)
    leaving = {b.broker_id for b in snapshot.brokers if not b.accepts}
    stranded = sum(topic.broker_id in leaving for topic in snapshot.topics)
    full = [
        (b, r)
        for r in active
        if views[r].capacity_known
        for b, used in views[r].used.items()
        if used > policy.capacity_share
    ]
    uneven = [
        (b, r) for r in active for b, used in views[r].used.items() if used > views[r].upper * (1 + 1e-9)
    ]
    hot = _hot_topics(snapshot, bottleneck)
    deductions = _deductions(snapshot, accepting, views, bottleneck, full, stranded, hot, policy)
    rejected: dict[Rejection, int] = {}
    moves: list[Move] = []
    state = State(snapshot, active or [Resource.CPU], policy)
    enough = len(accepting) >= policy.min_brokers
    if enough and (uneven or full or stranded):
        moves, rejected = plan_moves(state, bottleneck or Resource.CPU, policy, level=bool(uneven or full))
    elif not enough:
        rejected[Rejection.TOO_FEW_BROKERS] = 1
    else:
        rejected[Rejection.BALANCED] = 1
    still_full = any(
        state.known[r] and state.used(b, r) > policy.capacity_share for r in active for b in state.accepting
    )
    verdict = BalanceVerdict.IMBALANCED if uneven or full or stranded else BalanceVerdict.BALANCED
    if full and still_full:
        verdict = BalanceVerdict.OVERLOADED
    before = None if bottleneck is None else views[bottleneck].spread.highest
    after = (
        None
        if bottleneck is None
        else max((state.used(b, bottleneck) for b in state.accepting), default=None)
    )
    return Assessment(
        verdict=verdict,
        because=_because(verdict, views, bottleneck, full, uneven, stranded, accepting),
        score=max(0.0, 100.0 - sum(each.points for each in deductions)),
        deductions=deductions,
        bottleneck=bottleneck,
        resources=views,
        hot_topics=hot,
        moves=moves,
        rejected=rejected,
        highest_before=before,
        highest_after=after,
        what_if=_what_if(accepting, bottleneck, policy),
        missing=stale,
        epoch=snapshot.epoch,
    )


def _no_news(snapshot: Snapshot, stale: Sequence[str], fresh: int) -> str:
    if not snapshot.brokers:
        return "no broker was sampled"
    return (
        f"{fresh} of {len(snapshot.brokers)} brokers were sampled within {2 * snapshot.interval_s:g} s: "
        f"no news of {', '.join(stale)}"
    )


def _undecided(snapshot: Snapshot, stale: Sequence[str], because: str) -> Assessment:
    return Assessment(
        verdict=BalanceVerdict.UNDECIDED,
        because=because,
        rejected={Rejection.STALE_DATA: 1},
        missing=stale,
        epoch=snapshot.epoch,
    )


def _view(
    resource: Resource, snapshot: Snapshot, accepting: Sequence[BrokerLoad], policy: Policy
) -> ResourceView:
    known = all(resource in broker.capacity for broker in snapshot.brokers)
    scale = {b.broker_id: b.capacity[resource] if known else 1.0 for b in accepting}
    used = {b.broker_id: b.load.get(resource, 0.0) / scale[b.broker_id] for b in accepting}
    total = sum(b.load.get(resource, 0.0) for b in snapshot.brokers)
    mean = total / sum(scale.values()) if scale else 0.0
    upper, lower = mean * (1 + policy.start_band), mean * (1 - policy.start_band)
    highest_load = max((b.load.get(resource, 0.0) for b in snapshot.brokers), default=0.0)
    return ResourceView(
        resource=resource,
        counts=bool(accepting) and highest_load > policy.floors.get(resource, 0.0),
        capacity_known=known,
        used=used,
        spread=spread_of(list(used.values()) or [0.0]),
        robust_z=dict(zip(used, robust_z(list(used.values())), strict=True)) if used else {},
        upper=upper,
        lower=lower,
        must_move=sum(max(0.0, value - upper) * scale[broker] for broker, value in used.items()),
    )


def _fullness(view: ResourceView) -> tuple[bool, float]:
    """Return how full a resource is, if its capacity is known, else how uneven. The highest is the bottleneck."""
    if view.capacity_known:
        return True, view.spread.highest
    return False, view.spread.max_over_mean or 0.0


def _hot_topics(snapshot: Snapshot, bottleneck: Resource | None) -> list[str]:
    if bottleneck is None:
        return []
    loads = [topic.load.get(bottleneck, 0.0) for topic in snapshot.topics]
    return [snapshot.topics[i].topic for i in hot_parts(loads)][:10]


def _deductions(
    snapshot: Snapshot,
    accepting: Sequence[BrokerLoad],
    views: Mapping[Resource, ResourceView],
    bottleneck: Resource | None,
    full: Sequence[tuple[str, Resource]],
    stranded: int,
    hot: Sequence[str],
    policy: Policy,
) -> list[Deduction]:
    found: list[Deduction] = []
    if stranded:
        found.append(Deduction(points=_POINTS["leaving"], because=_stranded(stranded)))
    if full:
        brokers = len({broker for broker, _ in full})
        points = min(_MOST_FOR_CAPACITY, _POINTS["capacity"] * brokers)
        found.append(
            Deduction(points=points, because=f"{brokers} brokers use more than {policy.capacity_share:.0%}")
        )
    for resource, view in views.items():
        ratio = view.spread.max_over_mean
        if not view.counts or ratio is None or ratio <= 1 + policy.start_band:
            continue
        share = min(1.0, (ratio - 1 - policy.start_band) / (_WORST_RATIO - 1 - policy.start_band))
        points = share * _POINTS["bottleneck" if resource is bottleneck else "other"]
        found.append(
            Deduction(points=points, because=f"{resource}: the busiest broker has {ratio:.2f} times the mean")
        )
    counts = {broker.broker_id: 0 for broker in accepting}
    for topic in snapshot.topics:
        if topic.broker_id in counts:
            counts[topic.broker_id] += 1
    ratio = spread_of(list(counts.values()) or [0.0]).max_over_mean
    if len(snapshot.topics) >= 10 * len(accepting) and ratio is not None and ratio > _WORST_RATIO:
        found.append(
            Deduction(
                points=_POINTS["count"], because=f"one broker has {ratio:.1f} times the mean number of topics"
            )
        )
    if hot:
        found.append(
            Deduction(
                points=_POINTS["hot"],
                because=f"{counted(len(hot), 'topic carries', 'topics carry')} far more than the others",
            )
        )
    return found


def _because(
    verdict: BalanceVerdict,
    views: Mapping[Resource, ResourceView],
    bottleneck: Resource | None,
    full: Sequence[tuple[str, Resource]],
    uneven: Sequence[tuple[str, Resource]],
    stranded: int,
    accepting: Sequence[BrokerLoad],
) -> str:
    if bottleneck is None and not stranded:
        return f"nothing is used enough to matter on {counted(len(accepting), 'broker')}"
    if bottleneck is None or (stranded and not uneven and not full):
        return _stranded(stranded)
    view = views[bottleneck]
    ratio = view.spread.max_over_mean or 0.0
    highest = f"{view.spread.highest:.0%} used" if view.capacity_known else _a_second(view.spread.highest)
    if verdict is BalanceVerdict.OVERLOADED:
        brokers = len({broker for broker, _ in full})
        return f"{brokers} of {len(accepting)} brokers are too full of {full[0][1]}, and no move helps: add a broker"
    if verdict is BalanceVerdict.BALANCED:
        return (
            f"{bottleneck} is the bottleneck, the busiest broker has {ratio:.2f} times the mean ({highest})"
        )
    worst = uneven[0][1] if uneven else bottleneck
    ratio = views[worst].spread.max_over_mean or 0.0
    return f"{worst}: the busiest of {len(accepting)} brokers has {ratio:.2f} times the mean ({highest} of {bottleneck})"


def _stranded(topics: int) -> str:
    return counted(
        topics, "topic is on a broker that must not keep it", "topics are on brokers that must not keep them"
    )


def _a_second(load: float) -> str:
    return f"{load:,.0f} a second" if load >= 10 else f"{load:.2g} a second"


def _what_if(accepting: Sequence[BrokerLoad], bottleneck: Resource | None, policy: Policy) -> list[WhatIf]:
    """Return the bottleneck with one broker less, and with one more of average capacity."""
    found = []
    for count in (len(accepting) - 1, len(accepting), len(accepting) + 1):
        if count < 1 or bottleneck is None:
            continue
        known = all(bottleneck in broker.capacity for broker in accepting)
        mean_used = None
        if known:
            capacity = sum(broker.capacity[bottleneck] for broker in accepting) / len(accepting)
            mean_used = sum(broker.load.get(bottleneck, 0.0) for broker in accepting) / (capacity * count)
        fits = None if mean_used is None else mean_used <= policy.capacity_share
        found.append(WhatIf(brokers=count, mean_used=mean_used, fits=fits))
    return found
