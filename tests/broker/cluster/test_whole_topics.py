"""Partitioned topics of metadata format 2, against a model, whose leader may die between any two transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.format_step import FormatStep
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import IncarnationRecord
from pydanube_broker.cluster.records import PartitionedSpec, Stage, TopicSettings
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.records import Change
from pydanube_core.errors import ClusterError, Conflict, NameReused, StoreUnavailable, TopicNotFound
from pydanube_core.facts import Grace, UnusedFacts
from pydanube_core.names import MAX_PARTITIONS, TopicName
from pydanube_storage.metadata import (
    Absent,
    Guard,
    Put,
    Revision,
    Write,
    read_all,
)

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

CLICKS = TopicName.parse("/default/clicks")
GRACE = Grace(call_id="c1", until_ms=1000)
LATER = 1 << 40
LEADS = Absent("/nobody/else")


class MortalStore(MemoryStore):
    """A store whose user dies at the n-th transaction."""

    left: int | None = None
    transactions = 0

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        if self.left == 0:
            raise StoreUnavailable("killed")
        if self.left is not None:
            self.left -= 1
        self.transactions += 1
        return await super().transact(writes, guards=guards)


async def started(store: MemoryStore, *, converts: bool = True) -> TopicCatalog:
    catalog = TopicCatalog(store, wall_ms=lambda: 0)
    await catalog.load()
    if converts:
        await FormatStep(catalog, LEADS).take()
        assert catalog.index.format.converted
    return catalog


@asynccontextmanager
async def whole(store: MemoryStore | None = None) -> AsyncIterator[TopicCatalog]:
    async with store or MemoryStore() as opened:
        yield await started(opened)


async def unguarded(change: Change, logs: int) -> None:
    """Let a deletion of logs pass, whatever their owners say."""


async def left_in(store: MemoryStore, *trees: Any) -> list[str]:
    return [item.key for tree in trees for item in (await read_all(store, tree))[0]]


async def test_a_topic_is_one_record_with_its_partitions_ids() -> None:
    store = MortalStore()
    async with whole(store) as catalog:
        await catalog.ids.next()
        before = store.transactions
        parts = await catalog.create_topic(CLICKS, partitions=300)
        assert store.transactions == before + 1
        assert [part.topic for part in parts] == [CLICKS.part(n) for n in range(300)]
        assert len({part.topic_id for part in parts}) == 300
        assert not await left_in(store, keys.TOPICS)
        (again,) = [await started(store)]
        assert again.index.partitions(CLICKS) == parts
        before = store.transactions
        assert await catalog.delete_topic(CLICKS, grace=GRACE) == parts
        assert store.transactions == before + 1
        assert all(catalog.restorable.keeps_data(part.topic_id) for part in parts)
        assert [part.topic_id for part in await catalog.restore_topics("c1")] == [p.topic_id for p in parts]
        assert store.transactions == before + 2


def test_the_longest_record_fits_a_value() -> None:
    base = TopicName("n" * 100, "t" * 300)
    spec = PartitionedSpec(
        name=str(base),
        created_at_ms=1 << 62,
        partitions=MAX_PARTITIONS,
        declared=True,
        stage=Stage.READY,
        settings=TopicSettings(),
        identity=(1 << 53) - 1,
        ids=tuple((1 << 53) - 1 - n for n in range(MAX_PARTITIONS)),
    )
    assert len(spec.to_json()) < 24_000
    assert PartitionedSpec.from_json(spec.to_json(), key="k") == spec


@given(
    ids=st.lists(
        st.none() | st.integers(1, (1 << 53) - 1), max_size=30, unique_by=lambda each: each or object()
    ),
    last=st.integers(1 << 53, 1 << 54),
)
def test_a_record_with_gaps_survives_the_round_trip(ids: list[int | None], last: int) -> None:
    spec = PartitionedSpec(
        name="/default/t",
        created_at_ms=0,
        partitions=len(ids) + 1,
        declared=False,
        stage=Stage.READY,
        settings=TopicSettings(),
        ids=(*ids, last),
    )
    assert PartitionedSpec.from_json(spec.to_json(), key="k") == spec


async def test_partitions_that_official_clients_create_are_gaps_until_they_are_all_there() -> None:
    store = MortalStore()
    async with whole(store) as catalog:
        await catalog.ids.next()
        before = store.transactions
        async with anyio.create_task_group() as group:
            for index in range(99, 0, -2):
                group.start_soon(lambda index=index: catalog.create_topic(CLICKS.part(index)))
        assert store.transactions <= before + 3, "those that wait are one transaction"
        parent = catalog.index.partitioned(CLICKS)
        assert parent is not None
        assert (parent.spec.partitions, parent.spec.declared) == (100, False)
        assert [part.partition for part in catalog.index.partitions(CLICKS)] == list(range(1, 100, 2))
        with pytest.raises(ClusterError) as caught:
            await catalog.create_topic(CLICKS.part(1))
        assert caught.value.code == "ALREADY_EXISTS"
        await catalog.create_topic(CLICKS.part(0))
        assert [part.partition for part in catalog.index.partitions(CLICKS)][:3] == [0, 1, 3]


async def test_official_creations_at_three_brokers_all_succeed() -> None:
    async with MemoryStore() as store:
        brokers = [await started(store) for _ in range(3)]
        made = []
        async with anyio.create_task_group() as group:
            for index in range(200):

                async def create(index: int = index) -> None:
                    (part,) = await brokers[index % 3].create_topic(CLICKS.part(index))
                    made.append(part.topic_id)

                group.start_soon(create)
        assert len(set(made)) == 200
        last = await started(store)
        assert {part.topic_id for part in last.index.partitions(CLICKS)} == set(made)


async def test_what_stands_in_the_way_of_an_undo_is_named() -> None:
    async with whole() as catalog:
        await catalog.create_topic(CLICKS, partitions=2)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        await catalog.create_topic(CLICKS)
        with pytest.raises(NameReused, match="one without partitions"):
            await catalog.restore_topics("c1")
        await catalog.delete_topic(CLICKS)
        await catalog.create_topic(CLICKS, partitions=5)
        with pytest.raises(NameReused, match="one with 5 partitions"):
            await catalog.restore_topics("c1")
        await catalog.delete_topic(CLICKS)
        assert len(await catalog.restore_topics("c1")) == 2


async def test_settings_are_of_the_whole_topic() -> None:
    async with whole() as catalog:
        await catalog.create_topic(CLICKS, partitions=3)
        await catalog.update_topic(CLICKS, policies={"max_publish_rate": 5})
        await catalog.decide_schema(CLICKS.part(1), lambda _: {"subject": "s"})
        for part in catalog.index.partitions(CLICKS):
            assert part.settings.policies == {"max_publish_rate": 5}
            assert part.settings.schema == {"subject": "s"}


async def test_added_partitions_get_their_siblings_subscriptions_from_their_owner() -> None:
    async with whole() as catalog:
        (first,) = await catalog.create_topic(CLICKS, partitions=1)
        await catalog.subscriptions.create(first.topic_id, "s", type="shared", start_offset=7)
        added = await catalog.make_partitions(CLICKS, 4)
        await catalog.subscriptions.as_siblings(added)
        for part in added:
            (one,) = catalog.index.subscriptions(part.topic_id)
            assert (one.name, one.type, one.start_offset) == ("s", "shared", 0)
        dropped = await catalog.wholes.shrink(CLICKS, 2, unguarded)
        assert [part.partition for part in dropped] == [2, 3]
        with pytest.raises(Conflict, match="no partition below 0"):
            await catalog.wholes.shrink(CLICKS, 0, unguarded)
        assert len(catalog.index.partitions(CLICKS)) == 2


async def test_a_topic_that_came_back_is_not_forgotten_when_the_grace_of_its_deletion_ends() -> None:
    async with MemoryStore() as store:
        catalog = await started(store)
        parts = await catalog.create_topic(CLICKS, partitions=3)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        await catalog.restore_topics(GRACE.call_id)
        for each in (catalog, await started(store)):
            assert await left_in(store, keys.PARENT_TOMBSTONES, keys.TOPIC_TOMBSTONES) == []
            assert await each.forget_topics(LATER) == []
            assert [part.topic_id for part in each.index.partitions(CLICKS)] == [p.topic_id for p in parts]


@pytest.mark.parametrize("partitions", [2, 120, 130, 260])
async def test_tombstones_of_format_1_become_one_however_many_there_are(partitions: int) -> None:
    """Also those that a transaction has no room for are deleted, and the topic comes back whole."""
    async with MemoryStore() as store:
        catalog = await started(store, converts=False)
        parts = await catalog.create_topic(CLICKS, partitions=partitions)
        await catalog.delete_topic(CLICKS, grace=GRACE)
        assert len(await left_in(store, keys.TOPIC_TOMBSTONES)) == partitions
        catalog = await started(store)
        assert await left_in(store, keys.TOPIC_TOMBSTONES, keys.TOPICS) == []
        back = await catalog.restore_topics(GRACE.call_id)
        assert [part.topic_id for part in back] == [part.topic_id for part in parts]


async def test_added_partitions_go_together_and_only_while_their_owners_hold_them() -> None:
    async with MemoryStore() as store:
        catalog, other = await started(store), await started(store)
        await catalog.create_topic(CLICKS, partitions=2)
        await catalog.make_partitions(CLICKS, 5)
        owners = [BrokerId(1), BrokerId(2)]
        for owner in owners:
            spec = IncarnationRecord(incarnation=7).to_json()
            await store.transact([Put(keys.incarnation_key(owner), spec)])

        def held(*logs: int) -> list[UnusedFacts]:
            revision = catalog.deciding_revision(CLICKS)
            return [
                UnusedFacts(broker_id=str(owner), incarnation=7, revision=revision, logs=count)
                for owner, count in zip(owners, logs, strict=True)
            ]

        opened_again = held(1, 2)
        await other.records.look_for(CLICKS)
        await other.touch(CLICKS)  # as an owner does before it opens them
        await catalog.records.look_for(CLICKS)
        for refused in (opened_again, held(1, 1), [replace(held(3, 0)[0], incarnation=6)], []):
            with pytest.raises(Conflict, match="open to clients again"):
                await catalog.drop_partitions(CLICKS, 2, held=refused)
            assert len(catalog.index.partitions(CLICKS)) == 5
        assert len(await catalog.drop_partitions(CLICKS, 4, held=held(1, 0))) == 1, (
            "one of two has none of them"
        )
        assert len(await catalog.drop_partitions(CLICKS, 2, held=held(1, 1))) == 2
        assert await catalog.drop_partitions(CLICKS, 2, held=()) == []
        assert len(catalog.index.partitions(CLICKS)) == 2


async def test_what_is_left_of_deleted_partitions_is_swept_and_nothing_else() -> None:
    store = MortalStore()
    async with whole(store) as catalog:
        doomed = await catalog.create_topic(CLICKS, partitions=60)
        kept = await catalog.create_topic(TopicName.parse("kept"), partitions=2)
        restorable = await catalog.create_topic(TopicName.parse("back"), partitions=2)
        for part in (*doomed, *kept, *restorable):
            await catalog.subscriptions.create(part.topic_id, "s", type="shared", start_offset=0)
            await store.transact([Put(keys.assignment_key(part.topic_id), b"{}")])
            await store.transact([Put(keys.producer_client_key(part.topic_id, 1), b"{}")])
        await catalog.delete_topic(TopicName.parse("back"), grace=GRACE)
        await catalog.delete_topic(CLICKS)
        for left in range(4):  # the leader dies in it
            store.left = left
            with pytest.raises(StoreUnavailable):
                await catalog.wholes.sweep(LEADS)
            store.left = None
        leader = await started(store)
        found = [TopicId(keys.number_in_key(key)) for key in await left_in(store, keys.ASSIGNMENTS)]
        await leader.wholes.sweep(LEADS, found)
        await leader.wholes.sweep(LEADS)
        ids = {part.topic_id for part in (*kept, *restorable)}
        assert {keys.number_in_key(key) for key in await left_in(store, keys.ASSIGNMENTS)} == ids
        assert len(await left_in(store, keys.SUBSCRIPTIONS)) == len(ids)
        assert len(await left_in(store, keys.CLIENTS)) == len(ids)
        assert sorted(await leader.forget_topics(LATER)) == sorted(part.topic_id for part in restorable)
        await leader.wholes.sweep(LEADS)
        assert len(await left_in(store, keys.SUBSCRIPTIONS, keys.CLIENTS)) == 2 * len(kept)
        assert leader.index.dropped == set(), "it sweeps what is gone for ever"


async def old_cluster(store: MemoryStore) -> TopicCatalog:
    """Metadata of format 1 in which everything is that a crash may leave half done."""
    catalog = await started(store, converts=False)
    for name in ("ready", "dying", "gone", "returning", "growing"):
        topic = TopicName.parse(name)
        for part in await catalog.create_topic(topic, partitions=130 if name == "ready" else 3):
            await catalog.subscriptions.create(part.topic_id, "s", type="shared", start_offset=0)
    await catalog.create_topic(TopicName.parse("plain"))
    await catalog.create_topic(TopicName.parse("official-part-4"))
    await catalog.delete_topic(TopicName.parse("gone"), grace=Grace(call_id="gone", until_ms=LATER))
    await catalog.delete_topic(TopicName.parse("returning"), grace=Grace(call_id="returning", until_ms=LATER))
    assert isinstance(store, MortalStore)
    store.left = 2
    with pytest.raises(StoreUnavailable):
        await catalog.delete_topic(TopicName.parse("dying"), grace=Grace(call_id="dying", until_ms=LATER))
    store.left = 3
    with pytest.raises(StoreUnavailable):
        await catalog.restore_topics("returning")
    store.left = 2
    with pytest.raises((StoreUnavailable, ExceptionGroup)):
        await catalog.create_topic(TopicName.parse("coming"), partitions=4)
    store.left = 1
    with pytest.raises((StoreUnavailable, ExceptionGroup)):
        await catalog.make_partitions(TopicName.parse("growing"), 5)
    store.left = None
    return catalog


async def test_a_kill_at_every_write_of_the_step_leaves_metadata_with_which_the_next_leader_goes_on() -> None:
    for left in range(200):
        async with MortalStore() as store:
            before = await old_cluster(store)
            ids = {
                part.topic: part.topic_id
                for name in ("ready", "official", "growing")
                for part in before.index.partitions(TopicName.parse(name))
            }
            gone = {each.topic_id for each in before.restorable.topics.values() if each.call_id == "gone"}
            leader = TopicCatalog(store, wall_ms=lambda: 0)
            await leader.load()
            store.left = left
            killed = False
            try:
                await FormatStep(leader, LEADS).take()
            except StoreUnavailable:
                killed = True
            store.left = None
            between = await started(store, converts=False)  # a broker that starts in between
            for name, topic_id in ids.items():
                assert between.index.topic(name).topic_id == topic_id
            assert gone <= between.restorable.topics.keys()
            after = await started(store)
            for catalog in (after, await started(store, converts=False)):
                for name, topic_id in ids.items():
                    assert catalog.index.topic(name).topic_id == topic_id
                    assert catalog.index.topic(name).is_named_by_parent
                counts = {
                    parent.name.removeprefix("/default/"): len(catalog.index.partitions(parent.topic))
                    for parent in catalog.index.all_partitioned()
                }
                assert counts.pop("growing") in (3, 4)
                assert counts == {"ready": 130, "official": 1, "returning": 3, "coming": 4}
                assert all(
                    len(catalog.index.subscriptions(part.topic_id)) == 1
                    for name in ("ready", "returning")
                    for part in catalog.index.partitions(TopicName.parse(name))
                )
                assert catalog.index.find_topic(TopicName.parse("plain")) is not None
            assert await left_in(store, keys.TOPICS) == [keys.topic_key(TopicName.parse("plain"))]
            assert not await left_in(store, keys.TOPIC_TOMBSTONES, keys.DELETION_DECISIONS)
            assert len(await after.restore_topics("gone")) == len(await after.restore_topics("dying")) == 3
            with pytest.raises(TopicNotFound):
                await after.restore_topics("returning")
            if not killed:
                return
    raise AssertionError("the step has no end")


async def test_no_write_of_format_1_follows_the_mark() -> None:
    """A broker whose watch is behind decides by format 1, and its transaction fails."""
    async with MemoryStore() as store:
        behind = await started(store, converts=False)
        await behind.create_topic(CLICKS, partitions=2)
        await started(store)
        assert behind.index.format.metadata_format == 1
        await behind.create_topic(TopicName.parse("other"), partitions=2)
        await behind.create_topic(CLICKS.part(5))
        await behind.delete_topic(CLICKS, grace=GRACE)
        assert len(await behind.restore_topics("c1")) == 3
        assert not await left_in(store, keys.TOPICS, keys.TOPIC_TOMBSTONES)


Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "delete", "drop", "undo", "grow", "shrink", "official", "sweep", "forget", "restart"]
        ),
        st.integers(0, 5),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(steps=steps, dies=st.lists(st.none() | st.integers(0, 2), max_size=25))
def test_every_history_is_that_of_the_model(steps: list[Step], dies: list[int | None]) -> None:
    anyio.run(_history, steps, dies)


async def _history(steps: list[Step], dies: list[int | None]) -> None:
    async with MortalStore() as store:
        catalog = await started(store)
        present: dict[int, int] = {}  # index → id
        deleted: dict[str, dict[int, int]] = {}  # call id → as it was
        named: set[int] = set()
        calls = iter(range(1000))
        for (step, number), dies_at in zip(steps, [*dies, *[None] * len(steps)], strict=False):
            store.left = dies_at
            before = dict(present)
            call = f"c{next(calls)}"
            try:
                match step:
                    case "create":
                        made = await catalog.create_topic(CLICKS, partitions=number + 1)
                        assert not present
                        present = {part.partition or 0: part.topic_id for part in made}
                    case "official":
                        (one,) = await catalog.create_topic(CLICKS.part(number))
                        assert number not in present
                        present[number] = one.topic_id
                    case "grow":
                        for part in await catalog.make_partitions(CLICKS, number + 1):
                            assert part.partition not in present
                            present[part.partition or 0] = part.topic_id
                    case "shrink":
                        await catalog.wholes.shrink(CLICKS, number, unguarded)
                        present = {index: each for index, each in present.items() if index < number}
                        assert present
                    case "delete":
                        await catalog.delete_topic(CLICKS, grace=Grace(call_id=call, until_ms=number))
                        deleted[call], present = present, {}
                    case "drop":
                        await catalog.delete_topic(CLICKS)
                        present = {}
                    case "undo":
                        chosen = sorted(deleted)[number] if number < len(deleted) else "none"
                        await catalog.restore_topics(chosen)
                        assert not present
                        present = deleted.pop(chosen)
                    case "forget":
                        gone = set(await catalog.forget_topics(number))
                        for call_id, parts in list(deleted.items()):
                            if set(parts.values()) <= gone:
                                gone -= set(parts.values())
                                del deleted[call_id]
                        assert not gone
                    case "sweep":
                        await catalog.wholes.sweep(LEADS)
                    case _:
                        store.left = None
                        catalog = await started(store)
            except StoreUnavailable:
                store.left = None
                catalog = await started(store)  # either it happened whole, or not at all
                there = {p.partition or 0: int(p.topic_id) for p in catalog.index.partitions(CLICKS)}
                kept: dict[str, dict[int, int]] = {}
                for each in catalog.restorable.topics.values():
                    index = TopicName.parse(each.name).partition or 0
                    kept.setdefault(each.call_id, {})[index] = each.topic_id
                assert (there, kept) == (before, deleted), "it died before the only transaction"
                present = before
            except ClusterError:
                present = before
            store.left = None
            assert {p.partition or 0: p.topic_id for p in catalog.index.partitions(CLICKS)} == present
            tombstones: dict[str, dict[int, int]] = {}
            for each in catalog.restorable.topics.values():
                index = TopicName.parse(each.name).partition or 0
                tombstones.setdefault(each.call_id, {})[index] = each.topic_id
            assert tombstones == deleted
            now = [*present.values(), *(each for parts in deleted.values() for each in parts.values())]
            assert len(now) == len(set(now)), "an id is named once"
            named |= set(now)
