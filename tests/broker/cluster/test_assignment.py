"""Assignments: epochs that never repeat for a name, owners that are not dispossessed, fenced leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assigner, Assignment
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.epochs import EpochRecord
from pydanube_broker.cluster.ids import BrokerId, Epoch, FencingToken, Incarnation, TopicId
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.moves.move import Preconditions, begin, transaction
from pydanube_core.errors import Conflict
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Delete, Guard, GuardFailed, KeyValue, Put, Revision, Write

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
ONE, TWO = BrokerId(1), BrokerId(2)
LIFE = Incarnation(1)
TOPIC = TopicName("default", "t")


class RacedStore(MemoryStore):
    """A store in which another broker counts an epoch right before each transaction."""

    counted = 0

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        self.counted += 1
        await super().transact([Put(keys.epoch_key(TOPIC), EpochRecord(epoch=Epoch(self.counted)).to_json())])
        return await super().transact(writes, guards=guards)


async def assignments(assigner: Assigner) -> dict[TopicId, Assignment]:
    return {topic_id: assignment for topic_id, (assignment, _) in (await assigner.found()).items()}


async def test_every_assignment_has_a_new_epoch(catalog: TopicCatalog, store: MemoryStore) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    assigner = Assigner(store)
    epochs = [(await assigner.assign(topic, ONE, incarnation=LIFE)).epoch for _ in range(3)]
    assert epochs == [1, 2, 3]
    stored = (await assignments(assigner))[topic.topic_id]
    assert (stored.broker_id, stored.epoch, stored.topic) == (ONE, 3, TOPIC)


async def test_epochs_of_a_name_go_on_after_deletion(catalog: TopicCatalog, store: MemoryStore) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    assigner = Assigner(store)
    await assigner.assign(topic, ONE, incarnation=LIFE)
    await catalog.delete_topic(TOPIC)
    assert await assignments(assigner) == {}
    (again,) = await catalog.create_topic(TOPIC)
    assert (await assigner.assign(again, ONE, incarnation=LIFE)).epoch == 2


async def test_assignments_at_the_same_instant_get_different_epochs(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    epochs: list[int] = []

    async def assign() -> None:
        epochs.append((await Assigner(store).assign(topic, ONE, incarnation=LIFE)).epoch)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(assign)
    assert sorted(epochs) == [1, 2, 3]
    assert (await assignments(Assigner(store)))[topic.topic_id].epoch == 3


async def test_deleted_topic_is_not_assigned(catalog: TopicCatalog, store: MemoryStore) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    await catalog.delete_topic(TOPIC)
    with pytest.raises(GuardFailed):
        await Assigner(store).assign(topic, ONE, incarnation=LIFE)
    await catalog.create_topic(TOPIC)
    with pytest.raises(GuardFailed):
        await Assigner(store).assign(topic, ONE, incarnation=LIFE)
    assert await assignments(Assigner(store)) == {}


async def test_topic_of_another_broker_moves_only_sealed_or_on_purpose(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    assigner = Assigner(store)
    await assigner.assign(topic, ONE, incarnation=LIFE)
    with pytest.raises(Conflict, match="has not sealed it"):
        await assigner.assign(topic, TWO, incarnation=LIFE)
    with pytest.raises(Conflict, match="has not sealed it"):
        await assigner.assign_all([topic], TWO, incarnation=LIFE, current=await assigner.found())
    assert (await assigner.assign(topic, TWO, incarnation=LIFE, take_over=True)).epoch == 2
    key = keys.assignment_key(topic.topic_id)
    sealed = Assignment(topic=TOPIC, broker_id=TWO, incarnation=LIFE, epoch=Epoch(2), sealed_at_ms=9)
    await store.transact([Put(key, sealed.to_json())])
    moved = await assigner.assign(topic, ONE, incarnation=LIFE)
    assert (moved.epoch, (await assignments(assigner))[topic.topic_id].sealed_at_ms) == (3, None)


async def test_leader_that_was_replaced_assigns_nothing(catalog: TopicCatalog, store: MemoryStore) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    token = await store.transact([Put(keys.LEADER, b"one")])
    leadership = Leadership(broker_id=ONE, incarnation=LIFE, token=FencingToken(token))
    assigner = Assigner(store, leadership=leadership)
    await assigner.assign(topic, ONE, incarnation=LIFE)
    await store.transact([Delete(keys.LEADER)])
    await store.transact([Put(keys.LEADER, b"two")])
    with pytest.raises(Conflict):
        await assigner.assign(topic, ONE, incarnation=LIFE)
    with pytest.raises(Conflict):
        await assigner.assign_all([topic], ONE, incarnation=LIFE, current={})
    assert (await assignments(Assigner(store)))[topic.topic_id].epoch == 1


@pytest.mark.parametrize("count", [3, 150])
async def test_many_at_once_survive_a_neighbour_that_changed(
    catalog: TopicCatalog, store: MemoryStore, count: int
) -> None:
    topics = [(await catalog.create_topic(TopicName("default", f"t{i}")))[0] for i in range(count)]
    gone, busy = topics[1], topics[2]
    await catalog.delete_topic(gone.topic)
    await Assigner(store).assign(busy, ONE, incarnation=LIFE)
    made = await Assigner(store).assign_all(topics, ONE, incarnation=LIFE, current={})
    assert made.keys() == {topic.topic_id for topic in topics} - {gone.topic_id}
    assert {made[busy.topic_id].epoch} == {2}
    assert {a.epoch for a in made.values() if a.topic_id != busy.topic_id} == {1}
    assert await assignments(Assigner(store)) == made


@pytest.mark.parametrize("take_over", [False, True])
async def test_many_at_once_leave_out_a_topic_that_another_broker_got_unless_they_take_over(
    catalog: TopicCatalog, store: MemoryStore, take_over: bool
) -> None:
    topics = [(await catalog.create_topic(TopicName("default", f"t{i}")))[0] for i in range(3)]
    free, gone, taken = topics
    await catalog.delete_topic(gone.topic)  # so that the topics are assigned one by one
    await Assigner(store).assign(taken, TWO, incarnation=LIFE)
    made = await Assigner(store).assign_all(topics, ONE, incarnation=LIFE, current={}, take_over=take_over)
    assert made.keys() == {free.topic_id} | ({taken.topic_id} if take_over else set())
    owners = {topic_id: each.broker_id for topic_id, each in (await assignments(Assigner(store))).items()}
    assert owners == {free.topic_id: ONE, taken.topic_id: ONE if take_over else TWO}


@pytest.mark.parametrize("together", [True, False])
async def test_a_move_that_begins_after_the_assignments_were_read_is_not_overwritten(
    catalog: TopicCatalog, store: MemoryStore, together: bool
) -> None:
    """It does not raise the counter of epochs, so that only the assignment itself shows it."""
    topics = [(await catalog.create_topic(TopicName("default", f"t{i}")))[0] for i in range(2)]
    assigner = Assigner(store)
    for topic in topics:
        await assigner.assign(topic, ONE, incarnation=LIFE)
    current = await assigner.found()
    first, (now, revision) = topics[0], current[topics[0].topic_id]
    writes, guards = transaction(begin(now, revision, TWO, at_ms=1), Preconditions())
    if together:
        await store.transact(writes, guards=guards)
        made = await assigner.assign_all(topics, ONE, incarnation=LIFE, current=current)
        assert made.keys() == {topics[1].topic_id}
    else:

        async def counted(key: str, get: Any = store.get) -> KeyValue | None:
            found: KeyValue | None = await get(key)
            if key == keys.assignment_key(first.topic_id) and not begun:
                begun.append(await store.transact(writes, guards=guards))
            return found

        begun: list[Revision] = []
        store.get = counted  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="is moving"):
            await assigner.assign(first, ONE, incarnation=LIFE)
    assert (await assignments(assigner))[first.topic_id].move is not None


async def test_an_assignment_made_after_the_read_that_found_none_is_not_overwritten(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    current = await Assigner(store).found()
    await Assigner(store).assign(topic, TWO, incarnation=LIFE)
    assert await Assigner(store).assign_all([topic], ONE, incarnation=LIFE, current=current) == {}
    assert (await assignments(Assigner(store)))[topic.topic_id].broker_id == TWO


async def test_a_first_assignment_that_always_finds_another_epoch_is_a_conflict(
    catalog: TopicCatalog, clock: ManualClock
) -> None:
    (topic,) = await catalog.create_topic(TOPIC)
    async with RacedStore(clock=clock) as raced:
        with pytest.raises(Conflict, match="changed the assignment of /default/t"):
            await Assigner(raced).assign_first([topic], ONE, incarnation=LIFE)
        assert await assignments(Assigner(raced)) == {}
