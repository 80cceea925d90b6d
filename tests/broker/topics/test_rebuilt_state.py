"""What is left of a topic whose broker was removed: it goes on far above, and no subscription waits for what is gone."""

from __future__ import annotations

import pytest
from pydanube_broker.subscription.cursor import Attempts, CursorSnapshot
from pydanube_broker.topics.log_state import LogState, encode_state
from pydanube_broker.topics.rebuilt_state import (
    JUMP,
    end_of_rebuilt,
    rebuilt_mirror,
    rebuilt_state,
    state_in_the_store,
)
from pydanube_storage.catalog.records import CatalogHead

STORED = 20  # up to there its messages are in the object store


@pytest.mark.parametrize(("said", "known"), [(40, 40), (10, STORED)])
def test_no_offset_that_was_ever_known_is_given_out_again(said: int, known: int) -> None:
    state = LogState(7, epoch=3, next_offset=said, tiered_offset=STORED, opened=True, since_lsn=99)
    end = end_of_rebuilt(said, STORED)
    assert end == known + JUMP
    left = rebuilt_state(state, begin=STORED, end=end, starts={})
    assert left.next_offset == end
    unseen = LogState(7)  # no report of it was ever read
    for is_whole in (False, True):
        assert rebuilt_state(unseen, begin=STORED, end=end, starts={}, is_whole=is_whole).opened
    assert (left.epoch, left.tiered_offset, left.since_lsn) == (3, STORED, 0)


@pytest.mark.parametrize(
    ("cursor", "floor", "acknowledged"),
    [
        (CursorSnapshot(floor=5), 5, ((STORED, 40 + JUMP),)),
        (CursorSnapshot(floor=5, acknowledged=((7, 9), (18, 30))), 5, ((7, 9), (18, 40 + JUMP))),
        (CursorSnapshot(floor=5, acknowledged=((25, 30),)), 5, ((STORED, 40 + JUMP),)),
        (CursorSnapshot(floor=STORED), 40 + JUMP, ()),
        (CursorSnapshot(floor=33, acknowledged=((35, 36),)), 40 + JUMP, ()),
    ],
)
def test_what_is_gone_counts_as_acknowledged_and_what_is_stored_as_before(
    cursor: CursorSnapshot, floor: int, acknowledged: tuple[tuple[int, int], ...]
) -> None:
    state = LogState(7, epoch=3, next_offset=40, opened=True, cursors={1: cursor})
    left = rebuilt_state(state, begin=STORED, end=40 + JUMP, starts={1: 0}).cursors[1]
    assert (left.floor, left.acknowledged) == (floor, acknowledged)


def test_failures_are_remembered_of_messages_that_are_there() -> None:
    there = Attempts(start=6, end=7, deliveries=2, failures=1)
    gone = Attempts(start=21, end=22, deliveries=2, failures=1)
    state = LogState(
        7, epoch=3, next_offset=40, opened=True, cursors={1: CursorSnapshot(floor=5, attempts=(there, gone))}
    )
    assert rebuilt_state(state, begin=STORED, end=40 + JUMP, starts={1: 0}).cursors[1].attempts == (there,)


def test_a_subscription_of_which_nothing_was_said_begins_where_it_was_made_and_one_that_is_gone_is_forgotten() -> (
    None
):
    state = LogState(7, epoch=3, next_offset=40, opened=True, cursors={1: CursorSnapshot(floor=5)})
    left = rebuilt_state(state, begin=STORED, end=40 + JUMP, starts={2: 12, 3: 30}).cursors
    assert {number: each.floor for number, each in left.items()} == {2: 12, 3: 40 + JUMP}


def test_a_mirror_goes_on_where_its_messages_end() -> None:
    """Its source assigns the offsets. A producer may send again what is missing, and a subscription gets it again."""
    state = LogState(7, epoch=3, next_offset=40, append_time_ms=99, opened=True)
    for number in (5, 6):
        state.producers.add(number, 1, "", token=1)
    state.producers.appended(5, 1, 0, 10, 10, 98)
    state.producers.appended(5, 1, 10, 10, STORED, 99)
    state.producers.appended(6, 1, 0, 10, 30, 99)
    state.cursors = {1: CursorSnapshot(floor=33, acknowledged=((35, 36),)), 2: CursorSnapshot(floor=5)}
    left = rebuilt_mirror(state, end=STORED, starts={1: 0, 2: 0, 3: 30})
    assert (left.next_offset, left.append_time_ms, left.epoch) == (STORED, 0, 3)
    assert [session.next_sequence for session in left.producers.sessions()] == [10, 0]
    assert {number: each.floor for number, each in left.cursors.items()} == {1: STORED, 2: 5, 3: STORED}
    assert not left.cursors[1].acknowledged


def test_offsets_of_a_second_owner_that_was_removed_too_are_not_given_out_again() -> None:
    assert end_of_rebuilt(0, 5, 5 + JUMP) == 5 + 2 * JUMP


@pytest.mark.parametrize(("copied_to", "tiered", "there"), [(5, 9, 9), (9, 5, 9)])
def test_messages_in_the_store_are_delivered_whether_they_are_in_parts_or_in_objects(
    copied_to: int, tiered: int, there: int
) -> None:
    head = CatalogHead(epoch=3, folder="f", start_offset=0, tiered_offset=tiered)
    state, begin = state_in_the_store(7, None, head, copied_to)
    assert (state.tiered_offset, begin) == (tiered, there)
    left = rebuilt_state(state, begin=begin, end=there + JUMP, starts={1: 0})
    assert left.cursors[1] == CursorSnapshot(floor=0, acknowledged=((there, there + JUMP),))


def test_two_owners_rebuild_the_same() -> None:
    said = LogState(7, epoch=3, next_offset=40, opened=True, cursors={1: CursorSnapshot(floor=5)})
    head = CatalogHead(epoch=4, folder="f", start_offset=0, tiered_offset=STORED, resumes_at=40 + JUMP)
    rebuilt = []
    for _ in range(2):
        state, begin = state_in_the_store(7, said, head)
        rebuilt.append(rebuilt_state(state, begin=begin, end=head.resumes_at, starts={1: 0, 2: 7}))
    assert rebuilt[0] == rebuilt[1]
    assert encode_state(rebuilt[0]) == encode_state(rebuilt[1])
