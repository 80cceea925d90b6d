"""Create, truncate and delete topics, and their counters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from pydanube_core.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidName,
    NoOwner,
    NotOwner,
    TopicNotFound,
    Unavailable,
)
from pydanube_core.names import MAX_PARTITIONS, TopicName
from pydanube_core.positions import Position
from pydanube_core.refusals import (
    audit_is_kept,
    in_use,
    reused,
    single_partition,
    system_is_closed,
    topic_taken,
)
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, entry, is_live, nothing_left
from pydanube_admin.engine.models import Change, Effect, Place, Request, TopicArgument, TopicRequest
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.brokers import Metrics, metrics_of
from pydanube_admin.operations.namespaces import Policies
from pydanube_admin.operations.topics import Topic, find_topic
from pydanube_admin.operations.unused import held_unused


class CreateTopicRequest(Request):
    topic: TopicArgument
    partitions: Annotated[int, Field(ge=0, le=MAX_PARTITIONS, description="0: not partitioned")] = 0
    dispatch_strategy: Annotated[
        Literal["reliable", "non_reliable"],
        Field(description="reliable keeps messages, non_reliable only passes them on"),
    ] = "reliable"
    durability: Annotated[
        Literal["fsynced", "stored", "memory"] | None,
        Field(
            description="A publish waits for the broker's disk, the object store, or (non_reliable) nothing. Default: as "
            "the namespace's policy, fsynced where none is set"
        ),
    ] = None
    policies: Annotated[
        Policies | None, Field(description="Limits. Default: none. Rates are messages a second")
    ] = None
    schema_subject: Annotated[
        str | None,
        Field(min_length=1, max_length=256, description="Schema subject of the messages. Default: none"),
    ] = None


class CreatedTopic(Change):
    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    created_at: str


class DeletedTopic(Change):
    """The result of a deletion, with its losses."""

    topic: str
    topic_id: str
    partitions: int
    messages: int
    bytes: int
    subscriptions: list[str]
    consumers: int


def _creation(request: CreateTopicRequest) -> tuple[str, str | None]:
    """Return name and durability of the topic to create. Refuses contradicting arguments.

    The durability is None if the namespace decides it.
    """
    name = TopicName.parse(request.topic)
    if name.is_system:
        raise system_is_closed(str(name))
    if name.partition is not None:
        raise InvalidName(
            f"{name}: names that end in -part-<number> are those of partitions. Create {name.base} with "
            "partitions instead, or choose another name",
            field="topic",
            value=str(name),
        )
    durability: str | None = request.durability
    if request.dispatch_strategy == "non_reliable":
        if durability not in ("memory", None):
            raise InvalidArgument(
                f"durability: a non_reliable topic stores nothing, so it cannot be {request.durability}. Leave durability "
                "out, or make the topic reliable",
                field="durability",
                value=request.durability,
            )
        durability = "memory"
    elif durability == "memory":
        raise InvalidArgument(
            "durability: a reliable topic never gives less than fsynced. Leave durability out, or make the topic "
            "non_reliable",
            field="durability",
            value=durability,
        )
    return str(name), durability


def _options(request: CreateTopicRequest) -> dict[str, Any]:
    """Return the arguments given beyond the topic's kind."""
    given: dict[str, Any] = {"policies": _policies(request)} if request.policies else {}
    if request.schema_subject is not None:
        given["schema_subject"] = request.schema_subject
    return given


def _policies(request: CreateTopicRequest) -> dict[str, int]:
    """Return the limits of a new topic, for which null has no meaning yet."""
    return {name: value for name, value in (request.policies or {}).items() if value is not None}


def _taken(name: str) -> AlreadyExists:
    return topic_taken(name).followed_by(
        next_call("topics.describe", {"topic": name}, "shows the topic that has the name")
    )


async def forecast_create(context: Context, request: CreateTopicRequest) -> Forecast:
    name, durability = _creation(request)
    if await context.port.topic_facts([name]):
        raise _taken(name)
    if durability is None:
        above = await context.port.namespace_policies(TopicName.parse(name).namespace)
        durability = above.effective.get("durability", "fsynced")
    after: dict[str, Any] = {
        "partitions": request.partitions,
        "dispatch_strategy": request.dispatch_strategy,
        "durability": durability,
    }
    if request.policies:
        after["policies"] = _policies(request)
    if request.schema_subject is not None:
        await context.port.schemas.subject(request.schema_subject)  # there has to be one
        after["schema_subject"] = request.schema_subject
    return Forecast(diff=[entry(f"topics{name}", None, after)], blast_radius=blast_radius(topics=1))


