"""A topic's entry in a head is kept from one head to the next, and never older than the topic."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.journal.records import RecordKind
from pydanube_broker.subscription.cursor import CursorDelta, CursorSnapshot
from pydanube_broker.topics.log_state import (
    LogState,
    decode_head,
    encode_adopt_body,
    encode_head,
    encode_open_body,
    encode_trim_body,
    replay_record,
    starts_in,
)
from pydanube_broker.topics.producers import MAX_PRODUCERS, Producers

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


PRODUCERS = Producers()  # of all states that are compared without theirs


@pytest.mark.parametrize(
    ("since_lsn", "awaiting"), [((0, 0, 0), (0, 0, 0)), ((0, 9, 0), (0, 0, 0)), ((0, 9, 5), (0, 0, 33))]
)
def test_each_topic_of_a_head_is_read_back_whole_whichever_format_its_topics_need(
    since_lsn: tuple[int, ...], awaiting: tuple[int, ...]
) -> None:
    states = [
        LogState(number, epoch=number, next_offset=10 * number, since_lsn=since, awaiting=move, opened=True)
        for number, since, move in zip((1, 2, 3), since_lsn, awaiting, strict=True)
    ]
    states[1].cursors[3] = CursorSnapshot(floor=5)
    head = b"".join(encode_head([*states, LogState(4)]))
    read = list(decode_head(memoryview(head)).values())  # without the one that was never opened
    assert [replace(each, producers=PRODUCERS) for each in read] == [
        replace(each, producers=PRODUCERS) for each in states
    ]


# -- records --------------------------------------------------------------------------------------------------------


def replayed(*records: tuple[RecordKind, int, bytes]) -> LogState:
    states: dict[int, LogState] = {}
    for kind, lsn, body in records:
        header: Any = SimpleNamespace(kind=kind, topic_id=7, lsn=lsn)
        replay_record(states, header, memoryview(body))
    return states[7]


def test_neither_an_epoch_nor_a_begin_goes_back() -> None:
    opened = [(RecordKind.TOPIC_OPEN, 0, encode_open_body(*each)) for each in ((5, 30), (3, 20))]
    state = replayed(*opened, (RecordKind.TRIM_PREFIX, 0, encode_trim_body(10)))
    assert (state.epoch, state.start_offset, state.next_offset, state.opened) == (5, 30, 30, True)
    trimmed = replayed(*opened, (RecordKind.TRIM_PREFIX, 0, encode_trim_body(40)))
    assert trimmed.start_offset == 40


def test_producers_of_records_from_before_tokens_go_on() -> None:
    state = replayed((RecordKind.PRODUCER, 0, struct.pack("<QI", 3, 2) + "größe".encode()))
    (session,) = state.producers.sessions()
    assert (session.producer_id, session.epoch, session.name, session.token) == (3, 2, "größe", 0)


def test_an_adopted_topic_has_its_epoch_and_a_copy_that_awaits_its_move_has_none_until_it_is_opened() -> None:
    arrived = (RecordKind.TOPIC_OPEN, 64, encode_open_body(0, 0))
    whole = LogState(7, epoch=5, next_offset=9, opened=True)
    state = replayed(arrived, (RecordKind.ADOPT, 128, encode_adopt_body(whole)))
    assert (state.epoch, state.awaiting, state.next_offset, state.since_lsn) == (5, 0, 9, 64)

    copy = (RecordKind.ADOPT, 128, encode_adopt_body(replace(whole, awaiting=33)))
    state = replayed(arrived, copy)
    assert (state.epoch, state.awaiting, state.next_offset, state.since_lsn) == (0, 33, 9, 64)
    state = replayed(arrived, copy, (RecordKind.TOPIC_OPEN, 192, encode_open_body(6, 0)))
    assert (state.epoch, state.awaiting, state.since_lsn) == (6, 0, 64)


def test_a_topic_begins_at_the_highest_begin_of_its_records_and_others_are_not_mentioned() -> None:
    def record(kind: RecordKind, topic_id: int, body: bytes) -> Any:
        return SimpleNamespace(kind=kind, topic_id=topic_id), body

    records = [
        record(RecordKind.TOPIC_OPEN, 1, encode_open_body(9, 5)),
        record(RecordKind.TRIM_PREFIX, 1, encode_trim_body(8)),
        record(RecordKind.TRIM_PREFIX, 1, encode_trim_body(7)),
        record(RecordKind.TOPIC_OPEN, 2, encode_open_body(1, 0)),
        record(RecordKind.TOPIC_CLOSE, 3, b""),
    ]
    assert starts_in(records) == {1: 8, 2: 0}
