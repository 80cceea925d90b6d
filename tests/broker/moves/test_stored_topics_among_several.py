"""Topics with durability `stored` among several brokers: what is acknowledged is in the object store, wherever they are."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet
import pytest
from pydanube import Retry, connect
from pydanube_broker.broker import Broker
from pydanube_broker.chain import ChainObjects, fence
from pydanube_broker.cluster import coordinator, keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.journal_record import JournalState
from pydanube_broker.port import topics
from pydanube_broker.settings.sections import Settings
from pydanube_core.errors import ClusterError, Conflict, Fenced, Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.catalog.catalog import Committed
from pydanube_storage.objects import LocalStore

from tests.broker.moves.test_moves_between_brokers import broker_id, move
from tests.broker.moves.test_take_over_of_topics import JUMP, lost, read_all, record_of, until_state
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, no_brokers, several_brokers
from tests.support.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("one_loop", "no_reports", "short_lease"),
    pytest.mark.timeout(150),
]

NAME, OTHER = TopicName.parse("t"), TopicName.parse("other")
FIRST = [b"first-%d" % n for n in range(10)]
SECOND = [b"second-%d" % n for n in range(7)]
THIRD = [b"third-%d" % n for n in range(5)]


def quick(settings: Settings) -> Broker:
    return Broker(
        settings.model_copy(update={"journal": settings.journal.model_copy(update={"stored_linger": 0.02})})
    )


async def make(owner: Broker, durability: str = "stored") -> None:
    await owner.registry.create(
        NAME, partitions=0, dispatch_strategy="reliable", durability=durability, here=True
    )


async def publish(
    cluster: SeveralBrokers, messages: Sequence[bytes], retry: Retry | None = None
) -> tuple[int, str]:
    """Return the first offset and the level of the receipts."""
    url = cluster.owner("t").broker_url
    async with connect(url, retry=retry) as client, client.producer("t") as producer:
        with anyio.fail_after(60):
            receipts = [await producer.send(each) for each in messages]
    assert [each.offset for each in receipts] == list(
        range(receipts[0].offset, receipts[0].offset + len(receipts))
    )
    return receipts[0].offset, receipts[0].durability


async def assignment(cluster: SeveralBrokers) -> Assignment:
    broker = next(iter(cluster.brokers.values()))
    record = broker.registry.catalog.index.topic(NAME)
    item = await broker.admin_state.store.get(keys.assignment_key(TopicId(record.topic_id)))
    assert item is not None
    return Assignment.of(item.key, item.value)


async def test_topic_of_a_lost_broker_continues_without_a_gap_or_a_jump(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        assert await publish(cluster, FIRST) == (0, "stored")
        served = cluster.brokers[3].registry.find(NAME)
        assert served is not None
        async with (
            connect(cluster.owner("t").broker_url) as client,
            client.consumer("t", "s", start="earliest") as consumer,
        ):
            for _ in range(4):
                await (await anext(consumer)).ack()
            await until(lambda: served.subscriptions["s"].floor == 4)
        await cluster.brokers[3].registry.create(OTHER, partitions=0, dispatch_strategy="reliable", here=True)
        record = await record_of(cluster, broker_id(cluster.brokers[3]))
        assert record.copies
        await lost(cluster, 3)
        shutil.rmtree(tmp_path / "broker-3")
        await until(lambda: cluster.serves_name("t"))
        assert await publish(cluster, SECOND) == (10, "stored")
        assert await read_all(cluster, "t", 17) == FIRST + SECOND
        async with connect(cluster.owner("t").broker_url) as client, client.consumer("t", "s") as consumer:
            with anyio.fail_after(60):
                assert [(await anext(consumer)).payload for _ in range(13)] == FIRST[4:] + SECOND
        assert not cluster.serves(OTHER), "a topic of its disk waits"

        # and the heir is lost, too
        heir = next(n for n, each in cluster.brokers.items() if each is cluster.owner("t"))
        await lost(cluster, heir)
        shutil.rmtree(tmp_path / f"broker-{heir}")
        await until(lambda: cluster.serves_name("t"))
        assert await publish(cluster, THIRD) == (17, "stored")
        assert await read_all(cluster, "t", 22) == FIRST + SECOND + THIRD


async def test_stored_topic_is_refused_while_an_older_build_may_serve_it(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "holding_up", lambda *_: {BrokerId(7)})
    async with no_brokers(etcd, tmp_path, quick) as cluster:
        await cluster.start(1)
        with pytest.raises(Conflict, match="needs all brokers to run this build"):
            await make(cluster.brokers[1])
        await make(cluster.brokers[1], "fsynced")


async def test_slow_store_delays_answers_and_nothing_is_taken_over(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        await publish(cluster, FIRST[:1])
        for broker in cluster.brokers.values():
            create = broker.chain.store.create

            async def slow(key: str, data: bytes, create: Any = create) -> bool:
                await anyio.sleep(2)
                return bool(await create(key, data))

            monkeypatch.setattr(broker.chain.store, "create", slow)
        async with connect(cluster.owner("t").broker_url) as client, client.producer("t") as producer:
            with anyio.fail_after(60):
                for part in (FIRST[1:], SECOND):
                    assert (await producer.send_many(part)).durability == "stored"
        assert cluster.owner("t") is cluster.brokers[3]
        assert sum(broker.moves.fences for broker in cluster.brokers.values()) == 0
        assert await read_all(cluster, "t", 17) == FIRST + SECOND


async def test_heir_reads_the_head_of_a_topic_in_the_catalog_once(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        await publish(cluster, FIRST)
        before_it_is_served: list[int] = []

        def spied(broker: Broker) -> None:
            head = broker.tier.catalog.head

            async def read(topic_id: int) -> Committed | None:
                if broker.registry.find(NAME) is None:
                    before_it_is_served.append(topic_id)
                return await head(topic_id)

            monkeypatch.setattr(broker.tier.catalog, "head", read)

        for number in (1, 2):
            spied(cluster.brokers[number])
        await lost(cluster, 3)
        await until(lambda: cluster.serves_name("t"))
        assert not before_it_is_served, "the head from which it was rebuilt"
        heir = cluster.owner("t")
        topic = heir.registry.find(NAME)
        assert topic is not None
        assert topic.topic_id in heir.tier.folders
        assert await publish(cluster, SECOND) == (len(FIRST), "stored")
        assert await read_all(cluster, "t", 17) == FIRST + SECOND


async def test_retry_of_a_batch_that_the_heir_has_is_not_stored_again(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        urls = ",".join(each.broker_url for each in cluster.brokers.values())
        async with connect(urls) as client, client.producer("t") as producer:
            await producer.send_many(FIRST)
            await lost(cluster, 3)
            with anyio.fail_after(90):
                receipt = await producer.send(b"next")
            assert receipt.offset == len(FIRST)
        assert await read_all(cluster, "t", 11) == [*FIRST, b"next"]


async def test_moved_topic_is_acknowledged_once_the_store_of_its_next_owner_has_it(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        await publish(cluster, FIRST)
        target = cluster.brokers[1]
        create, go_on, is_held = target.chain.store.create, anyio.Event(), anyio.Event()

        async def held(key: str, data: bytes) -> bool:
            if "/probe/" not in key:
                is_held.set()
                await go_on.wait()
            return await create(key, data)

        monkeypatch.setattr(target.chain.store, "create", held)
        await cluster.brokers[3].moves.begin(
            [cluster.brokers[3].registry.catalog.index.topic(NAME)], broker_id(target)
        )
        await is_held.wait()
        assert (await assignment(cluster)).broker_id == broker_id(cluster.brokers[3]), (
            "its copy is not stored yet"
        )
        assert await publish(cluster, SECOND) == (10, "stored")
        go_on.set()
        await until(lambda: target.registry.find(NAME) is not None)
        assert (await assignment(cluster)).stored
        await lost(cluster, 1)
        shutil.rmtree(tmp_path / "broker-1")
        await until(lambda: cluster.serves_name("t"))
        assert await publish(cluster, THIRD) == (17, "stored")
        assert await read_all(cluster, "t", 22) == FIRST + SECOND + THIRD


async def test_owner_that_another_broker_chose_begins_to_store(etcd: EtcdMembers, tmp_path: Path) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        for n in (1, 2):
            await cluster.brokers[n].moves.drain()
        one = cluster.brokers[1].registry
        await until(lambda: list(one.ownership.coordinator.alive()) == [broker_id(cluster.brokers[3])])
        await one.create(NAME, partitions=0, dispatch_strategy="reliable", durability="stored")
        await until(lambda: cluster.serves_name("t"))
        assert cluster.owner("t") is cluster.brokers[3]
        assert await publish(cluster, FIRST) == (0, "stored")
        assert (await record_of(cluster, broker_id(cluster.brokers[3]))).copies


async def test_broker_that_comes_back_stores_again(etcd: EtcdMembers, tmp_path: Path) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        await publish(cluster, FIRST)
        gone = await lost(cluster, 3)
        await until(lambda: cluster.serves_name("t"))
        await publish(cluster, SECOND)
        await cluster.start(3)
        await cluster.all_know_all()
        await until_state(cluster, gone, JournalState.OPEN)
        (record,) = [cluster.brokers[3].registry.catalog.index.topic(NAME)]
        await cluster.brokers[1].moves.begin([record], broker_id(cluster.brokers[3]))
        await until(lambda: cluster.brokers[3].registry.find(NAME) is not None)
        assert await publish(cluster, THIRD) == (17, "stored")
        await lost(cluster, 3)
        shutil.rmtree(tmp_path / "broker-3")
        await until(lambda: cluster.serves_name("t"))
        assert await read_all(cluster, "t", 22) == FIRST + SECOND + THIRD


async def until_stored(cluster: SeveralBrokers) -> None:
    with anyio.fail_after(30):
        while not (await assignment(cluster)).stored:  # noqa: ASYNC110  (it is in the store)
            await anyio.sleep(0.02)


async def test_removed_broker_exports_the_stored_messages_of_a_topic_that_went_on_elsewhere(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    """The topic continued above a gap before it was stored, so its journal alone cannot prove what others have."""
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[2], "fsynced")
        await publish(cluster, FIRST)
        await cluster.brokers[1].port.remove_broker(await lost(cluster, 2))
        await until(lambda: cluster.serves_name("t"))
        owner = cluster.brokers[3]
        if cluster.owner("t") is not owner:
            await move(cluster, "t", owner)
        assert await owner.port.set_durability("t", "stored")
        await until_stored(cluster)
        first, level = await publish(cluster, SECOND)
        assert first >= JUMP
        assert level == "stored"

        gone = await lost(cluster, 3)
        await cluster.brokers[1].port.remove_broker(gone)
        await until(lambda: cluster.serves_name("t"))
        assert cluster.owner("t") is cluster.brokers[1]
        assert await publish(cluster, THIRD) == (first + len(SECOND), "stored"), "without a gap"
        with pytest.raises(Fenced, match=r"was removed from the cluster.* are in .*/lost\+found/"):
            await quick(cluster.settings(3)).__aenter__()
        (found,) = (tmp_path / "objects").glob(f"*/lost+found/{gone}/default/t/*/*.parquet")
        assert pyarrow.parquet.read_metadata(found).metadata[b"danube.durability"] == b"stored"
        table = pyarrow.parquet.read_table(found)
        assert table.column("payload").to_pylist() == SECOND
        assert table.column("offset").to_pylist() == [first + n for n in range(len(SECOND))]
        assert await read_all(cluster, "t", 12) == SECOND + THIRD


async def test_broker_that_comes_back_exports_nothing_of_a_stored_topic_that_went_on_without_a_gap(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        await publish(cluster, FIRST)
        topic_id = cluster.brokers[3].registry.catalog.index.topic(NAME).topic_id
        gone = await lost(cluster, 3)
        await until(lambda: cluster.serves_name("t"))
        await publish(cluster, SECOND)
        await cluster.start(3)
        await until_state(cluster, gone, JournalState.OPEN)
        await until(lambda: topic_id not in cluster.brokers[3].hub.states)
        assert not list((tmp_path / "objects").glob("*/lost+found/**/*.parquet"))
        assert await read_all(cluster, "t", 17) == FIRST + SECOND


async def test_broker_that_was_fenced_acknowledges_nothing_and_comes_back(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        owner = cluster.brokers[3]
        me = broker_id(owner)
        await make(owner)
        await publish(cluster, FIRST)
        fenced: list[ClusterError] = []
        owner.health.on_fenced = fenced.append
        record = await record_of(cluster, me)
        await fence(  # as if its lease had ended
            ChainObjects(LocalStore(tmp_path / "objects")),
            owner.tier.cluster,
            record.journal,
            record.from_piece,
            record.term + 1,
        )
        # The message under way, and one after the fence: clients continue elsewhere without an error of their callers.
        for _ in range(2):
            with pytest.raises(Unavailable) as refused:
                await publish(cluster, SECOND, Retry(max_elapsed_s=0))
            assert refused.value.details["reason"] == "FENCED"
        await until(lambda: bool(fenced))
        assert isinstance(fenced[0], Fenced)
        served = owner.registry.find(NAME)
        assert served is None or served.commit == len(FIRST)


async def test_durability_that_is_raised_counts_once_everything_is_stored(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        owner = cluster.brokers[3]
        await make(owner, "fsynced")
        await publish(cluster, FIRST)
        create, go_on = owner.chain.store.create, anyio.Event()

        async def held(key: str, data: bytes) -> bool:
            if "/probe/" not in key:
                await go_on.wait()
            return await create(key, data)

        monkeypatch.setattr(owner.chain.store, "create", held)
        monkeypatch.setattr(topics, "REACHED_S", 0.1)
        assert not await owner.port.set_durability("t", "stored")
        assert not (await assignment(cluster)).stored
        go_on.set()
        assert (await publish(cluster, SECOND))[0] == 10
        served = owner.registry.find(NAME)
        assert served is not None
        await until(lambda: served.in_store)
        await until_stored(cluster)
        assert (await publish(cluster, THIRD))[1] == "stored"
        await lost(cluster, 3)
        shutil.rmtree(tmp_path / "broker-3")
        await until(lambda: cluster.serves_name("t"))
        assert (await publish(cluster, FIRST))[0] == 22
        assert await read_all(cluster, "t", 32) == FIRST + SECOND + THIRD + FIRST

        # lowered: its next loss costs a jump, and it waits for its owner
        heir = cluster.owner("t")
        monkeypatch.setattr(topics, "REACHED_S", 30.0)
        assert await heir.port.set_durability("t", "fsynced")
        assert not (await assignment(cluster)).stored
        assert (await publish(cluster, SECOND))[1] == "fsynced"


async def test_all_brokers_end_and_start_again(etcd: EtcdMembers, tmp_path: Path) -> None:
    async with several_brokers(etcd, tmp_path, quick) as cluster:
        await make(cluster.brokers[3])
        await publish(cluster, FIRST)
        async with anyio.create_task_group() as group:
            for n in (1, 2, 3):
                group.start_soon(cluster.stop, n)
        async with anyio.create_task_group() as group:
            for n in (1, 2, 3):
                group.start_soon(cluster.start, n)
        await cluster.all_know_all()
        await until(lambda: cluster.serves_name("t"))
        assert await publish(cluster, SECOND) == (10, "stored")
        assert await read_all(cluster, "t", 17) == FIRST + SECOND
        await lost(cluster, next(n for n, each in cluster.brokers.items() if each is cluster.owner("t")))
        await until(lambda: cluster.serves_name("t"))
        assert await publish(cluster, THIRD) == (17, "stored")
