"""One subscription as a row of numbers, and as a sample; one log as a sample."""

from __future__ import annotations

from typing import Any

from pydanube_core.observation import ConsumerSample, CursorSample, HeadSample

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.non_reliable import LivePump
from pydanube_broker.observation.tracks import Row
from pydanube_broker.topics.topic import Topic


def stamp_of(pump: AnyPump, commit: int, start_offset: int) -> Any:
    """What is compared with the last round's: it differs when anything happened."""
    if isinstance(pump, LivePump):
        return (commit, pump.delivered, len(pump.links))
    return (commit, start_offset, len(pump.links), pump.marks())


def row_of(topic: Topic, pump: AnyPump, now_ms: int) -> Row:
    """The state of a subscription now. The cursor is read before the head. O(chunks)."""
    if isinstance(pump, LivePump):
        head = topic.commit
        return (now_ms, head, head, head, 0, 0, len(pump.links), 0, 0, 0, 0, pump.dropped.total())
    marks = pump.marks()
    members, start = len(pump.links), topic.start_offset
    if marks is None:
        floor = topic.state.cursors[pump.subscription_id].floor
        return (now_ms, start, topic.commit, floor, pump.acked_above, 0, members, 0, 0, 0, 0, 0)
    return (
        now_ms,
        start,
        topic.commit,
        marks.floor,
        pump.acked_above,
        marks.in_flight,
        members,
        marks.acknowledged,
        marks.failed,
        marks.redelivered,
        marks.dead_lettered,
        marks.dropped,
    )


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
        topic.producers_connected,
        sum(len(pump.links) for pump in topic.subscriptions.values()) + topic.readers,
        refused,
        topic.gate.limits.retention_age_s or None,
        topic.gate.limits.retention_bytes or None,
        bool(topic.gate.limits.drop_unread),
    )


def cursor_sample(topic: Topic, pump: AnyPump, row: Row, oldest_ms: int | None) -> CursorSample:
    marks = None if isinstance(pump, LivePump) else pump.marks()
    return CursorSample(
        topic.name,
        topic.topic_id,
        topic.options.partition,
        pump.name,
        pump.subscription_id,
        row[0],
        row[1],
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        pump.delivered,
        row[9],
        row[8],
        row[10],
        row[11],
        0 if marks is None else marks.generation,
        oldest_ms,
        pump.type.value,
    )


def consumer_samples(topic: Topic, pump: AnyPump, now_ms: int) -> list[ConsumerSample]:
    """Its attached consumers."""
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
