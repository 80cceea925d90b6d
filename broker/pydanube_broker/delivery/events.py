"""What happens to a subscription, as values; `Subscription.handle` takes them.

Each is the same as calling the method named beside it, for shells and tests that queue what happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pydanube_broker.delivery.policy import FailurePolicy
from pydanube_broker.delivery.ranges import Range

__all__ = [
    "Acked",
    "ConsumerJoined",
    "ConsumerLeft",
    "CreditGranted",
    "DeadLetterFailed",
    "DeadLettered",
    "Event",
    "Extended",
    "LogGrew",
    "Nacked",
    "PolicyChanged",
    "Purged",
    "Skipped",
    "SkippedMessages",
    "Sought",
    "Terminated",
    "Tick",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerJoined:
    """`join`."""

    consumer_id: int
    name: str
    credit_messages: int = 0
    credit_bytes: int | None = 0
    window_messages: int | None = None
    ack_timeout_ms: int | None = None
    single: bool = False
    key_filters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLeft:
    """`leave`."""

    consumer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditGranted:
    """`grant`."""

    consumer_id: int
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrew:
    """`grew`: the topic's readable end (committed) is now `next_offset`."""

    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """`ack`."""

    consumer_id: int
    session: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nacked:
    """`nack`."""

    consumer_id: int
    session: int
    ranges: tuple[Range, ...]
    delay_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """`extend`."""

    consumer_id: int
    session: int
    ranges: tuple[Range, ...]
    extension_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """`terminate`."""

    consumer_id: int
    session: int
    ranges: tuple[Range, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """`skipped`: the log holds no message in `[start, end)` (retention, compaction)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """`seek`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedMessages:
    """`skip`: an administrator acknowledges the first `count` messages."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """`purge`: an administrator moves the cursor to the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """`set_policy`."""

    policy: FailurePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """`dead_lettered`: the copies are durable."""

    generation: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFailed:
    """`dead_letter_failed`: try again later."""

    generation: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """`tick`: time has passed."""


Event: TypeAlias = (
    ConsumerJoined
    | ConsumerLeft
    | CreditGranted
    | LogGrew
    | Acked
    | Nacked
    | Extended
    | Terminated
    | Skipped
    | Sought
    | SkippedMessages
    | Purged
    | PolicyChanged
    | DeadLettered
    | DeadLetterFailed
    | Tick
)
