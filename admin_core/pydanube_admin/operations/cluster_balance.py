"""How evenly the brokers are loaded, and moves that improve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydanube_core.balance import Move, excess_of, moves_by_number
from pydanube_core.errors import ClusterError, Conflict, LastBroker
from pydanube_core.names import TopicName
from pydanube_core.units import format_time

from pydanube_admin.engine.balancer import Balancer, Judged
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry, pinned_ids
from pydanube_admin.engine.models import Change, Effect, NotSeen, Place, Request, Result
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.permission import Sight
from pydanube_admin.operations.topic_moves import undo_move

FACTS_AT_ONCE: Final = 200  # topics whose facts are read in one call


class BalanceRequest(Request):
    by: Annotated[
        Literal["load", "topics"],
        Field(description="topics: equal numbers"),
    ] = "load"


class RebalanceRequest(BalanceRequest):
    max_moves: Annotated[
        int | None,
        Field(ge=1, le=1000, description="Default: balance.max_moves"),
    ] = None


class BrokerLoadItem(Result):
    """One broker. Loads: processors that are busy, bytes a second."""

    broker_id: str
    takes_topics: bool
    sampled_s_ago: float | None  # None: it did not answer
    load: dict[str, float]
    capacity: dict[str, float]  # capacity of each resource that has one
    topics_with_load: int


class ResourceItem(Result):
    counts: bool  # a broker uses more than the floor
    max_over_mean: float | None
    coefficient_of_variation: float | None
    gini: float | None


class DeductionItem(Result):
    points: float
    because: str


class MoveItem(Result):
    """A topic that would go. Before and after: of the bottleneck, a share of capacity, or load where that is unknown."""

    topic: str
    source: str
    target: str
    source_before: float
    source_after: float
    target_before: float
    target_after: float
    unread_messages: int


class ClusterBalance(Result):
    mode: str  # off | suggest | act
    verdict: str  # BALANCED | IMBALANCED | OVERLOADED | UNDECIDED
    because: str
    score: float | None  # 0 to 100
    score_reason: str | None = None  # undecided
    deductions: list[DeductionItem]
    bottleneck: str | None
    bottleneck_reason: str | None = None  # nothing_used
    resources: dict[str, ResourceItem]
    brokers: list[BrokerLoadItem]
    hot_topics: list[str]
    moves: list[MoveItem]  # suggested
    rejected: dict[str, int]  # reasons why other moves, or any moves, are not suggested
    moving: int  # topics that are on their way now
    not_seen: list[NotSeen]  # brokers without a fresh sample
    as_of: str


class Rebalanced(Change):
    moves: dict[str, str]  # topic → the broker it goes to
    not_begun: dict[str, str]  # topic → why


def _result(
    balancer: Balancer, found: Judged, takers: Sequence[str], by_number: Sequence[Move] | None
) -> ClusterBalance:
    """Return what was found. `by_number`: the moves that even out numbers of topics, if they are wanted."""
    judged = found.assessment
    if by_number is not None:
        judged = replace(judged, moves=tuple(by_number), rejected={})
    rejected = {reason.value: count for reason, count in judged.rejected.items()}
    if found.waits_s is not None and by_number is None:
        rejected["settling"] = 1
    owned: dict[str, int] = {}
    for topic in found.snapshot.topics:
        owned[topic.broker_id] = owned.get(topic.broker_id, 0) + 1
    return ClusterBalance(
        mode=balancer.options.mode,
        verdict=judged.verdict.value,
        because=judged.because,
        score=None if judged.score is None else round(judged.score, 1),
        score_reason="undecided" if judged.score is None else None,
        deductions=[
            DeductionItem(points=round(each.points, 1), because=each.because) for each in judged.deductions
        ],
        bottleneck=None if judged.bottleneck is None else judged.bottleneck.value,
        bottleneck_reason="nothing_used" if judged.bottleneck is None else None,
        resources={
            resource.value: ResourceItem(
                counts=view.counts,
                max_over_mean=view.spread.max_over_mean,
                coefficient_of_variation=view.spread.cv,
                gini=view.spread.gini,
            )
            for resource, view in judged.resources.items()
        },
        brokers=[
            BrokerLoadItem(
                broker_id=each.broker_id,
                takes_topics=not takers or each.broker_id in takers,
                sampled_s_ago=round(each.age_s, 1) if each.load else None,
                load={resource.value: round(amount, 3) for resource, amount in each.load.items()},
                capacity={resource.value: amount for resource, amount in each.capacity.items()},
                topics_with_load=owned.get(each.broker_id, 0),
            )
            for each in found.snapshot.brokers
        ],
        hot_topics=list(judged.hot_topics),
        moves=[MoveItem.of(move) for move in judged.moves],
        rejected=rejected,
        moving=len(found.under_way),
        not_seen=[
            NotSeen(
                broker_id=each, why=f"its newest sample is older than {2 * found.snapshot.interval_s:g} s"
            )
            for each in sorted(judged.missing)
        ],
        as_of=format_time(found.at_ms),
    )


@operation(
    "cluster.balance",
    at=Place.LEADER,
    effect=Effect.READ,
    tool="get_cluster_balance",
    title="Balance of the cluster",
    summary="Show how even the brokers' load is: score, bottleneck, moves that help.",
    examples=(
        Example({}, "by the load of the last minutes"),
        Example({"by": "topics"}, "the moves that even out numbers of topics"),
    ),
)
async def cluster_balance(context: Context, request: BalanceRequest) -> ClusterBalance:
    """Assess the balance, and move nothing. The moves are those that `cluster.rebalance` would begin.

    Score and verdict are by load, also with `by=topics`.
    """
    balancer = context.executor.balancer
    found = await balancer.suggestion()
    by_number = None
    if request.by == "topics":  # which names idle topics: those that the caller may list
        sight = Sight(context.port, "topics:read")
        moves = await _by_number(context, found, None)
        by_number = [move for move in moves if sight.topic(str(TopicName.parse(move.topic).base))]
    return _result(balancer, found, await context.port.takers(), by_number)


async def _chosen(context: Context, request: RebalanceRequest) -> tuple[Judged, list[Move]]:
    if not await context.port.takers():
        raise LastBroker(
            "there is nothing to balance: this broker is alone", field="operation", value="cluster.rebalance"
        )
    found = await context.executor.balancer.suggestion()
    if request.by == "topics":
        return found, await _by_number(context, found, request.max_moves)
    moves = list(found.assessment.moves)[: request.max_moves]
    names = {move.topic for move in moves}  # of a swap both halves, or none
    return found, [move for move in moves if move.swapped_with is None or move.swapped_with in names]


async def _by_number(context: Context, found: Judged, max_moves: int | None) -> list[Move]:
    """Return the moves that even out the numbers of topics of the brokers that take topics.

    Idle topics go first, and of them those at one broker: partitions that are spread stay apart as long as other idle
    topics can move.
    """
    takers = set(await context.port.takers())
    counts = {
        each.broker_id: each.topics for each in await context.port.statuses() if each.broker_id in takers
    }
    busy = {topic.topic for topic in found.snapshot.topics}
    moving = {move.topic for move in found.under_way}
    keys = sorted(
        await context.port.topic_index(), key=lambda key: (key.topic in busy, len(key.owners) > 1, key.topic)
    )
    movable = {
        broker: await _some_of(
            context, broker, moving, [key.topic for key in keys if broker in key.owners], count
        )
        for broker, count in excess_of(counts).items()
    }
    return moves_by_number(
        counts, movable, most=context.executor.balancer.options.max_moves if max_moves is None else max_moves
    )


async def _some_of(
    context: Context, broker_id: str, moving: Set[str], names: Sequence[str], count: int
) -> list[str]:
    """Return the first `count` topics of a broker that are not on their way, each partition by its own name."""
    logs: list[str] = []
    users = [name for name in names if not TopicName.parse(name).is_system]
    for start in range(0, len(users), FACTS_AT_ONCE):
        for whole, *parts in await context.port.topic_facts(users[start : start + FACTS_AT_ONCE]):
            logs += [
                log.topic for log in parts or [whole] if log.owner == broker_id and log.topic not in moving
            ]
        if len(logs) >= count:
            break
    return logs[:count]


Pinned = Sequence[Sequence[str]]  # topic, source and target of each move


async def _ids(context: Context, topics: Sequence[str]) -> dict[str, str]:
    """Return topic → id of those topics, each partition by its own name, whose owners answer."""
    found: dict[str, str] = {}
    for start in range(0, len(topics), FACTS_AT_ONCE):
        for logs in await context.port.topic_facts(topics[start : start + FACTS_AT_ONCE]):
            found |= {log.topic: str(log.topic_id) for log in logs}
    return found


async def _as_planned(context: Context, pinned: Mapping[str, Any]) -> Forecast:
    """Return the forecast of a plan's own moves. It is stale if one of them is not possible any more."""
    moves: Pinned = pinned["moves"]
    takers = set(await context.port.takers())
    lost: dict[str, str | None] = {}
    for topic, source, target in moves:
        found = await context.port.owners(topic)
        owners = [None if each is None else each.broker_id for each in found]
        if target not in takers or owners != [source]:
            lost[topic] = owners[0] if owners else None
    planned = pinned_ids(pinned)
    ids = await _ids(context, [*planned])
    return _rebalancing(moves, loads=(), lost=lost, ids={topic: ids.get(topic) for topic in planned})


