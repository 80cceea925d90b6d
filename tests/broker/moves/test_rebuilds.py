"""An heir rebuilds topics of a lost owner: how many at once, and what stays of one that goes to another heir."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.copying.arrival import Arrival
from pydanube_broker.moves.move import assign, take_away
from pydanube_broker.topics.log_state import LogState
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Put, Revision

from tests.broker.copying.test_moves_between_journals import ONE, TWO, Half
from tests.support.memory_store import MemoryStore
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

LOST = BrokerId(9)


class Heir(Half):
    """A broker whose store takes nothing until `store_is_back`."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        super().__init__(ONE, folder, store, 1, {})
        self.store_is_back = anyio.Event()
        self.rebuilt = 0

    async def rebuild(self, assignment: Assignment, arrival: Arrival) -> None:
        await arrival.finish(assignment.epoch, LogState(assignment.topic_id, opened=True))
        self.rebuilt += 1

    async def make_safe(self, assignment: Assignment) -> None:
        await self.store_is_back.wait()


@asynccontextmanager
async def heir_of(folder: Path, topics: int) -> AsyncIterator[tuple[Heir, list[Assignment]]]:
    """Yield a broker that is assigned so many topics of a lost one, and the assignments."""
    async with MemoryStore() as store, anyio.create_task_group() as group:
        assigned = []
        for number in range(1, topics + 1):
            lost = Assignment(
                topic_id=TopicId(number),
                topic=TopicName("default", f"t{number}"),
                broker_id=LOST,
                incarnation=Incarnation(1),
                epoch=Epoch(1),
            )
            taken = take_away(lost, Revision(1), ONE, at_ms=1).after
            after = assign(taken, Revision(1), ONE, incarnation=Incarnation(1), epoch=Epoch(2)).after
            await store.transact([Put(keys.assignment_key(lost.topic_id), after.to_json())])
            assigned.append(after)
        heir = Heir(folder, store)
        group.start_soon(heir.run)
        yield heir, assigned
        group.cancel_scope.cancel()
    heir.hub.journal.abandon()


async def test_rebuilt_topics_that_wait_for_the_store_are_bounded(tmp_path: Path) -> None:
    async with heir_of(tmp_path, 520) as (heir, _):
        await until(lambda: heir.rebuilt >= 512)
        await anyio.wait_all_tasks_blocked()
        assert heir.rebuilt == 512
        heir.store_is_back.set()
        await until(lambda: len(heir.topics) == 520)


async def test_rebuilt_topic_that_goes_to_another_heir_in_the_moment_it_is_safe_is_dropped(
    tmp_path: Path,
) -> None:
    async with heir_of(tmp_path, 1) as (heir, (assigned,)):
        await until(lambda: bool(heir.rebuilt))
        await anyio.wait_all_tasks_blocked()
        assert assigned.topic_id in heir.hub.states
        after = assign(assigned, Revision(1), TWO, incarnation=Incarnation(1), epoch=Epoch(3)).after
        heir.store_is_back.set()
        heir.mover.see(assigned.topic_id, after, Revision(1 << 40))
        await anyio.wait_all_tasks_blocked()
        assert assigned.topic_id not in heir.hub.states
