"""A copied journal of one of several brokers: its record, and the term under which its chain goes on after a take-over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.chain import ChainObjects, chain_end, fence
from pydanube_broker.chain.folder import ChainFile
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.journal_record import JournalRecord, JournalState, taken_over
from pydanube_broker.settings.sections import Journal, Settings
from pydanube_broker.tier.chain_record import ChainRecord
from pydanube_core.errors import Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.metadata import MetadataStore, Put
from pydanube_storage.objects import LocalStore

from tests.broker.chain.stored import all_stored
from tests.broker.cluster.conftest import clock, store
from tests.support.broker_process import SMALL_SEGMENT_BYTES
from tests.support.etcd import EtcdMembers
from tests.support.memory_store import MemoryStore
from tests.support.one_loop import one_loop
from tests.support.several_brokers import SeveralBrokers, no_brokers

__all__ = ["clock", "one_loop", "store"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

ME = BrokerId(1)


async def put(store: MetadataStore, broker_id: BrokerId, record: JournalRecord) -> None:
    await store.transact([Put(keys.journal_key(broker_id), record.to_json())])


async def record_of(store: MetadataStore, broker_id: BrokerId) -> JournalRecord:
    item = await store.get(keys.journal_key(broker_id))
    assert item is not None
    return JournalRecord.from_json(item.value, key=item.key)


async def test_the_record_says_that_the_journal_is_copied_and_where_reading_begins(
    store: MemoryStore,
) -> None:
    chain = ChainRecord(store, ME, 7)
    with pytest.raises(Unavailable):
        await chain.copied(1)
    await put(store, ME, JournalRecord(journal=7, term=3))
    assert await chain.copied(5) == 3, "a lone broker that joins brings its chain along"
    assert (await record_of(store, ME)).from_piece == 5
    await chain.begins_at(12)
    await chain.begins_at(9)
    assert await record_of(store, ME) == JournalRecord(journal=7, term=3, copies=True, from_piece=12)


async def test_nothing_of_a_chain_goes_while_it_is_taken_over_or_of_another_journal(
    store: MemoryStore,
) -> None:
    chain = ChainRecord(store, ME, 7)
    record = taken_over(JournalRecord(journal=7, term=3, copies=True), [TopicId(5)])
    await put(store, ME, record)
    assert await chain.copied(1) is None
    with pytest.raises(Unavailable, match="nothing of it is deleted"):
        await chain.begins_at(12)
    assert await record_of(store, ME) == record
    await put(store, ME, JournalRecord(journal=8, term=4))
    with pytest.raises(Unavailable, match="another journal"):
        await chain.begins_at(12)


def copying(settings: Settings) -> Broker:
    journal = Journal(segment_bytes=SMALL_SEGMENT_BYTES, copy=True)
    return Broker(settings.model_copy(update={"journal": journal}))


async def publish(broker: Broker) -> None:
    async with connect(broker.broker_url) as client, client.producer("t") as producer:
        await producer.send(b"x")


async def chain_of(cluster: SeveralBrokers, folder: Path) -> tuple[ChainObjects, ChainFile]:
    file = ChainFile.read(folder / "broker-1" / "journal")
    assert file is not None
    return ChainObjects(LocalStore(folder / "objects", spool="test")), file


@pytest.mark.usefixtures("one_loop")
async def test_a_broker_that_was_taken_over_continues_its_chain_under_the_new_term(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with no_brokers(etcd, tmp_path, copying) as cluster:
        await cluster.start(1)
        broker = cluster.brokers[1]
        await broker.registry.create(TopicName.parse("t"), partitions=0, dispatch_strategy="reliable")
        await publish(broker)
        await all_stored(broker)
        me = BrokerId(broker.data_dir.broker_id)
        store = broker.admin_state.store
        record = await record_of(store, me)
        objects, file = await chain_of(cluster, tmp_path)
        assert (record.copies, record.journal, record.term) == (True, file.journal, file.term)

        await put(store, me, taken_over(record, [TopicId(1)]))
        assert await fence(objects, file.cluster, file.journal, 1, term=file.term + 1) > 1
        await cluster.stop(1)
        await cluster.start(1)
        broker = cluster.brokers[1]
        store = broker.admin_state.store
        await publish(broker)
        assert broker.chain.statistics() is None  # heirs read it

        closing = await record_of(store, me)
        await put(store, me, replace(closing, state=JournalState.OPEN, topics=()))
        await cluster.stop(1)
        await cluster.start(1)
        broker = cluster.brokers[1]
        await publish(broker)
        await all_stored(broker)
        _, file = await chain_of(cluster, tmp_path)
        assert file.term == closing.term
        assert (await chain_end(objects, file.cluster, file.journal, 1)).term == file.term
