"""Counters of clients, producers, consumers and handler loops, and the health of a client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """Counts of open connections, producers and consumers, and of reconnects."""

    url: str
    connections: int
    producers: int
    consumers: int
    reconnects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """Counters since the producer was opened. `waiting_*` messages are handed over and not yet answered.

    `throttled_ms` is how long the broker has held this producer back for a quota, `throttled_by` the last such quota.
    """

    sent_messages: int
    sent_bytes: int
    acknowledged_messages: int
    failed_messages: int
    duplicate_messages: int
    waiting_messages: int
    waiting_bytes: int
    blocked_senders: int
    written_batches: int
    resent_batches: int
    reconnects: int
    sessions: int
    throttled_ms: int
    throttled_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Counters since the consumer was opened.

    `buffered_messages` were received and not taken yet. `stale_messages` were received for a session that ended
    (reconnect, seek) before they were taken, `stale_acks` are acknowledgements of such messages: the broker
    delivers both again. `credit_*` is the amount that the broker may still send.
    """

    received_messages: int
    received_bytes: int
    taken_messages: int
    acked_messages: int
    nacked_messages: int
    redelivered_messages: int
    buffered_messages: int
    stale_messages: int
    stale_acks: int
    credit_messages: int
    credit_bytes: int
    reconnects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStatistics:
    """Counters of a handler loop: messages handled, failed, and given up for good.

    `running_workers` is 0 before the loop runs and after it has ended.
    """

    handled_messages: int
    failed_messages: int
    rejected_messages: int
    running_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a client works. Reasons: parts that wait for a broker, and handler loops that do not run."""

    ok: bool
    reasons: tuple[str, ...] = ()
