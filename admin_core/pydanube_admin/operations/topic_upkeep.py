"""Cutting a topic, and its counters."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.refusals import audit_is_kept

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import Change, Request, TopicArgument, TopicRequest
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.operations.brokers import Metrics, metrics_of
from pydanube_admin.operations.topics import Topic, find_topic


class TruncateTopicRequest(Request):
    topic: TopicArgument
    before: Annotated[
        str,
        Field(max_length=64, description="Position: what lies before it goes; offset:42, time:-24h, latest"),
    ]


class TruncatedTopic(Change):
    topic: str
    start_offsets: dict[str, int]  # concrete topic → its first offset now
    messages: int  # that went


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
    places = await context.port.resolve_position(topic.own.topic, request.before)
    return topic, {log.topic: max(places[log.topic], log.start_offset) for log in topic.logs}


async def forecast_truncate(context: Context, request: TruncateTopicRequest) -> Forecast:
    topic, places = await _cut(context, request)
    gone = {log.topic: places[log.topic] - log.start_offset for log in topic.logs}
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
        basis=[str(topic.own.topic_id), places, gone],
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
