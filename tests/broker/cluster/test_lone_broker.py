"""A broker alone, over its SQLite file: it takes the lead whatever its former lives left there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.coordinator import Coordinator
from pydanube_broker.cluster.records import PartitionedSpec, Stage
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.errors import Conflict, StoreUnavailable
from pydanube_core.facts import BrokerAddress, Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    Delete,
    EmbeddedStore,
    Guard,
    MetadataStore,
    Put,
    Revision,
    Write,
    read_all,
)

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


@asynccontextmanager
async def alone(store: MetadataStore, broker_id: int = 7) -> AsyncIterator[Coordinator]:
    catalog = TopicCatalog(store, wall_ms=lambda: 1)
    async with Coordinator(
        store,
        BrokerAddress(broker_id=str(broker_id), broker_url="http://b:1", admin_url="http://b:2"),
        catalog=catalog,
        several=False,
        check=lambda topics, former: None,
        changed=lambda key: None,
        seen=lambda topic_id, assignment, revision: None,
    ) as lone:
        yield lone


async def test_each_start_raises_every_epoch_and_keeps_ids(path: Path) -> None:
    seen: list[dict[int, int]] = []
    for start in range(3):
        async with EmbeddedStore(path) as store, alone(store) as lone:
            if start == 0:
                made = await lone.catalog.create_topic(TopicName("default", "t"), partitions=30)
                await lone.assign(made)
            assert lone.membership.registration.incarnation == start + 1
            seen.append({topic_id: lone.epoch(topic_id) for topic_id in lone.assignments})
    assert [set(epochs.values()) for epochs in seen] == [{1}, {2}, {3}]
    assert seen[0].keys() == seen[1].keys() == seen[2].keys()
    assert len(seen[0]) == 30


async def test_assigning_again_changes_nothing(path: Path) -> None:
    async with EmbeddedStore(path) as store, alone(store) as lone:
        made = await lone.catalog.create_topic(TopicName("default", "t"))
        first = await lone.assign(made)
        revision = store.statistics().revision
        assert await lone.assign(made) == first
        assert store.statistics().revision == revision


async def test_start_finishes_what_was_half_made_and_assigns_what_nobody_owned(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        catalog = TopicCatalog(store, wall_ms=lambda: 1)
        await catalog.load()
        await catalog.create_topic(TopicName("default", "plain"))  # the process died before it was assigned
        half = PartitionedSpec(
            name="/default/half",
            created_at_ms=1,
            partitions=3,
            declared=True,
            stage=Stage.CREATING,
            settings=catalog.index.topics()[0].settings,
        )
        await store.transact([Put("/registry/partitioned/default/half", half.to_json())])
    async with EmbeddedStore(path) as store, alone(store) as lone:
        names = {str(assignment.topic) for assignment in lone.assignments.values()}
        assert names == {"/default/plain", *(f"/default/half-part-{i}" for i in range(3))}


async def test_nothing_of_another_broker_id_is_left_after_the_start(path: Path) -> None:
    """The broker-id file was lost: the directory is still ours alone."""
    async with EmbeddedStore(path) as store:
        async with alone(store, broker_id=7) as lone:
            await lone.assign(await lone.catalog.create_topic(TopicName("default", "t")))
            crashed = await store.range(keys.MEMBERS)
            leader = await store.get(keys.LEADER)
        assert leader is not None
        # As a SIGKILL would have left it: the keys of the dead are there.
        await store.transact([Put(item.key, item.value) for item in (*crashed.items, leader)])
        async with alone(store, broker_id=8) as lone:
            (assignment,) = lone.assignments.values()
            assert (assignment.broker_id, assignment.epoch) == (8, 2)
            members, _ = await read_all(store, keys.MEMBERS)
            assert [keys.number_in_key(item.key) for item in members] == [8]
            assert lone.leadership.broker_id == 8


async def test_an_assignment_of_a_topic_that_is_gone_is_deleted_and_one_that_may_come_back_stays(
    path: Path,
) -> None:
    async with EmbeddedStore(path) as store:
        async with alone(store) as lone:
            kept, gone = [
                (await lone.catalog.create_topic(TopicName("default", name)))[0] for name in ("kept", "gone")
            ]
            await lone.assign([kept, gone])
            await lone.catalog.delete_topic(kept.topic, grace=Grace(call_id="c", until_ms=10))
            # The process died between the topic's record and its assignment.
            await store.transact([Delete(keys.topic_key(gone.topic))])
        async with alone(store) as lone:
            assert lone.assignments == {}
            left, _ = await read_all(store, keys.ASSIGNMENTS)
            assert [keys.number_in_key(item.key) for item in left] == [kept.topic_id]


async def test_office_and_membership_end_with_the_block(path: Path) -> None:
    async with EmbeddedStore(path) as store:
        async with alone(store) as lone:
            assert lone.leadership.broker_id == 7
        with pytest.raises(Conflict):
            lone.leadership  # noqa: B018
        assert (await store.range(keys.MEMBERS)).items == ()
        assert await store.get(keys.LEADER) is None


async def test_store_that_fails_does_not_keep_the_broker_from_leaving() -> None:
    class FailingStore(MemoryStore):
        failing = False

        async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
            if self.failing:
                raise StoreUnavailable("disk I/O error")
            return await super().transact(writes, guards=guards)

    async with FailingStore() as store:
        async with alone(store):
            store.failing = True
        assert await store.get(keys.LEADER) is not None
        store.failing = False
        async with alone(store) as lone:  # and the next life finds its way
            assert lone.membership.registration.incarnation == 2
