"""Ends of moves share transactions; one whose guard fails costs the others nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.membership import BrokerState, MemberRecord
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.moves.move import Change, MoveStep, arrive, assign, begin, open_topic, take_away
from pydanube_broker.moves.move_ends import SHARED, MoveEnds
from pydanube_core.errors import ClusterError, Internal, Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import Guard, GuardFailed, Put, Revision, Write

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
ONE, TWO = BrokerId(1), BrokerId(2)
LIFE = Incarnation(4)
MANY = 35


class Ends:
    """`MoveEnds` of broker 2, and the moves that it may end."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.gone: set[TopicId] = set()
        self.ends = MoveEnds(
            store,
            ObjectCatalog(store, wall_ms=lambda: 1),
            me=TWO,
            incarnation=lambda: LIFE,
            folder_of=lambda topic_id, name: f"f/{topic_id}",
            start_of=self._start_of,
        )

    def _start_of(self, topic_id: TopicId) -> int:
        if topic_id in self.gone:
            raise Unavailable("no copy")
        return 0

    async def begun(self, number: int) -> Change:
        serving = Assignment(
            topic_id=TopicId(number),
            topic=TopicName("default", f"t{number}"),
            broker_id=ONE,
            incarnation=LIFE,
            epoch=Epoch(3),
        )
        moving = begin(serving, Revision(1), TWO, at_ms=1, ready=LIFE).after
        revision = await self.store.transact([Put(keys.assignment_key(moving.topic_id), moving.to_json())])
        return arrive(moving, revision, LIFE)

    async def assigned(self, number: int) -> Change:
        """Return the `open` of a topic that a lost owner had."""
        serving = Assignment(
            topic_id=TopicId(number),
            topic=TopicName("default", f"t{number}"),
            broker_id=ONE,
            incarnation=LIFE,
            epoch=Epoch(3),
        )
        sealed = take_away(serving, Revision(1), TWO, at_ms=1).after
        given = assign(sealed, Revision(1), TWO, incarnation=LIFE, epoch=Epoch(4)).after
        revision = await self.store.transact([Put(keys.assignment_key(given.topic_id), given.to_json())])
        return open_topic(given, revision, LIFE)

    async def end_all(self, changes: Sequence[Change]) -> list[ClusterError | None]:
        """End all at once. Return the error of each, None for those that ended."""
        outcomes: list[ClusterError | None] = [None] * len(changes)
        async with anyio.create_task_group() as group:

            async def one(number: int, change: Change) -> None:
                try:
                    after, _ = await self.ends.send(change, group)
                except ClusterError as error:
                    outcomes[number] = error
                else:
                    assert after.after.epoch == 4

            for number, change in enumerate(changes):
                group.start_soon(one, number, change)
        return outcomes

    async def served_by(self, number: int) -> BrokerId | None:
        key = keys.assignment_key(TopicId(number))
        item = await self.store.get(key)
        assert item is not None
        record = Assignment.of(key, item.value)
        return record.broker_id if record.stage is Stage.SERVING else None


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with MemoryStore(clock=ManualClock(start_ms=1_000)) as opened:
        yield opened


@asynccontextmanager
async def ends(store: MemoryStore, *, life: int = LIFE) -> AsyncIterator[Ends]:
    member = MemberRecord(
        broker_id="2",
        incarnation=life,
        broker_url="",
        admin_url="",
        state=BrokerState.ACTIVE,
        reason="",
        registered_at_ms=1,
    )
    await store.transact([Put(keys.member_key(TWO), member.to_json())])
    with anyio.fail_after(20):
        yield Ends(store)


async def test_many_ends_take_few_transactions(store: MemoryStore) -> None:
    async with ends(store) as some:
        changes = [await some.begun(number) for number in range(1, MANY + 1)]
        before = store.statistics().transactions
        assert await some.end_all(changes) == [None] * MANY
        # The first ones leave alone, since nothing may wait for company.
        assert store.statistics().transactions - before <= MANY // SHARED[MoveStep.ARRIVE] + 5
        assert [await some.served_by(number) for number in range(1, MANY + 1)] == [TWO] * MANY


async def test_many_topics_of_a_lost_broker_are_opened_by_few_transactions(store: MemoryStore) -> None:
    async with ends(store) as some:
        changes = [await some.assigned(number) for number in range(1, MANY + 1)]
        before = store.statistics().transactions
        assert await some.end_all(changes) == [None] * MANY
        assert store.statistics().transactions - before <= MANY // SHARED[MoveStep.OPEN] + 5
        assert [await some.served_by(number) for number in range(1, MANY + 1)] == [TWO] * MANY


async def test_topic_that_another_broker_opens_leaves_the_others_alone(store: MemoryStore) -> None:
    async with ends(store) as some:
        changes = [await some.assigned(number) for number in range(1, MANY + 1)]
        changes += [await some.begun(number) for number in range(MANY + 1, MANY + 11)]
        await some.assigned(3)  # its assignment has another revision now
        failed = await some.end_all(changes)
        assert [type(each) for each in failed if each is not None] == [GuardFailed]
        for number in range(1, MANY + 11):
            assert await some.served_by(number) == (None if number == 3 else TWO)


async def test_one_that_cannot_end_leaves_the_others_alone(store: MemoryStore) -> None:
    async with ends(store) as some:
        changes = [await some.begun(number) for number in range(1, MANY + 1)]
        await some.begun(MANY)  # its assignment has another revision now
        some.gone.add(TopicId(3))
        failed = await some.end_all(changes)
        assert [type(each) for each in failed if each is not None] == [Unavailable, GuardFailed]
        for number in range(1, MANY + 1):
            assert await some.served_by(number) == (None if number in (3, MANY) else TWO)


async def test_a_broker_that_is_registered_anew_ends_nothing(store: MemoryStore) -> None:
    async with ends(store, life=LIFE + 1) as some:
        (error,) = await some.end_all([await some.begun(1)])
        assert isinstance(error, Unavailable)
        assert await some.served_by(1) is None


async def test_an_unexpected_exception_fails_its_transaction_only(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ends(store) as some:
        first, second = await some.begun(1), await some.begun(2)
        with monkeypatch.context() as patched:

            async def transact(writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
                raise ZeroDivisionError("a defect")

            patched.setattr(store, "transact", transact)
            (error,) = await some.end_all([first])
        assert isinstance(error, Internal)
        assert await some.end_all([second]) == [None]
