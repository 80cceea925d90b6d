"""The index takes in every change by the watch, in the store's order: one's own, and those of other brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.feed import Feed
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.errors import StoreUnavailable
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Compacted, Event, KeyRange, Put, Revision

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
        group.start_soon(other.follow)
        yield other
        group.cancel_scope.cancel()
    await other.aclose()


async def caught_up(catalog: TopicCatalog, other: TopicCatalog) -> None:
    while other.index.known_keys() != catalog.index.known_keys() or {*other.restorable_topics} != {
        *catalog.restorable_topics
    }:
        await anyio.lowlevel.checkpoint()


async def test_another_brokers_changes_arrive_without_asking(
    store: MemoryStore,
) -> None:
    async with following(store) as catalog, following(store) as other:
        (made,) = await catalog.create_topic(T)
        await catalog.create_subscription(made.topic_id, "s", type="shared", start_offset=7)
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
        await catalog.create_subscription(made.topic_id, "s", type="shared", start_offset=0)
        await caught_up(catalog, other)
        seen: list[tuple[bool, bool]] = []
        take = other.index.remove

        def removed(key: str, revision: Revision) -> None:
            take(key, revision)
            seen.append((other.index.find_topic(T) is None, other.kept(made.topic_id)))

        other.index.remove = removed  # type: ignore[method-assign]
        await catalog.delete_topic(T, grace=GRACE)
        await caught_up(catalog, other)
        assert seen == [(True, True)]
        await catalog.restore_topics("c1")
        await caught_up(catalog, other)
        assert other.index.topic(T).topic_id == made.topic_id
        assert [one.name for one in other.index.subscriptions(made.topic_id)] == ["s"]
        assert not other.kept(made.topic_id)


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
            await each.aclose()


async def test_many_changes_at_once_are_each_seen_by_who_made_them(catalog: TopicCatalog) -> None:
    async def make(number: int) -> None:
        name = TopicName("default", f"t{number}")
        await catalog.create_topic(name)
        assert catalog.index.topic(name).topic_id

    async with anyio.create_task_group() as group:
        for number in range(300):
            group.start_soon(make, number)
    assert len(catalog.index.topics()) == 300


async def test_who_stops_waiting_passes_the_reading_on(store: MemoryStore) -> None:
    taken: list[str] = []

    async def read() -> Revision:
        return store.statistics().revision

    def take(event: Event) -> None:
        taken.append(event.key)

    feed = Feed(store, KeyRange.prefix("/a/"), read=read, take=take)
    await feed.begin()
    async with anyio.create_task_group() as group:
        first = anyio.CancelScope()

        async def reader() -> None:
            with first:
                await feed.until(Revision(1 << 40), lambda: False)

        group.start_soon(reader)
        await anyio.lowlevel.checkpoint()
        group.start_soon(feed.until, Revision(1 << 41), lambda: len(taken) == 2)
        await anyio.lowlevel.checkpoint()
        await store.transact([Put("/a/1", b"")])
        while not taken:
            await anyio.lowlevel.checkpoint()
        first.cancel()
        await store.transact([Put("/a/2", b"")])
    assert taken == ["/a/1", "/a/2"]
    await feed.aclose()


async def test_who_waits_returns_with_the_change_although_the_store_has_gone_further(
    store: MemoryStore,
) -> None:
    """What is read at the store has the revision of the newest change of any key; the watch may bring none for long."""
    taken: list[str] = []

    async def read() -> Revision:
        return store.statistics().revision

    feed = Feed(store, KeyRange.prefix("/a/"), read=read, take=lambda event: taken.append(event.key))
    await feed.begin()
    async with anyio.create_task_group() as group:
        group.start_soon(feed.follow)
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(
                partial(feed.until, Revision(1 << 40), lambda: "/a/2" in taken, at_latest=True)
            )
            await anyio.lowlevel.checkpoint()
            for key in ("/a/1", "/a/2"):
                await store.transact([Put(key, b"")])
        group.cancel_scope.cancel()
    await feed.aclose()


async def test_what_lies_between_the_trees_is_not_taken_in(catalog: TopicCatalog, store: MemoryStore) -> None:
    before = catalog.index.known_keys()
    await store.transact([Put("/schemas/x", b"no record of the catalog")])
    await catalog.create_topic(T)
    assert catalog.index.known_keys() - before == {keys.topic_key(T)}
    assert catalog.aside.found == {}


async def test_watch_that_lost_its_place_while_the_store_was_away_goes_on_afterwards() -> None:
    async with MemoryStore(clock=ManualClock()) as store:
        taken: list[str] = []
        away = [False]

        async def read() -> Revision:
            if away[0]:
                raise StoreUnavailable("away")
            return (await store.range(KeyRange.prefix("/"), limit=1)).revision

        feed = Feed(store, KeyRange.prefix("/"), read=read, take=lambda event: taken.append(event.key))
        await feed.begin()
        feed._watch = Lost()
        away[0] = True
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await feed.until(Revision(1 << 60), lambda: False)
        away[0] = False
        async with anyio.create_task_group() as group:
            group.start_soon(feed.follow)
            while "/a" not in taken:
                await store.transact([Put("/a", b"")])
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        await feed.aclose()


class Lost:
    """A watch whose place was compacted: it says so, and has ended."""

    def __init__(self) -> None:
        self._said = False

    def __aiter__(self) -> Lost:
        return self

    async def __anext__(self) -> Event:
        if self._said:
            raise StopAsyncIteration
        self._said = True
        raise Compacted(Revision(1), Revision(2))
