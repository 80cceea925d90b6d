from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.diagnosis.settling import Settling


def settled(values: str, enter_after: int = 2, leave_after: int = 3) -> str:
    state = Settling(values[0], 0)
    seen = [state.value]
    for at, value in enumerate(values[1:], 1):
        state.observe(value, at, enter_after=enter_after, leave_after=leave_after)
        seen.append(state.value)
    return "".join(seen)


def test_a_state_is_left_after_three_observations_and_entered_after_two() -> None:
    assert settled("aaabaaa") == "aaaaaaa"
    assert settled("abbb") == "aaab"
    assert settled("abcc") == "aaac"
    assert settled("abcbcbcc") == "aaaaaaac"


def test_since_is_when_it_was_first_seen() -> None:
    state = Settling("a", 0)
    for at in (5, 6, 7):
        state.observe("b", at, enter_after=2, leave_after=3)
    assert (state.value, state.since_ms) == ("b", 5)


@given(st.text("ab", min_size=1, max_size=60))
def test_it_never_settles_on_what_did_not_hold(values: str) -> None:
    seen = settled(values)
    for at in range(1, len(values)):
        if seen[at] != seen[at - 1]:
            assert values[at - 2 : at + 1] == seen[at] * 3
