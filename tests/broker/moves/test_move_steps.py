"""The steps of a move: what each refuses, and what its transaction holds on to. What they do together is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment, check_may_assign
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.epochs import EpochCounter
from pydanube_broker.cluster.ids import BrokerId, Epoch, FencingToken, Incarnation, TopicId
from pydanube_broker.cluster.move_record import ChainRange, HandOverPart, MoveFailure, MoveRecord, Stage
from pydanube_broker.moves.move import (
    PATIENCE_MS,
    Change,
    LeaderView,
    Preconditions,
    arrive,
    assign,
    begin,
    cancel,
    damaged,
    give_up,
    joined,
    leaders_change,
    open_topic,
    ready,
    take_away,
    transaction,
    with_epoch,
)
from pydanube_core.errors import ClusterError, Conflict, CorruptJournal, CorruptObject, DiskFull
from pydanube_core.names import TopicName
from pydanube_storage.catalog.catalog import Committed, head_key
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import Absent, ModRevision, Put, Revision

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
LIFE, NOW = Incarnation(4), Revision(50)
SERVING = Assignment(
    topic_id=TopicId(7), topic=TopicName("default", "t"), broker_id=ONE, incarnation=LIFE, epoch=Epoch(3)
)
ERROR = DiskFull("there is no room")
FAILED = MoveFailure(target="2", begun_at_ms=1, code="DISK_FULL", why="there is no room")
ALIVE = {ONE: LIFE, TWO: LIFE, THREE: LIFE}


def part(first: int, end: int) -> HandOverPart:
    return HandOverPart(key="k" * 200, start=0, end=9, digest="d" * 64, first_offset=first, end_offset=end)


MOVING = begin(SERVING, NOW, TWO, at_ms=1).after
READY = ready(MOVING, NOW, LIFE).after
COUNTER = EpochCounter(epoch=Epoch(8), guards=(ModRevision(keys.epoch_key(SERVING.topic), Revision(31)),))
WITNESSES = Preconditions(folder="g", start_offset=2, member=Revision(60), counter=COUNTER)
ARRIVED = with_epoch(arrive(READY, NOW, LIFE), WITNESSES).after
SEALED = take_away(READY, NOW, TWO, at_ms=9).after
ASSIGNED = assign(SEALED, NOW, TWO, incarnation=LIFE, epoch=Epoch(4)).after
OPENED = open_topic(ASSIGNED, NOW, LIFE).after


def test_a_move_ends_where_it_was_to_go_and_remembers_the_seal() -> None:
    assert (ARRIVED.stage, ARRIVED.broker_id, ARRIVED.epoch) == (Stage.SERVING, TWO, 9)
    assert (ARRIVED.sealed_epoch, ARRIVED.moved, ARRIVED.move) == (3, NOW, None)
    assert (SEALED.broker_id, SEALED.epoch, SEALED.sealed_epoch) == (ONE, 3, 3)
    assert (OPENED.stage, OPENED.broker_id, OPENED.epoch) == (Stage.SERVING, TWO, 4)
    assert (OPENED.sealed_epoch, OPENED.sealed_at_ms, OPENED.move) == (3, None, None)
    assert cancel(READY, NOW, ERROR).after == replace(SERVING, failed=FAILED)
    again = begin(cancel(READY, NOW, ERROR).after, NOW, TWO, at_ms=1).after
    assert again == replace(MOVING, failed=FAILED), "the failure stays until the topic has moved"
    assert arrive(ready(again, NOW, LIFE).after, NOW, LIFE).after.failed is None
    assert open_topic(replace(ASSIGNED, failed=FAILED), NOW, LIFE).after == OPENED
    assert begin(SERVING, NOW, TWO, at_ms=1, ready=LIFE).after == READY, "of little the owner stops at once"


@pytest.mark.parametrize("stage", [SERVING, MOVING, READY, ARRIVED, SEALED, ASSIGNED, OPENED])
def test_a_record_comes_back_as_it_was(stage: Assignment) -> None:
    key = keys.assignment_key(stage.topic_id)
    assert Assignment.of(key, stage.to_json()) == stage


def test_a_build_that_does_not_know_chains_reads_no_record_with_one() -> None:
    chain = ChainRange(journal=7, from_piece=1, until=9)
    taken = take_away(READY, NOW, TWO, at_ms=9, chain=chain).after
    assigned = assign(taken, NOW, TWO, incarnation=LIFE, epoch=Epoch(4)).after
    for stage in (taken, assigned):
        assert stage.to_json().startswith(b'{"version":2,')
        assert Assignment.of(keys.assignment_key(stage.topic_id), stage.to_json()) == stage
    for stage in (SERVING, SEALED, ASSIGNED, open_topic(assigned, NOW, LIFE).after):
        assert stage.to_json().startswith(b'{"version":1,')


def test_no_step_from_another_stage() -> None:
    for now in (MOVING, SEALED, ASSIGNED):
        with pytest.raises(Conflict):
            begin(now, NOW, TWO, at_ms=1)
    for now in (SERVING, SEALED, ASSIGNED, OPENED, ARRIVED):
        with pytest.raises(Conflict):
            ready(now, NOW, LIFE)
        with pytest.raises(Conflict):
            cancel(now, NOW, ERROR)
        with pytest.raises(Conflict):
            arrive(now, NOW, LIFE)
    for now in (SERVING, MOVING, READY, OPENED, ARRIVED):
        with pytest.raises(Conflict):
            assign(now, NOW, TWO, incarnation=LIFE, epoch=Epoch(9))
        with pytest.raises(Conflict):
            open_topic(now, NOW, LIFE)
    with pytest.raises(Conflict, match="already"):
        begin(SERVING, NOW, ONE, at_ms=1)
    with pytest.raises(Conflict, match="not above"):
        assign(SEALED, NOW, TWO, incarnation=LIFE, epoch=Epoch(3))


def test_a_move_ends_only_for_the_life_of_the_target_for_which_its_owner_stopped() -> None:
    for now, life in ((MOVING, LIFE), (READY, Incarnation(LIFE + 1))):
        with pytest.raises(Conflict, match="did not stop"):
            arrive(now, NOW, life)


def test_an_assignment_that_is_not_a_step_leaves_a_move_alone() -> None:
    for now in (MOVING, SEALED, ASSIGNED):
        with pytest.raises(Conflict, match="hand over messages"):
            check_may_assign(now, now.broker_id, take_over=False)


def test_every_step_is_guarded_by_what_was_read() -> None:
    change = cancel(READY, NOW, ERROR)
    key = keys.assignment_key(READY.topic_id)
    assert transaction(change, Preconditions()) == (
        [Put(key, replace(SERVING, failed=FAILED).to_json())],
        [ModRevision(key, NOW)],
    )


@pytest.mark.parametrize("there", [True, False])
def test_the_end_of_a_move_is_guarded_by_all_that_it_stands_on(there: bool) -> None:
    head = CatalogHead(epoch=3, folder="f", start_offset=0, tiered_offset=5, objects=2)
    found = Committed(head=head, revision=Revision(40)) if there else None
    witnesses = replace(WITNESSES, head=found)
    change = with_epoch(arrive(READY, NOW, LIFE), witnesses)
    writes, guards = transaction(change, witnesses)
    at = head_key(READY.topic_id)
    assert guards == [
        ModRevision(keys.assignment_key(READY.topic_id), NOW),
        ModRevision(at, Revision(40)) if there else Absent(at),
        ModRevision(keys.member_key(TWO), Revision(60)),
        Absent(keys.removed_key(TWO)),
        *COUNTER.guards,
    ]
    written = {put.key: put.value for put in writes if isinstance(put, Put)}
    raised = CatalogHead.from_json(written[at], key=at)
    empty = CatalogHead(epoch=9, folder="g", start_offset=2, tiered_offset=2)
    assert raised == (replace(head, epoch=9) if there else empty), "no object of the old epoch gets in"
    assert set(written) == {keys.assignment_key(READY.topic_id), at, keys.epoch_key(READY.topic)}


def test_a_removed_owner_is_sealed_in_its_place_from_wherever_it_stood() -> None:
    for now in (SERVING, MOVING, READY, OPENED, ARRIVED):
        taken = take_away(now, NOW, THREE, at_ms=9).after
        assert (taken.stage, taken.sealed_epoch, taken.next_owner) == (Stage.SEALED, now.epoch, THREE)
        assert taken.move is not None
        assert taken.move.from_store
        after = assign(taken, NOW, THREE, incarnation=LIFE, epoch=Epoch(now.epoch + 1)).after
        assert open_topic(after, NOW, LIFE).after.broker_id == THREE
    for now in (SEALED, ASSIGNED):  # these go on as they were
        with pytest.raises(Conflict):
            take_away(now, NOW, THREE, at_ms=9)


def test_parts_that_a_removed_owner_of_the_release_before_has_offered_are_not_lost() -> None:
    move = MoveRecord(source="1", target="2", begun_at_ms=1, parts=(part(0, 5),))
    taken = take_away(replace(MOVING, move=move), NOW, THREE, at_ms=9).after
    assert taken.offered == (part(0, 5),)


@pytest.mark.parametrize("there", [True, False])
def test_objects_know_where_a_topic_goes_on_that_was_taken_away(there: bool) -> None:
    head = CatalogHead(epoch=3, folder="f", start_offset=0, tiered_offset=5, objects=2, resumes_at=4)
    found = Committed(head=head, revision=Revision(40)) if there else None
    change = take_away(SERVING, NOW, TWO, at_ms=9)
    writes, guards = transaction(change, Preconditions(head=found, folder="g", start_offset=2, resumes_at=99))
    at = head_key(SERVING.topic_id)
    assert guards == [
        ModRevision(keys.assignment_key(SERVING.topic_id), NOW),
        ModRevision(at, Revision(40)) if there else Absent(at),
    ]
    written = writes[1]
    assert isinstance(written, Put)
    raised = CatalogHead.from_json(written.value, key=at)
    empty = CatalogHead(epoch=4, folder="g", start_offset=2, tiered_offset=2, resumes_at=99)
    assert raised == (replace(head, epoch=4, resumes_at=99) if there else empty)
    assert raised.goes_on_at == 99


def test_only_the_leader_in_office_assigns_and_counts_the_epoch() -> None:
    leadership = Leadership(broker_id=ONE, incarnation=LIFE, token=FencingToken(30))
    counter_key = keys.epoch_key(SEALED.topic)
    counter = EpochCounter(epoch=Epoch(3), guards=(ModRevision(counter_key, Revision(31)),))
    change = assign(SEALED, NOW, TWO, incarnation=LIFE, epoch=Epoch(4))
    writes, guards = transaction(change, Preconditions(leadership=leadership, counter=counter))
    assert guards[1:] == [leadership.guard, *counter.guards]
    assert [write.key for write in writes if isinstance(write, Put)][1:] == [counter_key]


def leader(now: Assignment, alive: dict[BrokerId, Incarnation], waited_ms: int = 0) -> Change | None:
    return leaders_change(now, NOW, LeaderView(alive=alive, waited_ms=waited_ms, last_epoch=Epoch(6)))


def test_the_leader_does_not_touch_moves_that_progress() -> None:
    assert leader(SERVING, {}) is None
    assert leader(READY, ALIVE) is None
    assert leader(ASSIGNED, ALIVE) is None
    assert leader(SEALED, {}) is None


def test_the_leader_ends_what_hangs() -> None:
    for now, alive, waited, why in (
        (MOVING, ALIVE, PATIENCE_MS, "broker 2 copied nothing of it for 60 s"),
        (READY, {ONE: LIFE}, 0, "broker 2 takes no topics any more"),
    ):
        change = leader(now, alive, waited)
        assert change is not None
        assert replace(change.after, failed=None) == SERVING
        assert change.after.failed is not None
        assert change.after.failed.why == f"/default/t was not moved: {why}"
    for now, alive, waited, to in (
        (SEALED, ALIVE, 0, TWO),
        (SEALED, {ONE: LIFE, THREE: LIFE}, 0, ONE),
        (SEALED, {THREE: LIFE}, 0, THREE),
        (ASSIGNED, ALIVE, PATIENCE_MS, ONE),
        (ASSIGNED, {THREE: LIFE}, 0, THREE),
    ):
        change = leader(now, alive, waited)
        assert change is not None
        assert (change.after.broker_id, change.after.epoch) == (to, 7)


def test_a_lost_owners_topic_is_sealed_and_assigned_in_one_transaction() -> None:
    leadership = Leadership(broker_id=ONE, incarnation=LIFE, token=FencingToken(30))
    counter_key = keys.epoch_key(SERVING.topic)
    counter = EpochCounter(epoch=Epoch(3), guards=(ModRevision(counter_key, Revision(31)),))
    taken = take_away(SERVING, NOW, TWO, at_ms=9)
    assigned = assign(taken.after, NOW, TWO, incarnation=LIFE, epoch=Epoch(4))
    sealing, by = (
        Preconditions(folder="g", resumes_at=99),
        Preconditions(leadership=leadership, counter=counter),
    )
    writes, guards = joined(taken, assigned, sealing, by)
    first, second = transaction(taken, sealing), transaction(assigned, by)
    assert {write.key: write.value for write in writes} == {
        write.key: write.value for write in (*first[0], *second[0])
    }
    assert len({write.key for write in writes}) == len(writes)
    assert set(guards) == {*first[1], *second[1]}
    assert len(set(guards)) == len(guards)


def test_a_cancelled_move_is_no_damage_of_the_chain() -> None:
    chain = ChainRange(journal=7, from_piece=1, until=9)
    moved_in_vain = cancel(begin(SERVING, NOW, TWO, at_ms=9).after, NOW, CorruptObject("the target's")).after
    sealed = take_away(moved_in_vain, NOW, TWO, at_ms=9, chain=chain).after
    assert sealed.failed is None
    assigned = assign(sealed, NOW, TWO, incarnation=LIFE, epoch=Epoch(4)).after
    assert (assigned.failed, assigned.damage) == (None, None)
    # a record of a leader that kept the failure
    for failed in (FAILED, replace(FAILED, code=CorruptObject.code, target="3", begun_at_ms=9)):
        assert replace(assigned, failed=failed).damage is None


def test_only_damage_that_the_assigned_heir_has_found_counts() -> None:
    noted = damaged(ASSIGNED, NOW, CorruptObject("piece 4 is damaged")).after
    assert noted.damage == noted.failed
    assert noted.damage is not None
    assert damaged(ASSIGNED, NOW, ERROR).after.damage is None, "its disk is full"
    other = assign(noted, NOW, THREE, incarnation=LIFE, epoch=Epoch(5)).after
    assert (other.failed, other.damage) == (None, None)
    found = damaged(other, NOW, CorruptObject("piece 4 is damaged")).after
    assert give_up(found, NOW).after.failed is None
    assert open_topic(found, NOW, LIFE).after.failed is None


class Steps(RuleBasedStateMachine):
    """Any order of a topic's steps. Damage is in the record exactly while the assigned heir has found it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = SERVING
        self.at_ms = 1
        self.found = False  # whether the assigned heir has found damage
        self.epoch = 3

    def step(self, make: Callable[[], Change]) -> bool:
        before = self.now
        try:
            self.now = make().after
        except Conflict:
            assert self.now is before
            return False
        return True

    @rule(to=st.sampled_from([ONE, TWO, THREE]), passed_ms=st.integers(0, 1))
    def begins(self, to: BrokerId, passed_ms: int) -> None:
        self.at_ms += passed_ms
        self.step(lambda: begin(self.now, NOW, to, at_ms=self.at_ms, ready=LIFE))

    @rule(error=st.sampled_from([ERROR, CorruptObject("e")]))
    def is_cancelled(self, error: ClusterError) -> None:
        self.step(lambda: cancel(self.now, NOW, error))

    @rule()
    def arrives(self) -> None:
        if self.step(lambda: arrive(self.now, NOW, LIFE)):
            self.epoch += 1
            self.now = replace(self.now, epoch=Epoch(self.epoch))

    @rule(to=st.sampled_from([ONE, TWO, THREE]), has_chain=st.booleans())
    def owner_is_lost(self, to: BrokerId, has_chain: bool) -> None:
        chain = ChainRange(journal=7, from_piece=1, until=9) if has_chain else None
        self.step(lambda: take_away(self.now, NOW, to, at_ms=self.at_ms, chain=chain))

    @rule(to=st.sampled_from([ONE, TWO, THREE]))
    def is_assigned(self, to: BrokerId) -> None:
        epoch = Epoch(self.epoch + 1)
        if self.step(lambda: assign(self.now, NOW, to, incarnation=LIFE, epoch=epoch)):
            self.epoch, self.found = epoch, False

    @rule(error=st.sampled_from([CorruptObject("e"), CorruptJournal("e")]))
    def heir_finds_damage(self, error: ClusterError) -> None:
        self.found = self.step(lambda: damaged(self.now, NOW, error)) or self.found

    @rule()
    def is_given_up(self) -> None:
        if self.step(lambda: give_up(self.now, NOW)):
            assert self.now.move is not None
            assert self.now.move.chain is None
            self.found = False

    @rule()
    def heir_opens(self) -> None:
        if self.step(lambda: open_topic(self.now, NOW, LIFE)):
            self.found = False

    @invariant()
    def damage_is_of_the_assigned_heir(self) -> None:
        assert (self.now.damage is not None) == self.found
        if self.now.stage in (Stage.SEALED, Stage.ASSIGNED) and not self.found:
            assert self.now.failed is None


def test_damage_is_noted_only_of_the_assigned_heir_in_any_order_of_steps() -> None:
    run_state_machine_as_test(Steps)
