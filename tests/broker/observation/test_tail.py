"""Sequences that repeat among the newest messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.observation.tail import FEWEST_MESSAGES, longest_repetition

LIST = list(range(100, 140))


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([1, 2, *LIST, 3, *LIST, 4], (2, 43, 40)),
        ([*LIST, *LIST, *LIST], (0, 40, 80)),
        ([*LIST, *LIST[5:26]], (5, 40, 21)),
        ([*LIST, *LIST[5:24]], None),  # 19 of them
        (LIST, None),
        ([7] * 200, None),  # a heartbeat
        ([1, 2, 3] * 60, None),  # of three services
        ([*LIST, *reversed(LIST)], None),
        ([], None),
    ],
)
def test_a_sequence_that_repeats_is_found_and_heartbeats_are_none(
    messages: list[int], found: tuple[int, int, int] | None
) -> None:
    assert longest_repetition([(b"k", each) for each in messages]) == found


def test_heartbeats_of_many_services_are_no_repetition() -> None:
    assert longest_repetition([(b"service-%d" % (at % 40), 7) for at in range(400)]) is None


MESSAGES = st.lists(st.tuples(st.sampled_from([None, b"a", b"b"]), st.integers(0, 30)), max_size=300)


@given(MESSAGES, st.integers(0, 300))
def test_what_is_found_is_there(messages: list[tuple[bytes | None, int]], cut: int) -> None:
    whole = [*messages, *messages[cut:]]
    found = longest_repetition(whole)
    if found is not None:
        first, again, length = found
        assert whole[first : first + length] == whole[again : again + length]
        assert again > first
        assert len({payload for _, payload in whole[again : again + length]}) >= FEWEST_MESSAGES


@given(st.lists(st.integers(), min_size=FEWEST_MESSAGES, max_size=100, unique=True))
def test_whatever_is_sent_twice_is_found(messages: list[int]) -> None:
    once: list[tuple[bytes | None, int]] = [(None, each) for each in messages]
    assert longest_repetition([*once, *once]) == (0, len(messages), len(messages))
    assert all(before != after for before, after in pairwise(messages))
