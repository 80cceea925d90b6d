"""The age of the oldest unread message, and its quality. Nothing is extrapolated beyond the samples.

| quality | the age is |
|---|---|
| `exact` | from the message's own append time, or nothing is unread |
| `bounded` | between two known times. The older end is given, both are in `low_s` and `high_s` |
| `interpolated` | between two heads that were seen: the message was appended between them. The older end is given |
| `unknown` | none: the message is older than every head seen, or there are none |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydanube_core.diagnosis.lag_window import LagWindow


class AgeQuality(StrEnum):
    EXACT = "exact"
    BOUNDED = "bounded"
    INTERPOLATED = "interpolated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadAge:
    """An age, or the reason why it is unknown (exactly one is None). If bounds are known, `age_s` is the older one."""

    age_s: float | None
    reason: str | None  # caught_up | trimmed | not_known
    quality: AgeQuality
    low_s: float | None = None
    high_s: float | None = None


def append_time_between(
    times_ms: Sequence[int], offsets: Sequence[int], offset: int
) -> tuple[int, int] | None:
    """Return the two sampled times between which the message at `offset` was appended. None if there are none.

    A head of h at t means that h-1 existed at t, and h did not. So the message came after the last sample with a head
    of at most its offset, and no later than the next one.
    """
    at = bisect_right(offsets, offset)
    if at == 0 or at == len(offsets):
        return None
    return times_ms[at - 1], times_ms[at]


def unread_age(window: LagWindow) -> UnreadAge:
    """Return the age of the oldest message that is unread at the window's last state."""
    last = window.states[-1] if window.states else None
    if last is not None and not last.lag_messages:
        return UnreadAge(age_s=None, reason="caught_up", quality=AgeQuality.EXACT)
    if last is not None and last.lost_messages and window.oldest_unread_append_ms is None:
        return UnreadAge(age_s=None, reason="trimmed", quality=AgeQuality.UNKNOWN)
    now = window.now_ms
    if window.oldest_unread_append_ms is not None:
        age_s = max(0, now - window.oldest_unread_append_ms) / 1000
        return UnreadAge(age_s=age_s, reason=None, quality=AgeQuality.EXACT, low_s=age_s, high_s=age_s)
    between, quality = window.oldest_unread_between_ms, AgeQuality.BOUNDED
    if between is None and last is not None:
        quality = AgeQuality.INTERPOLATED
        between = append_time_between(*_heads(window), last.next_unacked)
    if between is None:
        return UnreadAge(age_s=None, reason="not_known", quality=AgeQuality.UNKNOWN)
    low_s, high_s = max(0, now - between[1]) / 1000, max(0, now - between[0]) / 1000
    return UnreadAge(age_s=high_s, reason=None, quality=quality, low_s=low_s, high_s=high_s)


def _heads(window: LagWindow) -> tuple[Sequence[int], Sequence[int]]:
    """Return the sampled heads: those given, else the window's own."""
    if window.head_times_ms:
        return window.head_times_ms, window.head_offsets
    return [state.taken_at_ms for state in window.states], [state.next_offset for state in window.states]
