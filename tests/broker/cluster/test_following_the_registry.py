"""The index takes in every change by the watch, in the store's order: one's own, and those of other brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.format_step import FormatStep
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Absent, Put

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

T = TopicName.parse("/default/t")
GRACE = Grace(call_id="c1", until_ms=1 << 50)


@asynccontextmanager
async def following(store: MemoryStore) -> AsyncIterator[TopicCatalog]:
    """A broker's catalog."""
    other = TopicCatalog(store, wall_ms=lambda: 0)
    await other.load()
    async with anyio.create_task_group() as group:
        group.start_soon(other.records.follow)
        yield other
        group.cancel_scope.cancel()
    await other.records.aclose()


async def caught_up(catalog: TopicCatalog, other: TopicCatalog) -> None:
    while known_keys(other) != known_keys(catalog):
        await anyio.lowlevel.checkpoint()


def known_keys(catalog: TopicCatalog) -> set[str]:
    tables = (*catalog.index.tables, *catalog.restorable.tables)
    return {key for table in tables for key in table.known_keys()}


async def test_another_brokers_changes_arrive_without_asking(
    store: MemoryStore,
) -> None:
    async with following(store) as catalog, following(store) as other:
        (made,) = await catalog.create_topic(T)
        await catalog.subscriptions.create(made.topic_id, "s", type="shared", start_offset=7)
        await caught_up(catalog, other)
        assert other.index.topic(T) == catalog.index.topic(T)
        assert other.index.subscription(made, "s").start_offset == 7
        await catalog.delete_topic(T)
        await caught_up(catalog, other)
        assert other.index.find_topic(T) is None
        assert other.index.subscriptions(made.topic_id) == []


async def test_who_sees_a_topic_gone_knows_that_it_is_kept_and_its_return_brings_its_subscriptions(
    store: MemoryStore,
) -> None:
    async with following(store) as catalog, following(store) as other:
        (made,) = await catalog.create_topic(T)
        await catalog.subscriptions.create(made.topic_id, "s", type="shared", start_offset=0)
        await caught_up(catalog, other)
        seen: list[tuple[bool, bool]] = []

        def removed(key: str) -> None:
            if key == keys.topic_key(T):
                seen.append((other.index.find_topic(T) is None, other.restorable.keeps_data(made.topic_id)))

        other.records.on_key = removed
        await catalog.delete_topic(T, grace=GRACE)
        await caught_up(catalog, other)
        assert seen == [(True, True)]
        await catalog.restore_topics("c1")
        await caught_up(catalog, other)
        assert other.index.topic(T).topic_id == made.topic_id
        assert [one.name for one in other.index.subscriptions(made.topic_id)] == ["s"]
        assert not other.restorable.keeps_data(made.topic_id)


async def test_a_catalog_that_fell_behind_the_kept_history_reads_everything_again(clock: ManualClock) -> None:
    async with MemoryStore(clock=clock, history_revisions=4) as store:
        catalog, behind = (TopicCatalog(store, wall_ms=lambda: 0) for _ in range(2))
        await catalog.load()
        await catalog.create_topic(T)
        await behind.load()
        await catalog.delete_topic(T)
        for number in range(40):
            await catalog.create_topic(TopicName("default", f"later-{number}"))
        await behind.create_topic(TopicName("default", "mine"))
        assert behind.index.find_topic(T) is None
        assert len(behind.index.topics()) == 41
        for each in (catalog, behind):
            await each.records.aclose()


async def test_many_changes_at_once_are_each_seen_by_who_made_them(catalog: TopicCatalog) -> None:
    async def make(number: int) -> None:
        name = TopicName("default", f"t{number}")
        await catalog.create_topic(name)
        assert catalog.index.topic(name).topic_id

    async with anyio.create_task_group() as group:
        for number in range(300):
            group.start_soon(make, number)
    assert len(catalog.index.topics()) == 300


async def test_what_lies_between_the_trees_is_not_taken_in(catalog: TopicCatalog, store: MemoryStore) -> None:
    before = known_keys(catalog)
    await store.transact([Put("/schemas/x", b"no record of the catalog")])
    await catalog.create_topic(T)
    assert known_keys(catalog) - before == {keys.topic_key(T)}
    assert catalog.quarantine.found == {}


@pytest.mark.parametrize("partitions", [0, 3])
async def test_every_broker_hears_when_the_grace_of_a_topic_or_of_its_partitions_has_ended(
    store: MemoryStore, partitions: int
) -> None:
    """It deletes the messages that it keeps of them. The partitions of a topic have no tombstone of their own."""
    async with following(store) as catalog, following(store) as other:
        await FormatStep(catalog, Absent("/nobody/else")).take()
        parts = await catalog.create_topic(T, partitions=partitions)
        await catalog.delete_topic(T, grace=GRACE)
        await caught_up(catalog, other)
        heard: list[str] = []
        other.records.on_key = heard.append
        gone = await catalog.forget_topics(GRACE.until_ms + 1)
        await caught_up(catalog, other)
        assert sorted(gone) == sorted(part.topic_id for part in parts)
        assert {keys.topic_tombstone_key(topic_id) for topic_id in gone} <= set(heard)