async def undo_create(context: Context, request: CreateTopicRequest, done: Done) -> Undo:
    """Delete the created topic if it is unused."""
    name, _ = _creation(request)
    try:
        topic = await find_topic(context, name)
    except TopicNotFound:
        return Undo(act=nothing_left)
    if done.result is not None and str(topic.own.topic_id) != done.result["topic_id"]:
        raise reused("topic", name)
    if topic.messages or topic.subscriptions or topic.producers or topic.consumers:
        raise in_use(
            name,
            messages=topic.messages,
            subscriptions=len(topic.subscriptions),
            producers=topic.producers,
            consumers=topic.consumers,
        ).followed_by(next_call("topics.delete", {"topic": name}, "shows the loss"))
    return Undo(act=partial(_delete_unused, context, name))


async def _delete_unused(context: Context, name: str) -> None:
    async with held_unused(context.port, name) as held:
        await context.port.delete_topic(name, held=held)


@operation(
    "topics.create",
    at=Place.ANYWHERE,
    effect=Effect.CREATE,
    title="Create a topic",
    summary="Create a topic, optionally partitioned. Fails if the name is taken.",
    forecast=forecast_create,
    undo=undo_create,
    default_profile=True,
    later_arguments={"compaction": "tier", "typed_columns": "tier"},
    examples=(
        Example({"topic": "orders"}, "one reliable, fsynced topic"),
        Example({"topic": "orders", "partitions": 3}, "three partitions"),
    ),
)
async def create_topic(context: Context, request: CreateTopicRequest) -> CreatedTopic:
    name, durability = _creation(request)
    try:
        created = await context.port.create_topic(
            name,
            partitions=request.partitions,
            dispatch_strategy=request.dispatch_strategy,
            durability=durability,
            options=_options(request),
        )
    except AlreadyExists as error:
        raise _taken(name) from error
    # The topic is created, even if its owners serve it only a moment later
    with suppress(NoOwner, NotOwner, Unavailable):
        await context.port.topic(name)
    return CreatedTopic.of(
        created, topic_id=str(created.topic_id), created_at=format_time(created.created_at_ms)
    )


async def _topic_to_delete(context: Context, request: TopicRequest) -> Topic:
    """Return the topic to delete. A single partition is refused."""
    topic = await find_topic(context, request.topic)
    if TopicName.parse(topic.own.topic).is_audit:
        raise audit_is_kept(topic.own.topic)
    if topic.own.parent is not None:
        raise single_partition(topic.own.topic).followed_by(
            next_call("topics.describe", {"topic": topic.own.parent}, "shows the whole topic")
        )
    return topic


async def forecast_delete(context: Context, request: TopicRequest) -> Forecast:
    topic = await _topic_to_delete(context, request)
    own = topic.own
    lag = dict.fromkeys(topic.subscriptions, 0)
    for log in topic.logs:
        for facts in await context.port.subscriptions(log.topic, None):
            lag[facts.subscription] = lag.get(facts.subscription, 0) + facts.state.lag_messages
    before: dict[str, Any] = {
        "topic_id": str(own.topic_id),
        "partitions": own.partitions,
        "messages": topic.messages,
        "bytes": topic.bytes,
    }
    return Forecast(
        diff=[
            entry(f"topics{own.topic}", before, None),
            *(
                entry(f"topics{own.topic}/subscriptions/{name}", {"lag_messages": lag[name]}, None)
                for name in topic.subscriptions
            ),
        ],
        blast_radius=blast_radius(
            topics=1,
            subscriptions=len(topic.subscriptions),
            consumers=topic.consumers,
            messages=topic.messages,
            bytes=topic.bytes,
        ),
        image={"call_id": context.call_id, "topic_id": str(own.topic_id)},
        basis=[str(own.topic_id), own.partitions, dict(own.policies), own.schema, topic.subscriptions],
        counts=[log.next_offset for log in topic.logs],
        was_live=is_live(context.now_ms(), own.last_published_ms),
    )


async def undo_delete(context: Context, request: TopicRequest, done: Done) -> Undo:
    return Undo(act=partial(_restore, context, str(TopicName.parse(request.topic)), done.image))


