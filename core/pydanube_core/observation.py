"""A broker's observation of itself, every few seconds: one `Round` of samples, for diagnosis and telemetry.

A round holds what changed since the round before, and what did not change for `heartbeat` rounds: whoever carries a
subject's last sample forward that long knows the same as the broker does. `gone` names what is no more. Counters
count since the broker started, so a rate is a difference within one incarnation of it. Times are milliseconds since 1970 by
the broker's clock; a cursor is read before its head, in the same slice of the round.

Tuples instead of dataclasses: there may be ten thousand of each in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube_core.cursor_state import CursorState


class HeadSample(NamedTuple):
    """One log: a topic that is not partitioned, or a partition."""

    topic: str  # /namespace/topic; of a partition its own name
    topic_id: int
    partition: int | None
    taken_at_ms: int
    start_offset: int
    next_offset: int
    messages_in: int
    bytes_in: int
    messages_out: int  # delivered to consumers; a message that comes again counts again
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
    oldest_unread_append_ms: int | None  # None: nothing is unread, or not known without asking the cold tier
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
    # When its client said anything last; None: it is not kept for this kind of client
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
    """One look at everything. `number` rises by one."""

    number: int
    taken_at_ms: int
    interval_s: float
    broker: BrokerSample
    heads: Sequence[HeadSample]
    cursors: Sequence[CursorSample]
    consumers: Sequence[ConsumerSample]
    gone_topics: Sequence[int]  # ids of logs
    gone_subscriptions: Sequence[tuple[int, int]]  # (topic id, subscription id)


#: told of every round, in the loop: it takes what it wants and returns at once
RoundObserver = Callable[[Round], None]
