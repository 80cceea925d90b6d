from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.lag import AgeQuality, LagReason, measure_lag

FACTS = SubscriptionFacts(
    topic="/default/t",
    partition=None,
    subscription="s",
    subscription_id=1,
    type="exclusive",
    start_offset=0,
    next_offset=100,
    next_unacked=40,
    acked_above=10,
    in_flight=3,
    redelivered=0,
    dead_lettered=0,
    lag_bytes=640,
    oldest_unread_append_ms=1_000,
)


def test_lag_counts_what_is_not_acknowledged() -> None:
    lag = measure_lag(FACTS, as_of_ms=3_500)
    assert (lag.lag_messages, lag.lag_bytes, lag.oldest_unread_age_s) == (50, 640, 2.5)
    assert lag.age_quality is AgeQuality.EXACT


def test_caught_up_has_no_age_and_says_why() -> None:
    lag = measure_lag(replace(FACTS, next_unacked=100, acked_above=0), as_of_ms=3_500)
    assert (lag.lag_messages, lag.lag_bytes) == (0, 0)
    assert (lag.oldest_unread_age_s, lag.oldest_unread_age_s_reason) == (None, LagReason.CAUGHT_UP)
    assert lag.age_quality is AgeQuality.EXACT


def test_unknown_is_null_with_a_reason_and_never_zero() -> None:
    lag = measure_lag(replace(FACTS, lag_bytes=None, oldest_unread_append_ms=None), as_of_ms=3_500)
    assert (lag.lag_bytes, lag.lag_bytes_reason) == (None, LagReason.NOT_KNOWN)
    assert (lag.oldest_unread_age_s, lag.oldest_unread_age_s_reason) == (None, LagReason.NOT_KNOWN)
    assert lag.age_quality is AgeQuality.UNKNOWN


def test_messages_that_were_trimmed_are_not_waiting_any_more() -> None:
    trimmed = replace(FACTS, start_offset=60, acked_above=0, oldest_unread_append_ms=None)
    lag = measure_lag(trimmed, as_of_ms=3_500)
    assert (lag.lag_messages, lag.oldest_unread_age_s_reason) == (40, LagReason.TRIMMED)


@given(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 20),
    st.none() | st.integers(0, 1 << 42),
    st.integers(0, 1 << 42),
)
def test_lag_and_age_are_never_negative(
    start: int, end: int, cursor: int, above: int, oldest: int | None, as_of: int
) -> None:
    facts = replace(
        FACTS,
        start_offset=start,
        next_offset=end,
        next_unacked=cursor,
        acked_above=above,
        oldest_unread_append_ms=oldest,
    )
    lag = measure_lag(facts, as_of_ms=as_of)
    assert lag.lag_messages >= 0
    assert lag.oldest_unread_age_s is None or lag.oldest_unread_age_s >= 0
