"""Cutting a topic, unloading it, and its counters."""

from __future__ import annotations

from pydanube_core.errors import InvalidArgument, LastBroker
from pydanube_core.names import AUDIT_TOPIC
from pydanube_core.positions import Position
from pydanube_core.refusals import audit_is_kept

from pydanube_admin.brokers.handlers import metrics_of
from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, blast_radius, entry
from pydanube_admin.topics.models import (
    TopicMetrics,
    TopicMetricsRequest,
    TruncatedTopic,
    TruncateTopicRequest,
    UnloadedTopic,
    UnloadTopicRequest,
)
from pydanube_admin.topics.reading import Topic, find_topic


async def _cut(context: Context, request: TruncateTopicRequest) -> tuple[Topic, dict[str, int]]:
    Position.parse(request.before, now_ms=context.now_ms(), field="before")
    topic = await find_topic(context, request.topic)
    if topic.own.topic == AUDIT_TOPIC:
        raise audit_is_kept(AUDIT_TOPIC)
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


async def truncate_topic(context: Context, request: TruncateTopicRequest) -> TruncatedTopic:
    topic, places = await _cut(context, request)
    await context.port.truncate_topic(topic.own.topic, places)
    return TruncatedTopic(
        topic=topic.own.topic,
        start_offsets=places,
        messages=sum(places[log.topic] - log.start_offset for log in topic.logs),
    )


async def forecast_unload(context: Context, request: UnloadTopicRequest) -> Forecast:
    topic = await find_topic(context, request.topic)
    raise LastBroker(
        f"{topic.own.topic} has nowhere to go: this broker is the only one",
        field="topic",
        value=topic.own.topic,
    )


async def unload_topic(context: Context, request: UnloadTopicRequest) -> UnloadedTopic:
    await forecast_unload(context, request)
    raise AssertionError("a lone broker is refused")


async def topic_metrics(context: Context, request: TopicMetricsRequest) -> TopicMetrics:
    name = (await find_topic(context, request.topic)).own.topic
    return TopicMetrics(topic=name, **{**await metrics_of(context, name), "topics": 1})
