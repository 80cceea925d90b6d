"""Move topics to other brokers, and add partitions.

A move is begun at any broker: to one that is named, or to the one with the fewest topics. Its conditions are checked before
its owner stops anything, and the target reads the topic's log before that, too: a move that cannot be carried out
leaves the topic where it is. A task follows each move until it has ended (`engine.following`). Partitions are added
by a plan that shows the effect on the topic's keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import lcm
from typing import Annotated

from pydantic import Field
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    DiskFull,
    InvalidArgument,
    LastBroker,
    TopicNotFound,
    Unavailable,
)
from pydanube_core.facts import TopicFacts
from pydanube_core.names import MAX_PARTITIONS, TopicName
from pydanube_core.refusals import changed_since, system_is_closed
from pydanube_core.units import counted

from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.following import FollowedMoves
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, entry, nothing_left
from pydanube_admin.engine.models import Change, Effect, Place, Request, TopicArgument, TopicRequest
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.topics import Topic, find_topic
from pydanube_admin.operations.unused import held_unused


class MoveTopicRequest(Request):
    topic: TopicArgument
    to_broker: Annotated[
        str | None,
        Field(min_length=1, max_length=MAX_CHARS, description="Without: the one with the fewest topics"),
        BROKER,
    ] = None


class MovedTopic(Change):
    topic: str
    moves: dict[str, str]  # concrete topic → the broker it goes to
    task_id: str | None = None  # of the task that follows the move. None in the task's own result


async def owner_of(context: Context, topic: str) -> str | None:
    """Return the id of the broker that owns a log, or None."""
    found = await context.port.owners(topic)
    return found[0].broker_id if found and found[0] is not None else None


async def undo_move(context: Context, request: Request, done: Done) -> Undo:
    """Move the topics back to their former brokers. Those that are there stay.

    Raises:
        Conflict: a topic has gone to another broker since, or is still on its way.
        LastBroker: a broker that they came from takes no topics now.
    """
    moves = (done.result or done.image)["moves"]
    back: dict[str, str] = {}
    for topic, target in moves.items():
        source = done.image["sources"].get(topic)
        (owner,) = await context.port.owners(topic)
        at = None if owner is None else owner.broker_id
        if at not in (source, target):
            raise changed_since(f"the owner of {topic}")
        if source is not None and at == target:
            back[topic] = source
    missing = set(back.values()) - set(await context.port.takers())
    if missing:
        raise LastBroker(
            f"the topics came from broker {', '.join(sorted(missing))}, which takes none now", field="call_id"
        ).followed_by(next_call("brokers.list", {}, "shows the brokers there are, and their states"))
    return Undo(
        act=partial(_hand_over, context, back),
        forecast=Forecast(
            diff=[entry(f"topics{topic}/owner", moves[topic], source) for topic, source in back.items()],
            blast_radius=blast_radius(topics=len(back)),
        ),
    )


async def _hand_over(context: Context, moves: Mapping[str, str]) -> None:
    for topic, target in moves.items():
        await context.port.move_topic(topic, target)
    context.executor.balancer.moved(moves)


async def forecast_move(context: Context, request: MoveTopicRequest) -> Forecast:
    topic = await find_topic(context, request.topic)
    moves = await _moves_of(context, topic, request.to_broker)
    logs = [log for log in topic.logs if log.topic in moves]
    sources = {log.topic: log.owner for log in logs}
    return Forecast(
        diff=[entry(f"topics{log}/owner", source, moves[log]) for log, source in sources.items()],
        image={"sources": sources, "moves": dict(moves)},
        basis=[str(topic.own.topic_id), sources, dict(moves)],
        pinned={"moves": dict(moves), "topics": {log.topic: str(log.topic_id) for log in logs}},
        blast_radius=blast_radius(
            topics=1, subscriptions=len(topic.subscriptions), consumers=topic.consumers
        ),
    )


async def _moves_of(context: Context, topic: Topic, to_broker: str | None) -> Mapping[str, str]:
    """Return the broker that each log moves to: as the plan showed, or as a call without a plan finds it.

    Raises `InvalidArgument`: one of them takes no topics any more.
    """
    if context.pinned is None:
        return await _moves(context, topic, to_broker)
    moves: Mapping[str, str] = context.pinned["moves"]
    owners = {log.topic: log.owner for log in topic.logs}
    for log, target in moves.items():
        # A log that is gone, or there already, makes the plan stale
        if owners.get(log, target) != target:
            await context.port.destinations(log, target)
    for target in set(moves.values()):
        await _check_target(context, topic, target)
    return moves


async def _moves(context: Context, topic: Topic, to_broker: str | None) -> Mapping[str, str]:
    """Return the broker that each log would move to now."""
    try:
        found = await context.port.destinations(topic.own.topic, to_broker)
    except InvalidArgument as error:
        error.followed_by(next_call("brokers.list", {}, "shows the brokers there are, and their states"))
        raise
    if to_broker is not None:
        await _check_target(context, topic, to_broker)
    return found


async def _check_target(context: Context, topic: Topic, broker_id: str) -> None:
    """Refuse a target whose store is not the cluster's, or whose disk has no room for the copy.

    An object store that does not answer is no obstacle, because the copy does not go through it.
    """
    for facts in await context.port.statuses():
        if facts.broker_id != broker_id:
            continue
        for reason in facts.reasons:
            if reason.code == "TIER_NOT_SHARED":
                raise Unavailable(
                    f"broker {broker_id} cannot read older messages: {reason.message}",
                    broker_id=broker_id,
                    retry_after_ms=1000,
                )
        free, guard = facts.disk.get("free_bytes"), facts.disk.get("guard_bytes") or 0
        size = sum(log.journal_bytes for log in topic.logs if log.owner != broker_id)
        if free is not None and free - size < guard:
            raise DiskFull(
                f"broker {broker_id} has no room for {topic.own.topic}: {size} bytes are to be copied, {free} are "
                f"free there, and publishing stops below {guard}. Free space there, or choose another broker",
                broker_id=broker_id,
                free_bytes=free,
            ).followed_by(next_call("brokers.list", {}, "shows the brokers there are"))
        return
    raise Unavailable(
        f"broker {broker_id} is registered and does not answer", broker_id=broker_id, retry_after_ms=1000
    ).followed_by(next_call("brokers.list", {}, "shows who answers"))


@operation(
    "topics.move",
    at=Place.ANYWHERE,
    undo_at=Place.LEADER,
    effect=Effect.CHANGE,
    title="Move a topic",
    permission="topics:change",
    summary="Move a topic to another broker, a named one or the one with the fewest topics.",
    forecast=forecast_move,
    undo=undo_move,
    followed=True,
    examples=(Example({"topic": "orders", "to_broker": "10203040506070809"}, "to the one that is named"),),
)
async def move_topic(context: Context, request: MoveTopicRequest) -> MovedTopic:
    """Begin to move a topic: its producers and consumers wait for a moment, and nothing is lost."""
    topic = await find_topic(context, request.topic)
    planned = await _moves_of(context, topic, request.to_broker)
    for move in await context.port.moves():
        if move.topic in planned:  # the others stay, too: a topic is moved as a whole
            raise Conflict(
                f"{move.topic} is on its way to broker {move.target} already: wait until it is there",
                topic=move.topic,
                broker_id=move.target,
            )
    tasks = context.executor.tasks
    tasks.check_follow()
    followed = await FollowedMoves.of(context.port)
    begun: dict[str, str] = {}
    refused: dict[str, str] = {}
    for target in sorted(set(planned.values())):
        logs = [log for log in planned if planned[log] == target]
        for one in [topic.own.topic] if len(logs) == len(topic.logs) else logs:
            try:
                begun |= await context.port.move_topic(one, target)
            except ClusterError:
                if not begun:
                    raise
                # Others are under way, which the task must follow. It begins this one again
                refused |= dict.fromkeys(logs if one == topic.own.topic else [one], target)
    followed.add(begun)
    followed.add_refused(refused)
    moves = begun | refused

    async def begin(one: str) -> str:
        return (await context.port.move_topic(one, moves[one]))[one]

    async def follow() -> MovedTopic:
        await followed.until_over(begin, lambda work: tasks.report_progress(context.call_id, *work))
        return MovedTopic(topic=topic.own.topic, moves=followed.targets)

    task_id = await tasks.follow(context, request.model_dump(exclude_none=True), follow())
    return MovedTopic(topic=topic.own.topic, moves=moves, task_id=task_id)


async def forecast_unload(context: Context, request: TopicRequest) -> Forecast:
    return await forecast_move(context, MoveTopicRequest(topic=request.topic))


@operation(
    "topics.unload",
    at=Place.ANYWHERE,
    undo_at=Place.LEADER,
    effect=Effect.CHANGE,
    title="Unload a topic",
    permission="topics:change",
    summary="Move a topic to another broker. A lone broker answers LAST_BROKER.",
    forecast=forecast_unload,
    undo=undo_move,
    followed=True,
    examples=(Example({"topic": "orders"}, "to the one with the fewest topics"),),
)
async def unload_topic(context: Context, request: TopicRequest) -> MovedTopic:
    """Move a topic to the broker with the fewest topics."""
    return await move_topic(context, MoveTopicRequest(topic=request.topic))


class AddPartitionsRequest(Request):
    topic: TopicArgument
    partitions: Annotated[int, Field(ge=2, le=MAX_PARTITIONS, description="Partitions afterwards, in all")]


class AddedPartitions(Change):
    """The result. `keys_that_move`: the share of keys whose messages now go to another partition."""

    topic: str
    partitions: int
    added: int
    keys_that_move: float


def share_that_moves(before: int, after: int) -> float:
    """Return the share of keys, 0 to 1, that hash to another partition with `after` of them than with `before`.

    A key stays where its hash leaves the same rest by both: `before` of each `lcm(before, after)` hashes do, as
    before < after.
    """
    return round(1 - before / lcm(before, after), 4)


async def _growable(context: Context, request: AddPartitionsRequest) -> Topic:
    topic = await find_topic(context, request.topic)
    name = topic.own.topic
    if TopicName.parse(name).is_system:
        raise system_is_closed(name)
    if topic.own.parent is not None:
        raise InvalidArgument(
            f"{name} is one partition. Name the topic, {topic.own.parent}", field="topic", value=name
        ).followed_by(
            next_call(
                "topics.add_partitions",
                {"topic": topic.own.parent, "partitions": request.partitions},
                "adds them to the whole topic",
            )
        )
    if not topic.own.partitions:
        raise InvalidArgument(
            f"{name} was created without partitions, and stays one log: create another topic with {request.partitions} "
            "partitions, let producers write there, and copy the needed messages with topics.replay",
            field="topic",
            value=name,
        ).followed_by(
            next_call(
                "topics.create",
                {"topic": f"{name}-parted", "partitions": request.partitions},
                "creates one with partitions",
            )
        )
    return topic


def _count(topic: Topic) -> int:
    """Return one more than the highest partition index. Official clients may have left gaps."""
    return max((part.partition or 0 for part in topic.parts), default=0) + 1


def _check_more(topic: Topic, partitions: int) -> None:
    present = _count(topic)
    if partitions <= present:
        raise InvalidArgument(
            f"partitions: {topic.own.topic} has {present} already, and partitions cannot be removed. Give a larger "
            "number, which is how many it has in all afterwards",
            field="partitions",
            value=partitions,
            minimum=present + 1,
        )


def _what_follows(topic: Topic, after: int) -> str:
    before = _count(topic)
    share = share_that_moves(before, after)
    return (
        f"About {share:.0%} of keys go to another partition from then on, of producers that choose by key. Stored messages "
        "stays where it is. So messages of one key around the change may be read out of order: where that matters, let "
        "consumers read everything before producers go on. Producers that are open now go on with the "
        f"{counted(before, 'partition')} until they are opened again. Consumers of the Python client join the new ones within their "
        "refresh_s, from the first message, and those of other clients when they subscribe again"
    )


async def forecast_add(context: Context, request: AddPartitionsRequest) -> Forecast:
    topic = await _growable(context, request)
    _check_more(topic, request.partitions)
    own, present = topic.own, _count(topic)
    return Forecast(
        diff=[entry(f"topics{own.topic}/partitions", present, request.partitions)],
        blast_radius=blast_radius(
            topics=1, subscriptions=len(topic.subscriptions), consumers=topic.consumers
        ),
        image={"partitions": present, "topic_id": str(own.topic_id)},
        basis=[str(own.topic_id), present],
        later=_what_follows(topic, request.partitions),
    )


async def undo_add(context: Context, request: AddPartitionsRequest, done: Done) -> Undo:
    """Delete added partitions, if nothing was written to them."""
    try:
        topic = await find_topic(context, request.topic)
    except TopicNotFound:
        return Undo(act=nothing_left)
    done.check_topic(topic.own.topic, topic.own.topic_id)
    if _count(topic) > request.partitions:
        raise changed_since(f"the number of partitions of {topic.own.topic}")
    added = [part for part in topic.parts if (part.partition or 0) >= done.image["partitions"]]
    for part in added:
        _check_unused(part)
    return Undo(act=partial(_drop_added, context, topic.own.topic, done.image["partitions"]))


def _check_unused(part: TopicFacts) -> None:
    if not (part.next_offset or part.producers):
        return
    raise Conflict(
        f"{part.topic} is in use: {counted(part.next_offset, 'message was', 'messages were')} written to it, and "
        f"{counted(part.producers, 'producer is', 'producers are')} on it. Partitions can be removed only while nothing was ever written to them. The topic keeps its number",
        field="call_id",
        retryable=False,
        topic=part.topic,
    ).followed_by(
        next_call("topics.describe", {"topic": str(part.parent)}, "shows the contents of each partition")
    )


async def _drop_added(context: Context, topic: str, partitions: int) -> None:
    async with held_unused(context.port, topic, from_partition=partitions) as held:
        await context.port.drop_partitions(topic, partitions, held=held)


@operation(
    "topics.add_partitions",
    effect=Effect.CHANGE,
    permission="topics:change",
    summary="Give a partitioned topic more partitions. The plan has the share of keys that moves.",
    forecast=forecast_add,
    undo=undo_add,
    required_flags=("partitions",),
    examples=(Example({"topic": "orders", "partitions": 12}, "twelve in all, where it had fewer"),),
)
async def add_partitions(context: Context, request: AddPartitionsRequest) -> AddedPartitions:
    topic = await _growable(context, request)
    _check_more(topic, request.partitions)
    present = _count(topic)
    await context.port.add_partitions(topic.own.topic, request.partitions)
    return AddedPartitions(
        topic=topic.own.topic,
        partitions=request.partitions,
        added=request.partitions - present,
        keys_that_move=share_that_moves(present, request.partitions),
    )