def _rebalancing(
    moves: Pinned,
    *,
    loads: Sequence[Mapping[str, Any]],
    lost: Mapping[str, str | None],
    ids: Mapping[str, str | None],
) -> Forecast:
    """Return the forecast of moves.

    Args:
        loads: how they change loads.
        lost: topics that cannot move so, with their owners.
        ids: of the topics.
    """
    owners = [
        entry(f"topics{topic}/owner", lost.get(topic, source), target) for topic, source, target in moves
    ]
    return Forecast(
        diff=[*owners, *loads],
        blast_radius=blast_radius(topics=len(moves)),
        image={
            "sources": {topic: source for topic, source, _ in moves},
            "moves": {topic: target for topic, _, target in moves},
        },
        basis=[[list(move) for move in moves], list(lost), dict(ids)],
        pinned={"moves": [list(move) for move in moves], "topics": dict(ids)},
    )


async def forecast_rebalance(context: Context, request: RebalanceRequest) -> Forecast:
    if context.pinned is not None:
        return await _as_planned(context, context.pinned)
    found, moves = await _chosen(context, request)
    judged = found.assessment
    if not moves and request.by == "topics":
        raise Conflict(
            "no move is suggested: the brokers' numbers of topics differ by at most one",
            verdict=judged.verdict.value,
            retryable=False,
        ).followed_by(next_call("brokers.list", {}, "shows the numbers of topics"))
    if not moves:
        reasons = ", ".join(sorted(reason.value for reason in judged.rejected)) or "settling"
        raise Conflict(
            f"no move is suggested: {judged.because} ({reasons})",
            verdict=judged.verdict.value,
            retryable=False,
        ).followed_by(next_call("cluster.balance", {}, "shows loads and why"))
    loads: list[Mapping[str, Any]] = []
    resource = judged.bottleneck.value if judged.bottleneck is not None else "load"
    for move in moves if request.by == "load" else ():
        loads.append(
            entry(
                f"brokers/{move.source}/{resource}", round(move.source_before, 3), round(move.source_after, 3)
            )
        )
        loads.append(
            entry(
                f"brokers/{move.target}/{resource}", round(move.target_before, 3), round(move.target_after, 3)
            )
        )
    ids = await _ids(context, [move.topic for move in moves])
    return _rebalancing(
        [(move.topic, move.source, move.target) for move in moves], loads=loads, lost={}, ids=ids
    )


@operation(
    "cluster.rebalance",
    at=Place.LEADER,
    effect=Effect.CHANGE,
    title="Rebalance the cluster",
    permission="brokers:change",
    summary="Begin the moves that cluster.balance suggests.",
    forecast=forecast_rebalance,
    undo=undo_move,
    examples=(
        Example({"max_moves": 5}, "five topics at the most"),
        Example({"by": "topics"}, "idle topics too, as after adding a broker"),
    ),
)
async def rebalance_cluster(context: Context, request: RebalanceRequest) -> Rebalanced:
    """Begin the moves, and return. A move that could not begin is reported, and the others continue."""
    assert context.pinned is not None, "the forecast gives the moves"
    begun: dict[str, str] = {}
    refused: dict[str, str] = {}
    for topic, _, target in context.pinned["moves"]:
        try:
            begun |= await context.port.move_topic(topic, target)
        except ClusterError as error:
            refused[topic] = error.message
    context.executor.balancer.moved(begun)
    return Rebalanced(moves=begun, not_begun=refused)
