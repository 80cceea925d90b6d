"""What is left of a topic whose broker was removed: it goes on far above, and no subscription waits for what is gone."""

from __future__ import annotations

import pytest
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move_record import HandOverPart, MoveRecord, Stage
from pydanube_broker.subscription.cursor import Attempts, CursorSnapshot
from pydanube_broker.topics.fragment import Section
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.rebuilt_state import JUMP, last_section, rebuilt_state
from pydanube_core.names import TopicName
from pydanube_storage.catalog.records import CatalogHead

STORED = 20  # up to there its messages are in the object store


@pytest.mark.parametrize(("said", "known"), [(40, 40), (10, STORED)])
def test_no_offset_that_was_ever_known_is_given_out_again(said: int, known: int) -> None:
    state = LogState(7, epoch=3, next_offset=said, tiered_offset=STORED, opened=True, since_lsn=99)
    left = rebuilt_state(state, begin=STORED, starts={})
    assert left.next_offset == known + JUMP
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
    left = rebuilt_state(state, begin=STORED, starts={1: 0}).cursors[1]
    assert (left.floor, left.acknowledged) == (floor, acknowledged)


def test_failures_are_remembered_of_messages_that_are_there() -> None:
    there = Attempts(start=6, end=7, deliveries=2, failures=1)
    gone = Attempts(start=21, end=22, deliveries=2, failures=1)
    state = LogState(
        7, epoch=3, next_offset=40, opened=True, cursors={1: CursorSnapshot(floor=5, attempts=(there, gone))}
    )
    assert rebuilt_state(state, begin=STORED, starts={1: 0}).cursors[1].attempts == (there,)


def test_a_subscription_of_which_nothing_was_said_begins_where_it_was_made_and_one_that_is_gone_is_forgotten() -> (
    None
):
    state = LogState(7, epoch=3, next_offset=40, opened=True, cursors={1: CursorSnapshot(floor=5)})
    left = rebuilt_state(state, begin=STORED, starts={2: 12, 3: 30}).cursors
    assert {number: each.floor for number, each in left.items()} == {2: 12, 3: 40 + JUMP}


def taken(*, offered: int, tiered: int, resumes_at: int = 0) -> Section:
    """The last part of a topic that is taken away in the middle of a move; its owner has said nothing."""
    part = HandOverPart(key="k", start=0, end=1, digest="d", first_offset=0, end_offset=offered)
    now = Assignment(
        topic_id=TopicId(7),
        topic=TopicName("default", "t"),
        broker_id=BrokerId(1),
        incarnation=Incarnation(1),
        epoch=Epoch(3),
        stage=Stage.MOVING,
        move=MoveRecord(source="1", target="2", begun_at_ms=1, parts=(part,)),
    )
    head = CatalogHead(epoch=3, folder="f", start_offset=0, tiered_offset=tiered, resumes_at=resumes_at)
    return last_section(now, None, head, {1: 0})


def test_offsets_of_a_second_owner_that_was_removed_too_are_not_given_out_again() -> None:
    assert taken(offered=5, tiered=5, resumes_at=5 + JUMP).end_offset == 5 + 2 * JUMP


@pytest.mark.parametrize(("offered", "tiered", "there"), [(5, 9, 9), (9, 5, 9)])
def test_messages_in_the_store_are_delivered_whether_they_are_in_parts_or_in_objects(
    offered: int, tiered: int, there: int
) -> None:
    section = taken(offered=offered, tiered=tiered)
    assert section.state is not None
    assert section.state.cursors[1] == CursorSnapshot(floor=0, acknowledged=((there, there + JUMP),))
    assert (section.first_offset, section.end_offset) == (offered, there + JUMP)
