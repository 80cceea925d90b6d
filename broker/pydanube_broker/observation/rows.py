"""One log, one subscription and its consumers as samples."""

from __future__ import annotations

from pydanube_core.cursor_state import CursorState
from pydanube_core.observation import ConsumerSample, CursorSample, HeadSample

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.topics.topic import Topic


def head_sample(topic: Topic, now_ms: int, refused: int) -> HeadSample:
    return HeadSample(
        topic.name,
        topic.topic_id,
        topic.options.partition,
        now_ms,
        topic.start_offset,
        topic.commit,
        topic.messages_in,
        topic.bytes_in,
        topic.messages_out,
        topic.bytes_out,
        topic.producers_connected,
        sum(len(pump.links) for pump in topic.subscriptions.values()) + topic.readers,
        refused,
        topic.gate.limits.retention_age_s or None,
        topic.gate.limits.retention_bytes or None,
        bool(topic.gate.limits.drop_unread),
    )


def cursor_sample(topic: Topic, pump: AnyPump, state: CursorState, oldest_ms: int | None) -> CursorSample:
    return CursorSample(
        topic.name,
        topic.topic_id,
        topic.options.partition,
        pump.name,
        pump.subscription_id,
        state,
        oldest_ms,
        pump.type.value,
    )


def consumer_samples(topic: Topic, pump: AnyPump, now_ms: int) -> list[ConsumerSample]:
    """Return a sample of each attached consumer."""
    if not pump.links:
        return []
    statistics = pump.statistics()
    if statistics is None:
        return []
    found = []
    for one in statistics.consumers:
        link = pump.links.get(one.consumer_id)
        if link is not None:
            found.append(
                ConsumerSample(
                    topic.name,
                    topic.topic_id,
                    pump.name,
                    pump.subscription_id,
                    one.consumer_id,
                    one.name,
                    now_ms,
                    one.active,
                    link.connected_at_ms,
                    one.credit_messages,
                    one.in_flight,
                    one.delivered,
                    one.oldest_in_flight_age_ms,
                    link.heard_at_ms,
                )
            )
    return found
