"""Epochs of topic names whose counters are swept: none is given twice, whatever comes between and wherever a sweep dies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assigner
from pydanube_broker.cluster.coordinator import Coordinator
from pydanube_broker.cluster.epochs import sweep_epochs
from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.errors import StoreUnavailable
from pydanube_core.facts import BrokerAddress
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    Absent,
    EmbeddedStore,
    Guard,
    GuardFailed,
    MetadataStore,
    Revision,
    Write,
    read_all,
)

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

LEADS = Absent("/nobody/else")
ME, LIFE = BrokerId(7), Incarnation(1)
NAMES = [TopicName("default", name) for name in ("a", "b", "c-part-0")]


class InterruptedStore(MemoryStore):
    """A store in which something happens between the readings of a change and its transaction."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().transact(writes, guards=guards)


class MortalStore(EmbeddedStore):
    """A store whose user dies at the n-th transaction."""

    left: int | None = None

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StoreUnavailable("killed")
        return await super().transact(writes, guards=guards)


@asynccontextmanager
async def alone(store: MetadataStore, *, raises_format: bool = True) -> AsyncIterator[Coordinator]:
    catalog = TopicCatalog(store, wall_ms=lambda: 1)
    catalog.raises_format = raises_format
    async with Coordinator(
        store,
        BrokerAddress(broker_id=str(ME), broker_url="http://b:1", admin_url="http://b:2"),
        catalog=catalog,
        several=False,
        check=lambda topics, former: None,
        changed=lambda key: None,
        seen=lambda topic_id, assignment, revision: None,
    ) as lone:
        yield lone


async def counters(store: MetadataStore) -> set[str]:
    return {item.key for item in (await read_all(store, keys.EPOCHS))[0]}


async def made_and_deleted(coordinator: Coordinator, name: TopicName) -> int:
    (topic,) = await coordinator.assign(await coordinator.catalog.create_topic(name))
    await coordinator.catalog.delete_topic(name)
    coordinator.forget(topic.topic_id)
    return topic.epoch


STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(("assign", "anew", "skip", "sweep"))), max_size=4
)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(("assign", "anew", "skip", "sweep")), STEPS),
        max_size=12,
    )
)
async def test_no_epoch_of_a_name_is_given_twice(
    steps: list[tuple[TopicName, str, list[tuple[TopicName, str]]]],
) -> None:
    given_out: dict[TopicName, list[int]] = defaultdict(list)
    skipped: dict[TopicName, int] = defaultdict(int)
    async with InterruptedStore() as store:
        catalog = TopicCatalog(store, wall_ms=lambda: 1)
        await catalog.load()
        assigner = Assigner(store)

        async def take(name: TopicName, action: str) -> None:
            if action == "sweep":
                await sweep_epochs(store, LEADS, {keys.EPOCH_FLOOR})  # also of topics that exist
            elif action == "skip":
                above = max(given_out[name], default=0) + 3
                await assigner.skip_epochs(name, above)
                skipped[name] = max(skipped[name], above)
            else:
                topic = catalog.index.find_topic(name)
                if topic is None:
                    (topic,) = await catalog.create_topic(name.base, partitions=name.partition is not None)
                least = skipped[name]
                try:
                    made = await assigner.assign(topic, ME, incarnation=LIFE)
                    assert made.epoch > least
                    given_out[name].append(made.epoch)
                except GuardFailed:
                    assert catalog.index.find_topic(name) != topic, "it was deleted meanwhile"
                if action == "anew" and catalog.index.find_topic(name) is not None:
                    await catalog.delete_topic(name.base)

        for name, action, between in steps:

            async def meanwhile(rest: list[tuple[TopicName, str]] = between) -> None:
                for other, what in rest:
                    await take(other, what)

            if action in ("assign", "anew") and catalog.index.find_topic(name) is None:
                await catalog.create_topic(name.base, partitions=name.partition is not None)
            store.meanwhile = meanwhile
            await take(name, action)
            store.meanwhile = None
    for epochs in given_out.values():
        assert epochs == sorted(set(epochs))


async def test_counters_of_deleted_topics_are_swept_and_a_new_topic_begins_above_them(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    names = [TopicName("default", f"inbox-{number}") for number in range(120)]
    async with EmbeddedStore(path) as store, alone(store) as coordinator:
        (kept,) = await coordinator.assign(await coordinator.catalog.create_topic(NAMES[0]))
        for name in names:
            last = await made_and_deleted(coordinator, name)
        assert len(await counters(store)) == 121
        again = await made_and_deleted(coordinator, names[0])
        await coordinator.sweep_metadata()
        assert await counters(store) == {keys.epoch_key(NAMES[0]), keys.EPOCH_FLOOR}
        assert await made_and_deleted(coordinator, names[0]) > again > last
        assert await made_and_deleted(coordinator, TopicName("default", "never-before")) > again
    async with EmbeddedStore(path) as store, alone(store) as coordinator:
        assert coordinator.epoch(kept.topic_id) > kept.epoch
        await coordinator.sweep_metadata()
        assert await counters(store) == {keys.epoch_key(NAMES[0]), keys.EPOCH_FLOOR}


@pytest.mark.parametrize("dies_after", range(4))
async def test_a_sweep_that_dies_anywhere_forgets_no_epoch(tmp_path: Path, dies_after: int) -> None:
    path = tmp_path / "metadata.sqlite"
    names = [TopicName("default", f"inbox-{number}") for number in range(120)]
    async with MortalStore(path) as store, alone(store) as coordinator:
        epochs = {}
        for round_ in range(3):
            for name in names[round_ :: round_ + 1]:
                epochs[name] = await made_and_deleted(coordinator, name)
        store.left = dies_after
        if dies_after < 3:
            with pytest.raises(StoreUnavailable, match="killed"):
                await coordinator.sweep_metadata()
        else:
            await coordinator.sweep_metadata()
        store.left = None
    async with EmbeddedStore(path) as again, alone(again) as coordinator:
        for name, epoch in epochs.items():
            assert await made_and_deleted(coordinator, name) > epoch


async def test_nothing_is_swept_while_a_build_that_knows_no_floor_may_start(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    async with EmbeddedStore(path) as store, alone(store, raises_format=False) as coordinator:
        await made_and_deleted(coordinator, NAMES[0])
        await coordinator.sweep_metadata()
        assert await counters(store) == {keys.epoch_key(NAMES[0])}
    async with EmbeddedStore(path) as store, alone(store) as coordinator:
        await coordinator.sweep_metadata()
        assert await counters(store) == {keys.EPOCH_FLOOR}
