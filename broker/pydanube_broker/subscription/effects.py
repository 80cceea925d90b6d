"""Effects that a subscription returns and its shell carries out, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from pydanube_broker.subscription.ranges import Range


class SessionReason(StrEnum):
    """Why a consumer's session started or ended."""

    JOINED = "joined"
    SEEK = "seek"
    TAKEN_OVER = "taken_over"
    SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """Send the consumer its session id. Messages it holds from an older session are void.

    After a seek, or when it was set aside, delivery goes on at `offset`. The consumer's credit is unchanged:
    it grants again the credit of the messages it discards.
    """

    consumer_id: int
    session: int
    offset: int
    reason: SessionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """Close the consumer's stream: another connection of the same name has taken its place."""

    consumer_id: int
    session: int
    reason: SessionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """Failover: this consumer is the active one from now on."""

    consumer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Deliveries ran into their ack timeout. For logs, and for consumers that can be notified."""

    consumer_id: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Publish copies to the dead-letter topic durably, then call `dead_lettered` or `dead_letter_failed`.

    Until the answer the messages stay unacknowledged. The answer repeats `generation`, so that one from
    before a seek cannot acknowledge messages that the seek reopened.
    """

    generation: int
    ranges: tuple[Range, ...]
    reason: str
    delivery_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Exhausted messages were acknowledged without being processed (policy drop). Count and log them."""

    ranges: tuple[Range, ...]
    reason: str
    delivery_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Exhausted messages stop the subscription, or their keys (policy block)."""

    ranges: tuple[Range, ...]
    reason: str
    delivery_count: int


Effect: TypeAlias = SessionStarted | SessionEnded | Activated | Expired | DeadLetter | Dropped | Blocked
