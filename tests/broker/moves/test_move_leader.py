"""The leader cancels a move whose topic makes no progress, whatever else its target copies. An heir has to open topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.ids import BrokerId, Epoch, FencingToken, Incarnation, TopicId
from pydanube_broker.cluster.membership import Progress
from pydanube_broker.cluster.move_record import MoveRecord, Stage
from pydanube_broker.moves.move import PATIENCE_MS, begin
from pydanube_broker.moves.move_leader import Brokers, MoveLeader
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Put, Revision

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
ONE, TWO = BrokerId(1), BrokerId(2)
STUCK, QUEUED = TopicId(7), TopicId(8)


class Looks:
    """A leader that looks every 10 s at two topics that move to broker 2."""

    def __init__(self, store: MemoryStore, leadership: Leadership) -> None:
        self._store = store
        self._now_ms = 0
        self._leader = MoveLeader(store, leadership, now_ms=lambda: self._now_ms)
        self.reads = 0

    async def look(
        self, copied: int, progress: dict[TopicId, Progress], topics: Sequence[TopicId] = (STUCK, QUEUED)
    ) -> None:
        self._now_ms += 10_000
        alive = {ONE: Incarnation(1), TWO: Incarnation(1)}
        brokers = Brokers(
            alive=alive,
            copying=alive,
            copied={TWO: copied},
            progress={(TWO, topic_id): each for topic_id, each in progress.items()},
        )
        places = [await self.place(topic_id) for topic_id in topics]
        await self._leader.look_after([each for each in places if each.stage is not Stage.SERVING], brokers)

    async def place(self, topic_id: TopicId) -> Assignment:
        key = keys.assignment_key(topic_id)
        item = await self._store.get(key)
        assert item is not None
        return Assignment.of(key, item.value)


@pytest.fixture
async def looks(store: MemoryStore) -> Looks:
    serving = Assignment(
        topic_id=STUCK,
        topic=TopicName("default", "t"),
        broker_id=ONE,
        incarnation=Incarnation(1),
        epoch=Epoch(3),
    )
    for topic_id in (STUCK, QUEUED):
        moving = begin(replace(serving, topic_id=topic_id), Revision(1), TWO, at_ms=1).after
        await store.transact([Put(keys.assignment_key(topic_id), moving.to_json())])
    token = FencingToken(await store.transact([Put(keys.LEADER, b"leader")]))
    return Looks(store, Leadership(broker_id=ONE, incarnation=Incarnation(1), token=token))


async def test_a_topic_that_hangs_is_cancelled_though_its_target_copies_others(looks: Looks) -> None:
    for n in range(PATIENCE_MS // 10_000 + 1):
        assert (await looks.place(STUCK)).stage is Stage.MOVING
        await looks.look(n * 1_000_000, {STUCK: Progress(done=5, total=9)})
    stuck = await looks.place(STUCK)
    assert stuck.stage is Stage.SERVING
    assert stuck.failed is not None
    assert stuck.failed.why == "/default/t was not moved: broker 2 copied nothing of it for 60 s"
    assert (await looks.place(QUEUED)).stage is Stage.MOVING, "it waits for its turn, and others progress"


async def test_a_topic_that_progresses_is_never_cancelled(looks: Looks) -> None:
    for n in range(30):
        await looks.look(0, {each: Progress(done=n, total=99) for each in (STUCK, QUEUED)})
    assert (await looks.place(STUCK)).stage is Stage.MOVING


async def test_a_target_that_copies_nothing_at_all_loses_every_move(looks: Looks) -> None:
    for _ in range(PATIENCE_MS // 10_000 + 1):
        await looks.look(0, {})
    assert (await looks.place(STUCK)).stage is (await looks.place(QUEUED)).stage is Stage.SERVING


async def opening(store: MemoryStore, count: int, first: int = 100) -> list[TopicId]:
    """Assign so many topics of a lost owner to broker 2, which has opened none yet. Return them."""
    topics = [TopicId(first + n) for n in range(count)]
    for topic_id in topics:
        assigned = Assignment(
            topic_id=topic_id,
            topic=TopicName("default", f"t{topic_id}"),
            broker_id=TWO,
            incarnation=Incarnation(1),
            epoch=Epoch(3),
            stage=Stage.ASSIGNED,
            sealed_epoch=2,
            move=MoveRecord(source="9", target=str(TWO), begun_at_ms=1, from_store=True),
        )
        await store.transact([Put(keys.assignment_key(topic_id), assigned.to_json())])
    return topics


async def test_an_heir_keeps_its_topics_as_long_as_it_opens_one_of_them_now_and_then(
    looks: Looks, store: MemoryStore
) -> None:
    waiting = await opening(store, 4)
    while len(waiting) > 1:
        for _ in range(PATIENCE_MS // 10_000 - 1):
            await looks.look(0, {}, waiting)
        opened = await looks.place(waiting.pop(0))
        served = replace(opened, stage=Stage.SERVING, move=None)
        await store.transact([Put(keys.assignment_key(opened.topic_id), served.to_json())])
        assert [(await looks.place(each)).broker_id for each in waiting] == [TWO] * len(waiting)
    for _ in range(PATIENCE_MS // 10_000 + 1):
        await looks.look(0, {}, waiting)
    assert (await looks.place(waiting[0])).broker_id == ONE, (
        "an heir that opens nothing any more loses the rest"
    )


async def test_topics_that_come_to_an_heir_or_leave_it_unopened_are_no_progress_of_the_heir(
    looks: Looks, store: MemoryStore
) -> None:
    (stuck,), others = await opening(store, 1), list[TopicId]()
    for n in range(PATIENCE_MS // 10_000 + 1):
        assert (await looks.place(stuck)).broker_id == TWO
        await looks.look(0, {}, [stuck, *others])
        if n % 2:
            left = replace(await looks.place(others[-1]), broker_id=ONE)
            await store.transact([Put(keys.assignment_key(left.topic_id), left.to_json())])
        else:
            others += await opening(store, 1, first=200 + n)
    assert (await looks.place(stuck)).broker_id == ONE
