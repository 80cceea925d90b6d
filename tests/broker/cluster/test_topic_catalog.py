"""The registry: what may be made, that it is whole after a crash at any transaction, and that names do not collide."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    Durability,
    NamespaceSpec,
    Stage,
    TopicRecord,
    TopicSettings,
)
from pydanube_broker.cluster.subscription_operations import KEPT_BY_LINK, KEPT_OPTIONS
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    InvalidArgument,
    InvalidName,
    NamespaceNotEmpty,
    NamespaceNotFound,
    StoreUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import Grace
from pydanube_core.links import LINEAGE, MIRROR
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Guard, KeyRange, ModRevision, Put, RangePage, Revision, Write, read_all

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio


def name(text: str) -> TopicName:
    return TopicName.parse(text)


def names(records: Sequence[TopicRecord]) -> list[str]:
    return [record.name for record in records]


async def reloaded(store: MemoryStore) -> TopicCatalog:
    """What a broker that starts now would know."""
    catalog = TopicCatalog(store, wall_ms=lambda: 0)
    await catalog.load()
    return catalog


class DyingStore(MemoryStore):
    """A store whose process is killed at the n-th transaction: before it, or after it and before the answer."""

    transactions_left: int | None = None
    after_commit = False

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        if self.transactions_left is None:
            return await super().transact(writes, guards=guards)
        if self.transactions_left == 0:
            if self.after_commit:
                await super().transact(writes, guards=guards)
                self.after_commit = False
            raise StoreUnavailable("killed")
        self.transactions_left -= 1
        return await super().transact(writes, guards=guards)


# Topics


async def test_topic_id_is_the_create_revision_and_new_after_deletion(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (first,) = await catalog.create_topic(name("/default/orders"))
    item = await store.get("/registry/topics/default/orders")
    assert item is not None
    assert first.topic_id == item.create_revision
    assert names(await catalog.delete_topic(name("/default/orders"))) == ["/default/orders"]
    (second,) = await catalog.create_topic(name("/default/orders"))
    assert second.topic_id > first.topic_id
    assert catalog.index.topic_by_id(first.topic_id) is None
    assert catalog.index.topic_by_id(second.topic_id) == second


async def test_settings_survive_reloading(catalog: TopicCatalog, store: MemoryStore) -> None:
    settings = TopicSettings(
        dispatch_strategy=DispatchStrategy.NON_RELIABLE,
        durability=Durability.MEMORY,
        policies={"max_message_size": 1000, "nested": {"a": [1, None]}},
        schema={"subject": "s", "policy": "warn"},
        options={"compaction": "latest"},
    )
    (made,) = await catalog.create_topic(name("/default/t"), settings=settings)
    assert made.settings == settings
    assert made.created_at_ms == 1_700_000_000_000
    assert (await reloaded(store)).index.topic(name("/default/t")) == made


async def test_reliable_topic_in_memory_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="fsynced or stored"):
        TopicSettings(durability=Durability.MEMORY)
    with pytest.raises(InvalidArgument, match="Use memory"):
        TopicSettings(dispatch_strategy=DispatchStrategy.NON_RELIABLE)


async def test_row_29_name_that_is_a_prefix_of_another_can_be_made(catalog: TopicCatalog) -> None:
    await catalog.create_topic(name("/default/orders-eu"))
    await catalog.create_topic(name("/default/orders-part-time"))
    await catalog.create_topic(name("/default/orders-eu-part"), partitions=2)
    await catalog.create_topic(name("/default/orders"), partitions=2)
    parts = catalog.index.partitions(name("/default/orders"))
    assert names(parts) == ["/default/orders-part-0", "/default/orders-part-1"]
    assert names(await catalog.delete_topic(name("/default/orders"))) == names(parts)
    assert names(catalog.index.topics()) == [
        "/default/orders-eu",
        "/default/orders-eu-part-part-0",
        "/default/orders-eu-part-part-1",
        "/default/orders-part-time",
    ]


async def test_row_29_deleting_a_topic_leaves_its_longer_neighbours_subscriptions(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    for text in ("/default/orders-eu", "/default/orders"):
        (topic,) = await catalog.create_topic(name(text))
        await catalog.subscriptions.create(topic.topic_id, "s", type="exclusive", start_offset=0)
    await catalog.delete_topic(name("/default/orders"))
    fresh = await reloaded(store)
    (left,) = fresh.index.topics()
    assert [s.name for s in fresh.index.subscriptions(left.topic_id)] == ["s"]


async def test_partitions_are_in_order_of_their_number(catalog: TopicCatalog) -> None:
    made = await catalog.create_topic(name("/default/t"), partitions=12)
    assert [record.partition for record in made] == list(range(12))
    assert len({record.topic_id for record in made}) == 12
    assert {str(record.parent) for record in made} == {"/default/t"}
    parent = catalog.index.partitioned(name("/default/t"))
    assert parent is not None
    assert (parent.spec.partitions, parent.spec.stage, parent.spec.declared) == (12, Stage.READY, True)


@pytest.mark.parametrize(
    ("first", "first_parts", "second", "second_parts"),
    [
        ("/default/t", 0, "/default/t", 0),
        ("/default/t", 0, "/default/t", 3),
        ("/default/t", 3, "/default/t", 0),
        ("/default/t", 3, "/default/t", 3),
        ("/default/t", 3, "/default/t", 4),
        ("/default/t", 0, "/default/t-part-0", 0),
        ("/default/t-part-0", 0, "/default/t", 0),
        ("/default/t-part-0", 0, "/default/t", 2),
        ("/default/t-part-0", 0, "/default/t-part-0", 0),
    ],
)
@pytest.mark.parametrize("stale", [False, True])
async def test_plain_and_partitioned_do_not_share_a_name(
    catalog: TopicCatalog,
    store: MemoryStore,
    first: str,
    first_parts: int,
    second: str,
    second_parts: int,
    stale: bool,
) -> None:
    """`stale`: by another broker, whose index has not heard of the first."""
    other = await reloaded(store)
    await catalog.create_topic(name(first), partitions=first_parts)
    before = await read_all(store, KeyRange.prefix("/"))
    with pytest.raises(AlreadyExists):
        await (other if stale else catalog).create_topic(name(second), partitions=second_parts)
    assert await read_all(store, KeyRange.prefix("/")) == before


@pytest.mark.parametrize(
    ("text", "partitions", "error"),
    [
        ("/nowhere/t", 0, NamespaceNotFound),
        ("/default/t-part-0", 2, InvalidName),
        ("/default/t-part-0-part-1", 0, InvalidName),
        ("/default/t", -1, InvalidArgument),
        ("/default/t", 1001, InvalidArgument),
        ("/default/t-part-1000", 0, InvalidArgument),
    ],
)
async def test_bad_creation_is_refused(
    catalog: TopicCatalog, text: str, partitions: int, error: type[ClusterError]
) -> None:
    with pytest.raises(error):
        await catalog.create_topic(name(text), partitions=partitions)
    assert catalog.index.topics() == []


async def test_official_clients_make_partitions_one_by_one_in_any_order(catalog: TopicCatalog) -> None:
    async with anyio.create_task_group() as group:
        for index in (2, 0, 1):
            group.start_soon(catalog.create_topic, name(f"/default/t-part-{index}"))
    parent = catalog.index.partitioned(name("/default/t"))
    assert parent is not None
    assert (parent.spec.partitions, parent.spec.declared) == (3, False)
    assert [part.partition for part in catalog.index.partitions(name("/default/t"))] == [0, 1, 2]
    assert len(await catalog.delete_topic(name("/default/t"))) == 3


async def test_single_partition_cannot_be_deleted(catalog: TopicCatalog) -> None:
    await catalog.create_topic(name("/default/t"), partitions=2)
    with pytest.raises(InvalidArgument, match="Cannot delete individual partition"):
        await catalog.delete_topic(name("/default/t-part-0"))
    assert len(catalog.index.topics()) == 2


async def test_unknown_topic_cannot_be_deleted(catalog: TopicCatalog) -> None:
    with pytest.raises(TopicNotFound):
        await catalog.delete_topic(name("/default/t"))
    with pytest.raises(TopicNotFound):
        await catalog.delete_topic(name("/default/t-part-0"))


async def test_two_catalogs_creating_one_topic_make_it_once(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    other = await reloaded(store)
    outcomes: list[str] = []

    async def create(by: TopicCatalog, partitions: int) -> None:
        try:
            await by.create_topic(name("/default/t"), partitions=partitions)
            outcomes.append("made")
        except AlreadyExists:
            outcomes.append("exists")

    async with anyio.create_task_group() as group:
        group.start_soon(create, catalog, 0)
        group.start_soon(create, other, 0)
        group.start_soon(create, other, 4)
    assert sorted(outcomes) == ["exists", "exists", "made"]
    assert (await reloaded(store)).index.topics() == catalog.index.topics()


async def test_stale_index_learns_from_the_store_and_goes_on(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(name("/default/t"))
    other = await reloaded(store)
    await other.update_topic(name("/default/t"), policies={"max_message_size": 5})
    (updated,) = await catalog.update_topic(name("/default/t"), schema={"subject": "s"})
    assert (updated.topic_id, updated.settings.policies, updated.settings.schema) == (
        topic.topic_id,
        {"max_message_size": 5},
        {"subject": "s"},
    )


async def test_settings_of_a_partitioned_topic_reach_every_partition(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    await catalog.create_topic(name("/default/t"), partitions=3)
    await catalog.update_topic(name("/default/t"), policies={"a": 1})
    index = (await reloaded(store)).index
    assert [part.settings.policies for part in index.topics()] == [{"a": 1}] * 3
    parent = index.partitioned(name("/default/t"))
    assert parent is not None
    assert parent.spec.settings.policies == {"a": 1}


# A crash at every transaction


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("died_at", range(8))
@pytest.mark.parametrize("what", ["create", "delete", "partition"])
async def test_what_a_crash_left_is_finished_at_the_next_start(
    what: str, died_at: int, after_commit: bool
) -> None:
    async with DyingStore() as store:
        catalog = await reloaded(store)
        if what == "delete":
            await catalog.create_topic(name("/default/t"), partitions=3)
        store.transactions_left, store.after_commit = died_at, after_commit
        died = False
        try:
            if what == "create":
                await catalog.create_topic(name("/default/t"), partitions=3)
            elif what == "delete":
                await catalog.delete_topic(name("/default/t"))
            else:
                await catalog.create_topic(name("/default/t-part-1"))
        except StoreUnavailable:
            died = True
        store.transactions_left = None
        fresh = await reloaded(store)
        begun = fresh.index.partitioned(name("/default/t")) is not None
        await fresh.resume()
        parent = fresh.index.partitioned(name("/default/t"))
        parts = [part.partition for part in fresh.index.partitions(name("/default/t"))]
        if what == "create":
            assert parts == ([0, 1, 2] if begun else [])
            assert died == (died_at < 5)
        elif what == "delete":
            assert parts == ([] if died_at or after_commit else [0, 1, 2])
        else:
            assert parts in ([], [1])
        assert (parent is not None) == bool(parts), "no parent without partitions"
        assert parent is None or parent.spec.stage is Stage.READY
        again = await reloaded(store)
        assert again.index.topics() == fresh.index.topics()
        if not parts:
            await again.create_topic(name("/default/t"))  # the name is free again


@pytest.mark.parametrize("died_at", range(5))
async def test_interrupted_creation_is_finished_by_creating_again(died_at: int) -> None:
    async with DyingStore() as store:
        catalog = await reloaded(store)
        store.transactions_left = died_at
        with pytest.raises(StoreUnavailable):
            await catalog.create_topic(name("/default/t"), partitions=3)
        store.transactions_left = None
        assert len(await catalog.create_topic(name("/default/t"), partitions=3)) == 3
        with pytest.raises(AlreadyExists):
            await catalog.create_topic(name("/default/t"), partitions=3)


async def test_cancelled_creation_leaves_index_and_store_alike(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    for checkpoints in range(12):
        topic = name(f"/default/t{checkpoints}")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(catalog.create_topic, topic)
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        item = await store.get(keys.topic_key(topic))
        assert (item is not None) == (catalog.index.find_topic(topic) is not None)


# Subscriptions


async def test_row_10_creating_a_subscription_stores_where_it_begins(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(name("/default/t"))
    made = await catalog.subscriptions.create(
        topic.topic_id, "s1", type="key-shared", start_offset=42, options={"ack_timeout_ms": 5}
    )
    item = await store.get(keys.subscription_key(topic.topic_id, "s1"))
    assert item is not None
    assert made.subscription_id == item.create_revision
    assert (await reloaded(store)).index.subscriptions(topic.topic_id) == [made]
    assert (made.type, made.start_offset, made.spec.options) == ("key-shared", 42, {"ack_timeout_ms": 5})


async def test_ensure_gives_the_existing_subscription_as_it_is(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(name("/default/t"))
    other = await reloaded(store)
    made, created = await catalog.subscriptions.ensure(topic.topic_id, "s", type="shared", start_offset=7)
    assert created is True
    for by in (catalog, other):
        found, created = await by.subscriptions.ensure(topic.topic_id, "s", type="exclusive", start_offset=0)
        assert (found, created) == (made, False)
    with pytest.raises(AlreadyExists):
        await catalog.subscriptions.create(topic.topic_id, "s", type="shared", start_offset=7)


async def test_a_partition_that_an_official_client_adds_has_the_subscriptions_of_the_others(
    catalog: TopicCatalog,
) -> None:
    (first,) = await catalog.create_topic(name("/default/t-part-0"))
    (other,) = await catalog.create_topic(name("/default/u-part-0"))
    await catalog.subscriptions.create(first.topic_id, "s", type="shared", start_offset=7, options={"a": 1})
    await catalog.subscriptions.create(other.topic_id, "of-another", type="shared", start_offset=0)
    (second,) = await catalog.create_topic(name("/default/t-part-1"))
    (found,) = catalog.index.subscriptions(second.topic_id)
    assert (found.name, found.type, found.start_offset, found.spec.options) == ("s", "shared", 0, {"a": 1})


async def test_a_fail_over_takes_what_the_link_wrote_and_leaves_what_users_keep(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    topic = name("/default/t")
    await catalog.create_topic(topic)
    await catalog.set_option(topic, MIRROR, {"link": "l"})
    await catalog.set_option(topic, "mine", 1)
    await catalog.keep_for_link(topic, {"s": {"ack_timeout_ms": 5}})
    assert (await catalog.set_option(topic, "mine", 2))[0].settings.options.keys() == {
        MIRROR, "mine", KEPT_OPTIONS, KEPT_BY_LINK
    }  # fmt: skip
    for _ in range(2):  # idempotent
        (record,) = await catalog.fail_over(topic, {"0": 7}, {"0": 3})
        assert (await reloaded(store)).index.topic(topic).settings == record.settings
        assert record.settings.options == {
            "mine": 2,
            KEPT_OPTIONS: {"s": {"ack_timeout_ms": 5}},
            LINEAGE: [{"link": "l", "until": {"0": 7}, "epochs": {"0": 3}}],
        }


async def test_subscription_made_anew_has_another_id(catalog: TopicCatalog) -> None:
    (topic,) = await catalog.create_topic(name("/default/t"))
    first = await catalog.subscriptions.create(topic.topic_id, "s", type="shared", start_offset=0)
    assert await catalog.subscriptions.delete(topic.topic_id, "s") == first
    with pytest.raises(SubscriptionNotFound):
        await catalog.subscriptions.delete(topic.topic_id, "s")
    second = await catalog.subscriptions.create(topic.topic_id, "s", type="shared", start_offset=0)
    assert second.subscription_id > first.subscription_id


async def test_subscription_cannot_outlive_or_follow_its_topic(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    (topic,) = await catalog.create_topic(name("/default/t"))
    await catalog.subscriptions.create(topic.topic_id, "s", type="shared", start_offset=0)
    other = await reloaded(store)
    await catalog.delete_topic(name("/default/t"))
    assert (await store.range(keys.SUBSCRIPTIONS)).items == ()
    with pytest.raises(TopicNotFound):
        await other.subscriptions.create(topic.topic_id, "late", type="shared", start_offset=0)
    (again,) = await catalog.create_topic(name("/default/t"))
    assert catalog.index.subscriptions(again.topic_id) == []


@pytest.mark.parametrize(("type_", "start"), [("nonsense", 0), ("shared", -1)])
async def test_bad_subscription_is_refused(catalog: TopicCatalog, type_: str, start: int) -> None:
    (topic,) = await catalog.create_topic(name("/default/t"))
    with pytest.raises(InvalidArgument):
        await catalog.subscriptions.create(topic.topic_id, "s", type=type_, start_offset=start)
    with pytest.raises(InvalidName):
        await catalog.subscriptions.create(topic.topic_id, "a/b", type="shared", start_offset=0)


# Namespaces


async def test_built_in_namespaces_always_exist(catalog: TopicCatalog) -> None:
    assert [namespace.name for namespace in catalog.index.namespaces()] == ["default", "system"]
    for built_in in ("default", "/system"):
        with pytest.raises(InvalidArgument):
            await catalog.namespaces.delete(built_in)


async def test_namespace_with_a_topic_is_not_deleted(catalog: TopicCatalog, store: MemoryStore) -> None:
    await catalog.namespaces.create("n", policies={"max_producers_per_topic": 3})
    with pytest.raises(AlreadyExists):
        await catalog.namespaces.create("/n")
    await catalog.create_topic(name("/n/t"))
    with pytest.raises(NamespaceNotEmpty):
        await catalog.namespaces.delete("n")
    await catalog.delete_topic(name("/n/t"))
    await catalog.namespaces.delete("n")
    with pytest.raises(NamespaceNotFound):
        await catalog.create_topic(name("/n/t"))
    assert await store.get(keys.namespace_key("n")) is None


async def test_topic_made_elsewhere_saves_its_namespace_from_a_stale_deleter(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    await catalog.namespaces.create("n")
    other = await reloaded(store)
    await catalog.create_topic(name("/n/t"))
    with pytest.raises(NamespaceNotEmpty):
        await other.namespaces.delete("n")
    fresh = await reloaded(store)
    assert fresh.index.namespace("n").spec.stage is Stage.READY
    await fresh.create_topic(name("/n/t2"))


async def test_namespace_being_deleted_takes_no_topics_and_is_settled_at_the_next_start(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    await catalog.namespaces.create("n")
    former = catalog.index.namespace("n")
    marked = NamespaceSpec(name="n", created_at_ms=0, stage=Stage.DELETING)
    key = keys.namespace_key("n")
    await store.transact([Put(key, marked.to_json())], guards=[ModRevision(key, former.revision)])
    with pytest.raises(Conflict):
        await catalog.create_topic(name("/n/t"))
    fresh = await reloaded(store)
    await fresh.resume()
    assert fresh.index.find_namespace("n") is None


# Size


async def test_ten_thousand_topics_load_by_pages_of_a_thousand_in_two_seconds() -> None:
    pages: list[int] = []

    class CountingStore(MemoryStore):
        async def range(self, *arguments: object, **named: object) -> RangePage:
            page = await super().range(*arguments, **named)  # type: ignore[arg-type]
            pages.append(len(page.items))
            return page

    async with CountingStore() as store:
        catalog = await reloaded(store)
        (made,) = await catalog.create_topic(name("/default/t00000"))
        for number in range(1, 10_000):
            topic = name(f"/default/t{number:05d}")
            await store.transact([Put(keys.topic_key(topic), replace(made.spec, name=str(topic)).to_json())])
        pages.clear()
        begun = time.process_time()
        fresh = await reloaded(store)
        assert time.process_time() - begun < 2.0
        assert len(fresh.index.topics()) == 10_000
        assert max(pages) == 1000
        tables = (*fresh.index.tables, *fresh.restorable.tables)
        assert len(pages) == 10 + len(tables) - 1  # ten of topics, and one of each other table


async def test_a_grace_that_a_clock_ahead_began_is_shortened_also_for_the_next_start(
    catalog: TopicCatalog, store: MemoryStore
) -> None:
    year_ms = 365 * 86_400_000
    now_ms = 1_700_000_000_000
    for name, until_ms in (("ahead", now_ms + year_ms), ("right", now_ms + 1000)):
        topic = TopicName.parse(name)
        await catalog.create_topic(topic, settings=TopicSettings())
        await catalog.delete_topic(topic, grace=Grace(call_id=name, until_ms=until_ms))
    await catalog.tombstones.shorten(now_ms + 5000)
    again = TopicCatalog(store, wall_ms=lambda: now_ms)
    await again.load()
    for one in (catalog, again):
        assert {each.name: each.until_ms for each in one.restorable.topics.values()} == {
            "/default/ahead": now_ms + 5000,
            "/default/right": now_ms + 1000,
        }
    assert len(await again.forget_topics(now_ms + 5000)) == 2
