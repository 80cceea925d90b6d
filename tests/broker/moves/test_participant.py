"""One broker's part in a move, event by event; what brokers do together is simulated."""

from __future__ import annotations

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.moves.move import MoveStep, begin, cancel, ready
from pydanube_broker.moves.participant import (
    Commit,
    CopyAhead,
    CopyEnd,
    Hold,
    Participant,
    Phase,
    Release,
    Stopped,
)
from pydanube_core.errors import Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Revision

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
LIFE = Incarnation(4)
SERVING = Assignment(
    topic_id=TopicId(7), topic=TopicName("default", "t"), broker_id=ONE, incarnation=LIFE, epoch=Epoch(3)
)
MOVING = begin(SERVING, Revision(1), TWO, at_ms=1).after
READY = ready(MOVING, Revision(2), LIFE).after


def participant(me: BrokerId, held: int, *, life: int = LIFE) -> Participant:
    return Participant(me, Incarnation(life), held=Epoch(held))


def test_an_owner_that_never_had_a_record_of_the_topic_releases_it_all_the_same() -> None:
    owner = participant(ONE, 0)
    assert owner.see(READY, Revision(3)) == [Hold(), Stopped(1)]
    assert owner.held == 3
    target = participant(TWO, 0)
    target.see(READY, Revision(3))
    (commit,) = target.copied(1)
    assert isinstance(commit, Commit)
    assert owner.see(commit.change.after, Revision(4)) == [Release(2, Epoch(3))]


def test_the_end_is_copied_only_by_the_broker_for_which_the_owner_stopped() -> None:
    owner = participant(ONE, 3)
    owner.see(MOVING, Revision(2))
    assert owner.may_copy(TWO, Revision(2), last=False)
    assert not owner.may_copy(THREE, Revision(2), last=False)
    assert not owner.may_copy(TWO, Revision(2), last=True)
    assert owner.may_copy(TWO, Revision(3), last=True) is None, "the owner has not seen that record"
    owner.see(READY, Revision(3))
    assert owner.may_copy(TWO, Revision(3), last=True)
    assert not owner.may_copy(TWO, Revision(2), last=True)
    owner.see(SERVING, Revision(4))
    assert not owner.may_copy(TWO, Revision(3), last=True)


def test_a_target_that_was_ready_in_an_earlier_life_cancels() -> None:
    target = participant(TWO, 0, life=LIFE + 1)
    (commit,) = target.see(READY, Revision(3))
    assert isinstance(commit, Commit)
    gone = Unavailable("broker 2 was restarted, and its copy is gone")
    assert commit.change == cancel(READY, Revision(3), gone)


def test_a_target_copies_ahead_then_the_end_then_arrives() -> None:
    target = participant(TWO, 0)
    assert target.see(MOVING, Revision(2)) == [CopyAhead(1)]
    (commit,) = target.copied_ahead(1)
    assert isinstance(commit, Commit)
    assert commit.change.step is MoveStep.READY
    assert target.committed(1, commit.change.after, Revision(3)) == [CopyEnd(2, Revision(3))]
    (last,) = target.copied(2)
    assert isinstance(last, Commit)
    assert (last.change.step, target.phase) == (MoveStep.ARRIVE, Phase.ARRIVING)


def test_a_broker_whose_journal_lost_the_topic_offers_nothing() -> None:
    moved = participant(ONE, 0)
    lost = ready(begin(_sealed(SERVING), Revision(1), TWO, at_ms=1).after, Revision(2), LIFE).after
    assert moved.see(lost, Revision(3)) == []
    assert moved.phase is Phase.LOST


def _sealed(record: Assignment) -> Assignment:
    return Assignment.of(
        "/assignments/00000000000000000007",
        record.to_json().replace(b'"sealed_epoch":0', b'"sealed_epoch":2'),
    )
