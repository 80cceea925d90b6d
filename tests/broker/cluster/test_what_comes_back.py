"""Deletions that are taken back: whole or not at all, whatever crashes, is swept or is created meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstone_records import TopicTombstone
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import Stage
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.errors import (
    Conflict,
    DiskFull,
    NameReused,
    StoreUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Guard, Put, Revision, Write

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

CLICKS = TopicName.parse("/default/clicks")
PARTS = 4
GRACE = Grace(call_id="c1", until_ms=1000)
LATER = 1 << 40


class WatchedStore(MemoryStore):
    """A store that lets a test do something before each transaction, or ends at the n-th."""

    before: Callable[[], Awaitable[None]] | None = None
    left: int | None = None

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        if self.left == 0:
            raise StoreUnavailable("killed")
        if self.left is not None:
            self.left -= 1
        before, self.before = self.before, None
        try:
            if before is not None:
                await before()
        finally:
            self.before = before
        return await super().transact(writes, guards=guards)


async def started(store: MemoryStore) -> TopicCatalog:
    catalog = TopicCatalog(store, wall_ms=lambda: 0)
    await catalog.load()
    await catalog.resume()
    return catalog


async def clicks(store: MemoryStore) -> TopicCatalog:
    """A topic of four partitions with a subscription on each."""
    catalog = await started(store)
    for part in await catalog.create_topic(CLICKS, partitions=PARTS):
        await catalog.subscriptions.create(part.topic_id, "s", type="shared", start_offset=0)
    return catalog


async def delete_subscriptions(catalog: TopicCatalog) -> None:
    for part in catalog.index.partitions(CLICKS):
        await catalog.tombstones.delete_subscription(part.topic_id, "s", GRACE)


def there(catalog: TopicCatalog) -> tuple[int, int]:
    """How many partitions, and how many subscriptions."""
    parts = catalog.index.partitions(CLICKS)
    return len(parts), sum(len(catalog.index.subscriptions(part.topic_id)) for part in parts)


async def test_no_partition_is_made_while_a_topic_comes_back() -> None:
    async with WatchedStore() as store:
        catalog = await clicks(store)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        refused = []

        async def create() -> None:
            parent = catalog.index.partitioned(CLICKS)
            if parent is not None and parent.spec.stage is Stage.RESTORING and there(catalog)[0] < PARTS:
                with pytest.raises(Conflict):
                    await catalog.create_topic(CLICKS.part(PARTS - 1))
                with pytest.raises(Conflict):
                    await catalog.create_topic(CLICKS, partitions=PARTS)
                refused.append(parent)

        store.before = create
        assert len(await catalog.restore_topics("c1")) == PARTS
        assert len(refused) == PARTS
        store.before = None
        assert there(await started(store)) == (PARTS, PARTS)


async def test_an_undo_that_is_too_late_names_the_deletion() -> None:
    """An undo of a subscription reported deleted messages."""
    async with WatchedStore() as store:
        catalog = await clicks(store)
        with pytest.raises(SubscriptionNotFound, match="the deleted subscription is not restorable any more"):
            await catalog.tombstones.restore_subscriptions("c1")
        with pytest.raises(TopicNotFound, match="the deleted topic is not restorable any more"):
            await catalog.restore_topics("c1")


async def test_no_subscription_is_made_while_it_comes_back() -> None:
    async with WatchedStore() as store:
        catalog = await clicks(store)
        await delete_subscriptions(catalog)
        refused = []

        async def create() -> None:
            last = catalog.index.partitions(CLICKS)[-1]
            if there(catalog) != (PARTS, 0) and catalog.index.find_subscription(last.topic_id, "s") is None:
                with pytest.raises(Conflict):
                    await catalog.subscriptions.create(last.topic_id, "s", type="shared", start_offset=0)
                refused.append(last)

        store.before = create
        await catalog.tombstones.restore_subscriptions("c1")
        assert refused
        assert there(catalog) == (PARTS, PARTS)


@pytest.mark.parametrize("what", ["topic", "subscription"])
async def test_what_comes_back_is_not_swept_meanwhile(what: str) -> None:
    """The grace ends between any two transactions of an undo that was accepted in time."""
    async with WatchedStore() as store:
        catalog = await clicks(store)
        if what == "topic":
            await catalog.delete_topic(CLICKS, grace=GRACE)
        else:
            await delete_subscriptions(catalog)
        begun: list[object] = []

        async def sweep() -> None:
            if begun:
                assert await catalog.forget_topics(LATER) == []
                assert await catalog.tombstones.forget_subscriptions(LATER) == []
                await catalog.tombstones.shorten(1)
            begun.append(None)

        store.before = sweep
        await (
            catalog.restore_topics("c1")
            if what == "topic"
            else catalog.tombstones.restore_subscriptions("c1")
        )
        store.before = None
        assert len(begun) > PARTS
        await catalog.forget_topics(LATER)
        assert there(catalog) == there(await started(store)) == (PARTS, PARTS)
        assert (await store.range(keys.TOMBSTONES)).items == ()


@pytest.mark.parametrize("what", ["topic", "subscription"])
async def test_an_undo_that_is_killed_anywhere_is_made_whole_or_not_at_all(what: str) -> None:
    """Also where the grace is over by the time of the next start."""
    for transactions in range(100):
        async with WatchedStore() as store:
            catalog = await clicks(store)
            if what == "topic":
                await catalog.delete_topic(CLICKS, grace=GRACE)
            else:
                await delete_subscriptions(catalog)
            store.left = transactions
            try:
                await (
                    catalog.restore_topics("c1")
                    if what == "topic"
                    else catalog.tombstones.restore_subscriptions("c1")
                )
            except StoreUnavailable:
                killed = True
            else:
                killed = False
            store.left = None
            catalog = await started(store)
            await catalog.forget_topics(LATER)
            await catalog.tombstones.forget_subscriptions(LATER)
            nothing = (0, 0) if what == "topic" else (PARTS, 0)
            assert there(catalog) == (nothing if transactions == 0 else (PARTS, PARTS)), transactions
            assert (await store.range(keys.TOMBSTONES)).items == ()
            if not killed:
                return
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("what", ["topic", "subscription"])
@pytest.mark.parametrize("killed", [True, False])
async def test_of_what_a_sweep_has_begun_to_forget_no_half_comes_back(what: str, killed: bool) -> None:
    """Whether it is killed there, or an undo comes in between."""
    for transactions in range(100):
        async with WatchedStore() as store:
            catalog = await clicks(store)
            if what == "topic":
                await catalog.delete_topic(CLICKS, grace=GRACE)
            else:
                await delete_subscriptions(catalog)
            store.left = transactions
            ended = True
            try:
                await (
                    catalog.forget_topics(LATER)
                    if what == "topic"
                    else catalog.tombstones.forget_subscriptions(LATER)
                )
            except StoreUnavailable:
                ended = False
            ended = ended and store.left > 0
            store.left = None
            if killed:
                catalog = await started(store)
            if transactions == 0:
                await (
                    catalog.restore_topics("c1")
                    if what == "topic"
                    else catalog.tombstones.restore_subscriptions("c1")
                )
                assert there(catalog) == (PARTS, PARTS)
                continue
            assert catalog.restorable.undoable(0) == {}
            with pytest.raises(TopicNotFound if what == "topic" else SubscriptionNotFound):
                await (
                    catalog.restore_topics("c1")
                    if what == "topic"
                    else catalog.tombstones.restore_subscriptions("c1")
                )
            await catalog.forget_topics(0)  # goes on, though its time would not be over
            await catalog.tombstones.forget_subscriptions(0)
            assert there(await started(store)) == ((0, 0) if what == "topic" else (PARTS, 0))
            assert (await store.range(keys.TOMBSTONES)).items == ()
            if ended:
                assert transactions > PARTS
                return
    pytest.fail("it never came to its end")


async def test_an_undo_that_finds_the_store_busy_goes_on_and_keeps_its_messages() -> None:
    """What could be tried again is not given up half-way: the grace does not end for what is left."""
    async with WatchedStore() as store:
        catalog = await clicks(store)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        count = 0

        async def full() -> None:
            nonlocal count
            count += 1
            if count == 4:
                raise DiskFull("no room")

        store.before = full
        with pytest.raises(DiskFull):
            await catalog.restore_topics("c1")
        store.before = None
        assert await catalog.forget_topics(LATER) == []
        assert len(await catalog.restore_topics("c1")) == PARTS
        assert (await store.range(keys.TOMBSTONES)).items == ()


async def test_a_topic_that_is_deleted_while_its_undo_stands_still_does_not_come_back_with_a_start() -> None:
    async with WatchedStore() as store:
        catalog = await clicks(store)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        store.left = 3
        with pytest.raises(StoreUnavailable):
            await catalog.restore_topics("c1")
        store.left = None
        await catalog.delete_topic(CLICKS, grace=Grace(call_id="c2", until_ms=2000))
        catalog = await started(store)
        assert there(catalog) == (0, 0)
        assert len(await catalog.restore_topics("c2")) == PARTS


async def test_a_partition_whose_name_is_taken_stops_no_start_and_comes_back_by_another_undo() -> None:
    """As a broker of before could leave it: half restored, and a partition of the same name made meanwhile."""
    async with WatchedStore() as store:
        catalog = await clicks(store)
        parts = catalog.index.partitions(CLICKS)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        store.left = 2 + PARTS // 2
        with pytest.raises(StoreUnavailable):
            await catalog.restore_topics("c1")
        store.left = None
        taken = CLICKS.part(PARTS - 1)
        await store.transact([Put(keys.topic_key(taken), replace(parts[-1].spec, identity=None).to_json())])

        catalog = await started(store)
        other = catalog.index.topic(taken)
        assert other.topic_id != parts[-1].topic_id
        assert len(catalog.index.partitions(CLICKS)) == PARTS
        (quarantine,) = catalog.restorable.quarantined()
        assert (quarantine.operation, quarantine.arguments) == ("topics.delete", {"topic": str(CLICKS)})
        with pytest.raises(NameReused):
            await catalog.restore_topics("c1")

        await catalog.delete_topic(CLICKS, grace=Grace(call_id="c2", until_ms=2000))
        catalog = await started(store)
        await catalog.restore_topics("c1")
        assert [each.topic_id for each in catalog.index.partitions(CLICKS)] == [
            each.topic_id for each in parts
        ]
        (stranded,) = catalog.restorable.stranded()
        assert stranded.topic_id == other.topic_id
        await catalog.delete_topic(CLICKS, grace=Grace(call_id="c3", until_ms=2000))
        await catalog.restore_topics("c2")  # and the other one, the same way
        assert catalog.index.topic(taken).topic_id == other.topic_id
        assert isinstance(catalog.restorable.stranded()[0], TopicTombstone)


async def test_two_tombstones_of_one_name_stop_no_start() -> None:
    async with WatchedStore() as store:
        catalog = await clicks(store)
        (first, *_) = catalog.index.partitions(CLICKS)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        twin = replace(catalog.restorable.topics[first.topic_id], topic_id=9999, call_id="c0")
        await store.transact([Put(keys.topic_tombstone_key(TopicId(9999)), twin.to_json())])
        catalog = await started(store)
        assert len(await catalog.restore_topics("c1")) == PARTS
        assert catalog.index.topic(CLICKS.part(0)).topic_id == first.topic_id
        assert there(await started(store))[0] == PARTS


async def test_whoever_waits_for_a_topic_hears_of_its_deletion_at_once() -> None:
    """A deleted topic is handed over, too: its next owner asks for it, and must not wait for a record that never comes."""
    async with WatchedStore() as store:
        catalog = await clicks(store)
        parts = catalog.index.partitions(CLICKS)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        other = await started(store)
        with anyio.fail_after(5):  # half of what a record is waited for
            for part in parts:
                await other.records.until_known(part.topic_id)
        assert [other.index.topic_by_id(part.topic_id) for part in parts] == [None] * PARTS
        assert [other.restorable.record(part.topic_id) is not None for part in parts] == [True] * PARTS


async def test_whoever_waits_for_a_topic_that_was_deleted_for_good_hears_of_it_at_once() -> None:
    async with WatchedStore() as store:
        catalog = await clicks(store)
        parts = catalog.index.partitions(CLICKS)
        await catalog.delete_topic(CLICKS)
        other = await started(store)
        with anyio.fail_after(5):
            for part in parts:
                await other.records.until_known(part.topic_id)


async def test_a_topic_whose_grace_ends_while_its_undo_is_decided_stays_gone() -> None:
    """Its messages are deleted with its tombstone. It must not come back without them."""
    async with WatchedStore() as store:
        catalog = await started(store)
        await catalog.create_topic(CLICKS)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        leader = await started(store)
        forgotten: list[TopicId] = []

        async def forget() -> None:
            forgotten.extend(await leader.forget_topics(LATER))

        store.before = forget
        with pytest.raises(TopicNotFound):
            await catalog.restore_topics(GRACE.call_id)
        store.before = None
        assert len(forgotten) == 1
        assert (await started(store)).index.find_topic(CLICKS) is None
