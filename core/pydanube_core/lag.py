"""How far a subscription is behind: pure, from one look at a topic's head and the cursor.

The cursor is read before the head (`SubscriptionFacts` promises it), so lag is never negative and may only be a
few messages too high. Age goes by append time, the broker's own clock, hence needs no guess about a producer's.
What is not known is None with a reason, never 0: a zero would hide exactly the case that matters.

Age quality: `exact`, the append time of the oldest unread message was read, or nothing is unread; `unknown`, there
is no such time. (`bounded` and `interpolated` are ages from samples: `diagnosis.age`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydanube_core.facts import SubscriptionFacts


class AgeQuality(StrEnum):
    EXACT = "exact"
    BOUNDED = "bounded"
    INTERPOLATED = "interpolated"
    UNKNOWN = "unknown"


class LagReason(StrEnum):
    """Why a figure is null."""

    CAUGHT_UP = "caught_up"  # nothing is unread, so nothing has an age
    TRIMMED = "trimmed"  # the oldest unread message is gone
    NOT_KNOWN = "not_known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """One measurement. A value is None exactly if its reason is not."""

    lag_messages: int
    lag_bytes: int | None
    lag_bytes_reason: LagReason | None
    oldest_unread_age_s: float | None
    oldest_unread_age_s_reason: LagReason | None
    age_quality: AgeQuality

    def __post_init__(self) -> None:
        assert self.lag_messages >= 0
        assert (self.lag_bytes is None) == (self.lag_bytes_reason is not None)
        assert (self.oldest_unread_age_s is None) == (self.oldest_unread_age_s_reason is not None)


def measure_lag(facts: SubscriptionFacts, *, as_of_ms: int) -> Lag:
    """Measure one subscription of one concrete topic.

    Args:
        facts: head and cursor.
        as_of_ms: the broker's clock after the facts were taken; an age is never negative even if it is earlier.
    """
    messages = facts.lag_messages
    if messages == 0:
        return Lag(
            lag_messages=0,
            lag_bytes=0,
            lag_bytes_reason=None,
            oldest_unread_age_s=None,
            oldest_unread_age_s_reason=LagReason.CAUGHT_UP,
            age_quality=AgeQuality.EXACT,
        )
    unread_since_ms = facts.oldest_unread_append_ms
    if unread_since_ms is not None:
        age_s, age_reason = max(0, as_of_ms - unread_since_ms) / 1000, None
    else:
        trimmed = facts.next_unacked < facts.start_offset
        age_s, age_reason = None, LagReason.TRIMMED if trimmed else LagReason.NOT_KNOWN
    return Lag(
        lag_messages=messages,
        lag_bytes=facts.lag_bytes,
        lag_bytes_reason=LagReason.NOT_KNOWN if facts.lag_bytes is None else None,
        oldest_unread_age_s=age_s,
        oldest_unread_age_s_reason=age_reason,
        age_quality=AgeQuality.UNKNOWN if age_s is None else AgeQuality.EXACT,
    )
