"""A broker's observation of itself, every few seconds: one `Round` of samples, for diagnosis and telemetry.

A round holds the subjects that changed since the last round, and those unchanged for `heartbeat` rounds. A reader that
carries a subject's last sample forward for that long has the same values as the broker. `gone` names subjects that were
deleted. Counters count since the broker started, so a rate is a difference within one incarnation. Times are
milliseconds since 1970 by the broker's clock. A cursor is read before its head, in the same slice of the round.

Tuples instead of dataclasses: there may be ten thousand of each in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube_core.cursor_state import CursorState


class HeadSample(NamedTuple):
    """One log: a topic that is not partitioned, or a partition."""

    topic: str  # /namespace/topic. For a partition, its own name
    topic_id: int
    partition: int | None
    taken_at_ms: int
    start_offset: int
    next_offset: int
    messages_in: int
    bytes_in: int
    messages_out: int  # delivered to consumers. A redelivered message counts again
    bytes_out: int  # of them, as they are stored
    producers: int
    consumers: int
    refused: int  # publishes (batches) that were refused
    retention_age_s: int | None = None  # None: no limit
    retention_bytes: int | None = None
    drop_unread: bool = False  # retention does not wait for cursors


class CursorSample(NamedTuple):
    """One subscription of one log."""

    topic: str
    topic_id: int
    partition: int | None
    subscription: str
    subscription_id: int
    state: CursorState
    oldest_unread_append_ms: int | None  # None: nothing is unread, or only the cold tier has it
    type: str | None = None  # exclusive, shared …


class ConsumerSample(NamedTuple):
    """One consumer of one subscription of one log."""

    topic: str
    topic_id: int
    subscription: str
    subscription_id: int
    consumer_id: int
    name: str
    taken_at_ms: int
    active: bool
    connected_at_ms: int
    credit_messages: int
    in_flight: int
    delivered: int
    oldest_in_flight_age_ms: int | None
    # When its client last sent anything. None: not recorded for this kind of client
    heard_at_ms: int | None


class BrokerSample(NamedTuple):
    """The broker itself, in every round."""

    taken_at_ms: int
    broker_id: str
    uptime_s: float
    topics: int
    subscriptions: int
    cpu_s: float  # of the process since its start
    rss_bytes: int
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    disk_guard_bytes: int | None
    journal_bytes: int
    journal_read_only: bool
    tier_backlog_bytes: int
    tier_errors: int
    store_error: str | None
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One observation of all subjects. `number` rises by one."""

    number: int
    taken_at_ms: int
    interval_s: float
    broker: BrokerSample
    heads: Sequence[HeadSample]
    cursors: Sequence[CursorSample]
    consumers: Sequence[ConsumerSample]
    gone_topics: Sequence[int]  # ids of logs
    gone_subscriptions: Sequence[tuple[int, int]]  # (topic id, subscription id)


#: called with every round, in the loop. It must return immediately
RoundObserver = Callable[[Round], None]
