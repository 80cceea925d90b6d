"""The steps of a move: what each refuses, and what its transaction holds on to. What they do together is simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment, EpochCounter, check_may_assign
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.ids import BrokerId, Epoch, FencingToken, Incarnation, TopicId
from pydanube_broker.cluster.move import (
    LITTLE_BYTES,
    MAX_OFFERS,
    PATIENCE_MS,
    Change,
    LeaderView,
    Step,
    Witnesses,
    assign,
    begin,
    cancel,
    copied,
    leaders_change,
    offer,
    open_topic,
    ready,
    seal,
    take_away,
    transaction,
)
from pydanube_broker.cluster.move_record import MAX_PARTS, HandOverPart, Stage
from pydanube_core.errors import Conflict
from pydanube_core.names import TopicName
from pydanube_storage.catalog.catalog import Committed, head_key
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import MAX_VALUE_BYTES, Absent, ModRevision, Put, Revision

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
LIFE, NOW = Incarnation(4), Revision(50)
SERVING = Assignment(
    topic_id=TopicId(7), topic=TopicName("default", "t"), broker_id=ONE, incarnation=LIFE, epoch=Epoch(3)
)
ALIVE = {ONE: LIFE, TWO: LIFE, THREE: LIFE}


def part(first: int, end: int) -> HandOverPart:
    return HandOverPart(key="k" * 200, start=0, end=9, digest="d" * 64, first_offset=first, end_offset=end)


MOVING = begin(SERVING, NOW, TWO, at_ms=1).after
OFFERED = offer(MOVING, NOW, (part(0, 5),)).after
COPIED = copied(OFFERED, NOW, LIFE, little_bytes=8).after
READY = ready(OFFERED, NOW, LIFE).after
SEALED = seal(READY, NOW, (part(0, 5), part(5, 8)), at_ms=9).after
ASSIGNED = assign(SEALED, NOW, TWO, incarnation=LIFE, epoch=Epoch(4)).after
OPENED = open_topic(ASSIGNED, NOW, LIFE).after


def test_a_move_ends_where_it_was_to_go_and_remembers_the_seal() -> None:
    assert (SEALED.broker_id, SEALED.epoch, SEALED.sealed_epoch) == (ONE, 3, 3)
    assert (OPENED.stage, OPENED.broker_id, OPENED.epoch) == (Stage.SERVING, TWO, 4)
    assert (OPENED.sealed_epoch, OPENED.sealed_at_ms, OPENED.move) == (3, None, None)
    assert cancel(READY, NOW).after == SERVING


@pytest.mark.parametrize("stage", [SERVING, MOVING, OFFERED, COPIED, READY, SEALED, ASSIGNED, OPENED])
def test_a_record_comes_back_as_it_was(stage: Assignment) -> None:
    key = keys.assignment_key(stage.topic_id)
    assert Assignment.of(key, stage.to_json()) == stage


def test_the_largest_hand_over_fits_into_a_value() -> None:
    parts = tuple(part(10**15 + i, 10**15 + i + 1) for i in range(MAX_PARTS))
    assert len(offer(MOVING, NOW, parts).after.to_json()) < MAX_VALUE_BYTES
    with pytest.raises(Conflict):
        offer(MOVING, NOW, (*parts, part(10**15 + MAX_PARTS, 10**15 + MAX_PARTS + 1)))


def test_no_step_from_another_stage() -> None:
    for now in (MOVING, SEALED, ASSIGNED):
        with pytest.raises(Conflict):
            begin(now, NOW, TWO, at_ms=1)
    for now in (SERVING, SEALED, ASSIGNED, OPENED):
        with pytest.raises(Conflict):
            offer(now, NOW, (part(0, 5),))
        with pytest.raises(Conflict):
            copied(now, NOW, LIFE)
        with pytest.raises(Conflict):
            ready(now, NOW, LIFE)
        with pytest.raises(Conflict):
            cancel(now, NOW)
        with pytest.raises(Conflict):
            seal(now, NOW, (part(0, 5),), at_ms=1)
    for now in (SERVING, MOVING, READY, OPENED):
        with pytest.raises(Conflict):
            assign(now, NOW, TWO, incarnation=LIFE, epoch=Epoch(9))
        with pytest.raises(Conflict):
            open_topic(now, NOW, LIFE)


def test_what_is_not_proven_is_not_sealed() -> None:
    with pytest.raises(Conflict, match="has not shown that it can read"):
        seal(OFFERED, NOW, (part(0, 5),), at_ms=1)
    with pytest.raises(Conflict, match="follow each other"):
        seal(READY, NOW, (part(0, 5), part(6, 8)), at_ms=1)
    with pytest.raises(Conflict, match="nothing of /default/t is offered"):
        ready(MOVING, NOW, LIFE)
    with pytest.raises(Conflict, match="already"):
        begin(SERVING, NOW, ONE, at_ms=1)
    with pytest.raises(Conflict, match="not above"):
        assign(SEALED, NOW, TWO, incarnation=LIFE, epoch=Epoch(3))


def test_the_owner_goes_on_serving_until_little_is_left_to_copy() -> None:
    def offered(size: int, now: Assignment) -> Assignment:
        before = () if now.move is None else now.move.parts
        more = replace(part(5 * len(before), 5 * len(before) + 5), end=size)
        return offer(now, NOW, (*before, more)).after

    little = copied(offered(LITTLE_BYTES, MOVING), NOW, LIFE)
    assert (little.step, little.after.is_served) == (Step.READY, False)
    much = copied(offered(LITTLE_BYTES + 1, MOVING), NOW, LIFE)
    assert (much.step, much.after.is_served) == (Step.COPIED, True)
    then = copied(offered(LITTLE_BYTES, much.after), NOW, LIFE)
    assert then.step is Step.READY, "what was copied before does not count"
    now, steps = MOVING, []
    for _ in range(MAX_OFFERS):
        change = copied(offered(LITTLE_BYTES + 1, now), NOW, LIFE)
        now = change.after
        steps.append(change.step)
    assert steps == [Step.COPIED] * (MAX_OFFERS - 1) + [Step.READY], "it ends however fast it is written"


def test_an_assignment_that_is_not_a_step_leaves_a_move_alone() -> None:
    for now in (MOVING, SEALED, ASSIGNED):
        with pytest.raises(Conflict, match="handed over"):
            check_may_assign(now, now.broker_id, take_over=False)


def test_every_step_is_guarded_by_what_was_read() -> None:
    change = cancel(READY, NOW)
    key = keys.assignment_key(READY.topic_id)
    assert transaction(change, Witnesses()) == (
        [Put(key, SERVING.to_json())],
        [ModRevision(key, NOW)],
    )


@pytest.mark.parametrize("there", [True, False])
def test_the_seal_keeps_objects_of_its_epoch_out_of_the_catalog(there: bool) -> None:
    head = CatalogHead(epoch=3, folder="f", start_offset=0, tiered_offset=5, objects=2)
    found = Committed(head=head, revision=Revision(40)) if there else None
    change = seal(READY, NOW, (part(0, 5),), at_ms=9)
    writes, guards = transaction(change, Witnesses(head=found, folder="g", start_offset=2))
    at = head_key(READY.topic_id)
    assert guards[1] == (ModRevision(at, Revision(40)) if there else Absent(at))
    written = writes[1]
    assert isinstance(written, Put)
    raised = CatalogHead.from_json(written.value, key=at)
    empty = CatalogHead(epoch=4, folder="g", start_offset=2, tiered_offset=2)
    assert raised == (replace(head, epoch=4) if there else empty)


def test_a_removed_owner_is_sealed_in_its_place_from_wherever_it_stood() -> None:
    for now in (SERVING, MOVING, OFFERED, READY, OPENED):
        taken = take_away(now, NOW, (part(0, 5), part(5, 8)), THREE, at_ms=9).after
        assert (taken.stage, taken.sealed_epoch, taken.next_owner) == (Stage.SEALED, now.epoch, THREE)
        after = assign(taken, NOW, THREE, incarnation=LIFE, epoch=Epoch(now.epoch + 1)).after
        assert open_topic(after, NOW, LIFE).after.broker_id == THREE
    for now in (SEALED, ASSIGNED):  # what was handed over goes on as it was
        with pytest.raises(Conflict):
            take_away(now, NOW, (part(0, 5),), THREE, at_ms=9)
    with pytest.raises(Conflict, match="follow each other"):
        take_away(SERVING, NOW, (), THREE, at_ms=9)


@pytest.mark.parametrize("there", [True, False])
def test_objects_know_where_a_topic_goes_on_that_was_taken_away(there: bool) -> None:
    head = CatalogHead(epoch=3, folder="f", start_offset=0, tiered_offset=5, objects=2, resumes_at=4)
    found = Committed(head=head, revision=Revision(40)) if there else None
    change = take_away(SERVING, NOW, (part(5, 99),), TWO, at_ms=9)
    writes, guards = transaction(change, Witnesses(head=found, folder="g", start_offset=2, resumes_at=99))
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
    counter = EpochCounter(epoch=Epoch(3), guard=ModRevision(counter_key, Revision(31)))
    change = assign(SEALED, NOW, TWO, incarnation=LIFE, epoch=Epoch(4))
    writes, guards = transaction(change, Witnesses(leadership=leadership, counter=counter))
    assert guards[1:] == [leadership.guard, counter.guard]
    assert [write.key for write in writes if isinstance(write, Put)][1:] == [counter_key]


def leader(now: Assignment, alive: dict[BrokerId, Incarnation], waited_ms: int = 0) -> Change | None:
    return leaders_change(now, NOW, LeaderView(alive=alive, waited_ms=waited_ms, last_epoch=Epoch(6)))


def test_the_leader_does_not_touch_moves_that_progress() -> None:
    assert leader(SERVING, {}) is None
    assert leader(READY, ALIVE) is None
    assert leader(ASSIGNED, ALIVE) is None
    assert leader(SEALED, {}) is None


def test_the_leader_ends_what_hangs() -> None:
    for now, alive, waited in ((MOVING, ALIVE, PATIENCE_MS), (READY, {ONE: LIFE}, 0)):
        change = leader(now, alive, waited)
        assert change is not None
        assert change.after == SERVING
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