@operation(
    "topics.delete",
    effect=Effect.DESTROY,
    title="Delete a topic",
    summary="Delete a topic with its messages, subscriptions and all partitions.",
    forecast=forecast_delete,
    undo=undo_delete,
    examples=(Example({"topic": "orders"}, "shows the loss, then needs a confirmation"),),
)
async def delete_topic(context: Context, request: TopicRequest) -> DeletedTopic:
    topic = await _topic_to_delete(context, request)
    await context.port.delete_topic(topic.own.topic, grace=context.grace)
    return DeletedTopic.of(
        topic, topic=topic.own.topic, topic_id=str(topic.own.topic_id), partitions=topic.own.partitions
    )


async def _restore(context: Context, name: str, image: Mapping[str, Any]) -> None:
    try:
        await context.port.restore_topic(image["call_id"])
    except TopicNotFound as error:
        present = await context.port.topic_facts([name])
        if not present:
            raise error
        if str(present[0][0].topic_id) != image["topic_id"]:
            raise reused("topic", name) from error  # else it was not deleted, or is restored already


class TruncateTopicRequest(Request):
    topic: TopicArgument
    before: Annotated[
        str,
        Field(max_length=64, description="Delete before this: offset:42, time:-24h, latest"),
    ]


class TruncatedTopic(Change):
    topic: str
    start_offsets: dict[str, int]  # concrete topic → its first offset now
    messages: int  # deleted


class TopicMetrics(Metrics):
    topic: str


async def _cut(context: Context, request: TruncateTopicRequest) -> tuple[Topic, dict[str, int]]:
    Position.parse(request.before, now_ms=context.now_ms(), field="before")
    topic = await find_topic(context, request.topic)
    if TopicName.parse(topic.own.topic).is_audit:
        raise audit_is_kept(topic.own.topic)
    if topic.own.dispatch_strategy == "non_reliable":
        raise InvalidArgument(
            f"{topic.own.topic} is non_reliable and stores nothing: there is nothing to cut",
            field="topic",
            value=topic.own.topic,
        )
    if context.pinned is not None:
        places = context.pinned["places"]
    else:
        places = await context.port.resolve_position(topic.own.topic, request.before)
    return topic, {log.topic: max(places.get(log.topic, 0), log.start_offset) for log in topic.logs}


async def forecast_truncate(context: Context, request: TruncateTopicRequest) -> Forecast:
    topic, places = await _cut(context, request)
    gone = {log.topic: places[log.topic] - log.start_offset for log in topic.logs}
    pinned = places if context.pinned is None else context.pinned["places"]
    share = sum(
        log.bytes * gone[log.topic] // max(1, log.next_offset - log.start_offset) for log in topic.logs
    )
    return Forecast(
        diff=[
            entry(f"topics{log.topic}/start_offset", log.start_offset, places[log.topic])
            for log in topic.logs
            if gone[log.topic]
        ],
        blast_radius=blast_radius(
            topics=1,
            subscriptions=len(topic.subscriptions),
            consumers=topic.consumers,
            messages=sum(gone.values()),
            bytes=share,
        ),
        basis=[str(topic.own.topic_id), pinned],
        pinned={"places": pinned},
        later="The topic and its subscriptions stay. A subscription that was further back continues at the new start",
    )


@operation(
    "topics.truncate",
    effect=Effect.DESTROY,
    title="Truncate a topic",
    permission="topics:change",
    summary="Give up the messages of a topic before a position, read or not.",
    forecast=forecast_truncate,
    required_flags=("before",),
    examples=(Example({"topic": "orders", "before": "time:-24h"}, "keeps the last day"),),
)
async def truncate_topic(context: Context, request: TruncateTopicRequest) -> TruncatedTopic:
    topic, places = await _cut(context, request)
    await context.port.truncate_topic(topic.own.topic, places)
    return TruncatedTopic(
        topic=topic.own.topic,
        start_offsets=places,
        messages=sum(places[log.topic] - log.start_offset for log in topic.logs),
    )


@operation(
    "topics.metrics",
    effect=Effect.READ,
    tool="get_topic_metrics",
    title="Metrics of a topic",
    summary="Show counters of one topic: messages and bytes in and out, lag, refusals.",
    examples=(Example({"topic": "orders"}, "since the broker started"),),
)
async def topic_metrics(context: Context, request: TopicRequest) -> TopicMetrics:
    name = (await find_topic(context, request.topic)).own.topic
    return TopicMetrics(topic=name, **await metrics_of(context, context.port, name))
