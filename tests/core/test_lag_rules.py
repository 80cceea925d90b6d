"""The lag of a moment: what is unread, what is lost, how old the oldest is; null with a reason where it is not known."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.cursor_state import CursorState, lag_messages, lost_messages
from pydanube_core.diagnosis import AgeQuality, LagWindow, UnreadAge
from pydanube_core.diagnosis.age import unread_age

STATE = CursorState(3_500, 0, 100, 40, 10, in_flight=3, members=1)


def age(state: CursorState, oldest_ms: int | None, *, now_ms: int = 3_500) -> UnreadAge:
    window = LagWindow(
        states=[state], now_ms=now_ms, interval_s=5.0, window_s=300.0, oldest_unread_append_ms=oldest_ms
    )
    return unread_age(window)


def test_lag_counts_what_is_not_acknowledged() -> None:
    assert STATE.lag_messages == 50
    found = age(STATE, 1_000)
    assert (found.age_s, found.quality) == (2.5, AgeQuality.EXACT)


def test_caught_up_has_no_age_and_says_why() -> None:
    found = age(STATE._replace(next_unacked=100, acked_above=0), None)
    assert (found.age_s, found.reason, found.quality) == (None, "caught_up", AgeQuality.EXACT)


def test_unknown_is_null_with_a_reason_and_never_zero() -> None:
    found = age(STATE, None)
    assert (found.age_s, found.reason, found.quality) == (None, "not_known", AgeQuality.UNKNOWN)


def test_messages_that_were_trimmed_are_not_waiting_any_more() -> None:
    trimmed = STATE._replace(start_offset=60, acked_above=0)
    assert (trimmed.lag_messages, trimmed.lost_messages) == (40, 20)
    assert age(trimmed, None).reason == "trimmed"


@given(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 20),
    st.none() | st.integers(0, 1 << 42),
    st.integers(0, 1 << 42),
)
def test_lag_and_age_are_never_negative_and_the_same_for_columns(
    start: int, end: int, cursor: int, above: int, oldest: int | None, as_of: int
) -> None:
    state = STATE._replace(start_offset=start, next_offset=end, next_unacked=cursor, acked_above=above)
    assert state.lag_messages >= 0
    found = age(state, oldest, now_ms=as_of)
    assert found.age_s is None or found.age_s >= 0
    columns: list[Any] = [np.array([each]) for each in (start, end, cursor, above)]
    assert lag_messages(*columns, larger=np.maximum).tolist() == [state.lag_messages]
    assert lost_messages(columns[0], columns[2], larger=np.maximum).tolist() == [state.lost_messages]
