"""A topic's entry in a head is kept from one head to the next, and never older than the topic."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.subscription.cursor import CursorDelta, CursorSnapshot
from pydanube_broker.topics.log_state import LogState, decode_head, encode_head
from pydanube_broker.topics.producers import MAX_PRODUCERS

steady = settings(derandomize=True, deadline=None, max_examples=100)

CHANGES = (
    "batch", "same batch again", "producer", "exclusive again", "exclusive opened", "exclusive given up", "resume", "cursor", "equal cursor", "cursor gone",
    "copies",
    "epoch", "trim", "tiered",
)  # fmt: skip


def change(state: LogState, what: str, number: int) -> None:
    sessions = state.producers.sessions()
    match what:
        case "batch":
            state.appended(state.next_offset, state.next_offset + number, number, 1000 + number, 100)
        case "same batch again":  # of a session only: what the log holds has not changed
            for session in sessions[:1]:
                state.producers.appended(session.producer_id, session.epoch, session.next_sequence, 1, 5, 7)
        case "producer":
            state.producers.prepare(f"p{number}", number)
        case "exclusive again":
            state.producers.prepare("p1", 90 + number, exclusive=True)
        case "exclusive opened":
            state.producers.open(state.producers.prepare("p1", 80 + number, exclusive=True))
        case "exclusive given up":
            state.producers.give_up(state.producers.prepare("p1", 70 + number, exclusive=True))
        case "resume":
            for session in sessions[:1]:
                state.producers.resume(session.producer_id, session.epoch, session.token)
        case "cursor":
            state.cursors[number] = CursorSnapshot(floor=state.next_offset)
        case "equal cursor":
            for subscription_id, snapshot in state.cursors.items():
                state.cursors[subscription_id] = replace(snapshot)
        case "copies":
            state.note_copied(number, CursorDelta(generation=1, floor=0, acknowledged=((5, 5 + number),)))
        case "cursor gone":
            state.cursors.pop(number, None)
        case "epoch":
            state.epoch += 1
        case "trim":
            state.start_offset = state.next_offset
        case _:
            state.tiered_offset = state.next_offset


@steady
@given(steps=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(1, 3)), max_size=20))
def test_an_entry_says_what_one_made_from_scratch_says(steps: list[tuple[str, int]]) -> None:
    state = LogState(7, opened=True)
    for what, number in steps:
        change(state, what, number)
        assert state.encode() == replace(state).encode(), f"after {what}: a copy has nothing kept"


def test_a_session_that_makes_room_for_another_leaves_the_head() -> None:
    state = LogState(7, opened=True)
    for number in range(MAX_PRODUCERS):
        state.producers.prepare(f"p{number}", 1)
    state.encode()
    state.producers.prepare("one too many", 1)
    assert state.encode() == replace(state).encode()


def read_back(state: LogState) -> LogState:
    return decode_head(memoryview(b"".join(encode_head([state]))))[state.topic_id]


def test_the_newest_append_time_is_in_the_next_head() -> None:
    state = LogState(7, opened=True)
    for end, time_ms in ((1, 2_000), (2, 1_000)):  # it may go back
        state.appended(end - 1, end, 1, time_ms, 100)
        assert state.append_time_ms == read_back(state).append_time_ms == time_ms


def test_a_cursor_that_moved_and_nothing_else_is_in_the_next_head() -> None:
    state = LogState(7, next_offset=100, opened=True)
    state.cursors[3] = CursorSnapshot(floor=10)
    assert read_back(state).cursors == {3: CursorSnapshot(floor=10)}
    for moved in (CursorSnapshot(floor=20), CursorSnapshot(floor=20, acknowledged=((30, 40),))):
        state.cursors[3] = moved
        assert read_back(state).cursors == {3: moved}


def test_acknowledgements_that_were_replayed_and_not_folded_yet_are_in_the_next_head() -> None:
    state = LogState(7, next_offset=100, opened=True)
    state.cursors[3] = CursorSnapshot(floor=10)
    state.deltas[3] = [CursorDelta(generation=0, floor=30, acknowledged=((40, 50),))]
    assert read_back(state).cursors == {3: CursorSnapshot(floor=30, acknowledged=((40, 50),))}


def test_copies_of_dead_letters_that_were_noted_and_nothing_else_are_in_the_next_head() -> None:
    state = LogState(7, next_offset=100, opened=True)
    for end in (6, 8):
        state.note_copied(3, CursorDelta(generation=1, floor=0, acknowledged=((5, end),)))
        assert read_back(state).copies(3, 1) == [(5, end)]


def test_an_entry_that_lies_still_is_not_made_again() -> None:
    states = [LogState(topic_id, opened=True) for topic_id in range(3)]
    before = encode_head(states)
    states[1].appended(0, 5, 5, 1000, 100)
    after = encode_head(states)
    assert [new is old for new, old in zip(after[1:], before[1:], strict=True)] == [True, False, True]
    assert decode_head(memoryview(b"".join(after)))[1].next_offset == 5
