"""A broker with a chain: what it copies, what it waits for, and what it finds there after a loss."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from pydanube import Receipt, connect
from pydanube_broker.broker import Broker
from pydanube_broker.chain import ChainObjects, chain_end, replay
from pydanube_broker.chain.folder import ChainFile
from pydanube_broker.journal import Disk, journal
from pydanube_broker.journal.recovery import recover
from pydanube_broker.tier import journal_chain
from pydanube_broker.topics.log_state import LogState, decode_head, replay_record
from pydanube_core.errors import ClusterError, Fenced, StoreOwned, StoreUnavailable
from pydanube_core.names import TopicName
from pydanube_storage.objects import LocalStore

from tests.broker.delivery.conftest import Opener, one_loop, opened
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

__all__ = ["one_loop", "opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(120)]

NAME = TopicName.parse("t")
COPY = {"journal__copy": True}


async def make(broker: Broker, durability: str = "fsynced") -> None:
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable", durability=durability)


async def publish(broker: Broker, messages: Sequence[bytes]) -> str:
    async with connect(broker.broker_url) as client, client.producer("t") as producer:
        return (await producer.send_many(messages)).durability


async def read(broker: Broker, count: int) -> list[bytes]:
    async with connect(broker.broker_url) as client, client.reader("t", start="earliest") as reader:
        return [(await anext(reader)).payload for _ in range(count)]


async def all_stored(broker: Broker) -> None:
    def is_stored() -> bool:
        found = broker.chain.statistics()
        return found is not None and found.stored_lsn >= broker.journal.durable_lsn

    await until(is_stored)


def file_of(folder: Path) -> ChainFile:
    found = ChainFile.read(folder / "journal")
    assert found is not None
    return found


async def states_in_chain(folder: Path, into: Path) -> dict[int, LogState]:
    """The topics that another broker would find in the chain."""
    file, store = file_of(folder), ChainObjects(LocalStore(folder / "objects"))
    end = await chain_end(store, file.cluster, file.journal, file.from_number)
    await replay(store, file.cluster, file.journal, file.from_number, end.number, into)
    states: dict[int, LogState] = {}

    def take(records: object, raw: bytes, segment: object) -> None:
        for i in range(len(records)):  # type: ignore[arg-type]
            header = records.header(i)  # type: ignore[attr-defined]
            body = records.position[i] + 48  # type: ignore[attr-defined]
            if header.topic_id:
                replay_record(states, header, memoryview(raw)[body : body + header.body_bytes])

    def restore(head: bytes) -> None:
        count = int.from_bytes(head[:4], "little")
        states.update(decode_head(memoryview(head)[8 + 16 * count :]))

    found = recover(into, Disk(), restore=restore, replay=take)  # type: ignore[arg-type]
    for header, body in found.tail:
        replay_record(states, header, memoryview(body))
    return states


async def test_a_copied_journal_is_found_in_its_chain_after_each_start(
    opened: Opener, tmp_path: Path
) -> None:
    sent: list[bytes] = []
    for start in range(3):
        async with opened(**COPY) as broker:
            if not start:
                await make(broker)
            sent += [b"%d/%d" % (start, number) for number in range(20)]
            assert await publish(broker, sent[-20:]) == "fsynced"
            await all_stored(broker)
            topic = broker.registry.find(NAME)
            assert topic is not None
            states = await states_in_chain(tmp_path / "data", tmp_path / f"replayed-{start}")
            assert states[topic.topic_id].next_offset == len(sent) == topic.commit
            assert await read(broker, len(sent)) == sent


async def test_without_a_copy_there_is_no_chain_and_no_process_for_it(opened: Opener, tmp_path: Path) -> None:
    async with opened() as broker:
        await make(broker)
        await publish(broker, [b"x"])
        assert broker.chain.statistics() is None
        assert broker.journal.copied_lsn is None
    assert ChainFile.read(tmp_path / "data" / "journal") is None
    assert not list((tmp_path / "data" / "objects").rglob("journals"))


async def test_a_stored_topic_is_acknowledged_and_read_once_the_store_has_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        topic = broker.registry.find(NAME)
        assert topic is not None
        create = broker.chain.store.create
        go_on = anyio.Event()

        async def held(key: str, data: bytes) -> bool:
            await go_on.wait()
            return await create(key, data)

        async with connect(broker.broker_url) as client, client.producer("t") as producer:
            assert (await producer.send(b"first")).durability == "stored"
            monkeypatch.setattr(broker.chain.store, "create", held)
            receipts: list[Receipt] = []

            async def second() -> None:
                receipts.append(await producer.send(b"second"))

            async with anyio.create_task_group() as group:
                group.start_soon(second)
                await until(
                    lambda: topic.state.next_offset == 2 and broker.journal.durable_lsn >= topic.position
                )
                await anyio.sleep(0.3)  # an answer would be there by now
                assert topic.commit == 1
                assert not receipts
                go_on.set()
            assert [receipt.durability for receipt in receipts] == ["stored"]
        assert topic.commit == 2
        assert await read(broker, 2) == [b"first", b"second"]


async def test_a_stored_topic_begins_after_a_start_at_what_the_store_has(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        topic = broker.registry.find(NAME)
        assert topic is not None

        async def refused(key: str, data: bytes) -> bool:
            raise StoreUnavailable("away")

        with anyio.move_on_after(1):
            async with connect(broker.broker_url) as client, client.producer("t") as producer:
                await producer.send(b"first")
                monkeypatch.setattr(broker.chain.store, "create", refused)
                await producer.send(b"second")
        assert topic.state.next_offset == 2
        await until(lambda: broker.journal.durable_lsn >= topic.position)
        assert topic.commit == 1
        broker.health.draining = True  # an end without waiting for the store
    async with opened() as broker:
        topic = broker.registry.find(NAME)
        assert topic is not None
        statistics = broker.chain.statistics()
        assert statistics is not None
        assert topic.commit == 2
        assert statistics.stored_lsn >= topic.position  # shown, because it is stored by now
        assert await read(broker, 2) == [b"first", b"second"]
        assert await publish(broker, [b"third"]) == "stored"


async def test_a_stored_topic_does_not_wait_for_the_disk(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        await publish(broker, [b"first"])
        with SyncGate(monkeypatch) as gate:
            assert await publish(broker, [b"second"]) == "stored"
            assert gate.requests
            topic = broker.registry.find(NAME)
            assert topic is not None
            assert topic.position > broker.journal.durable_lsn


async def test_a_copy_of_a_folder_fences_the_other_only_when_told_to(opened: Opener, tmp_path: Path) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        await publish(broker, [b"first"])
        fenced: list[ClusterError] = []
        broker.health.on_fenced = fenced.append
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "data", copy, ignore=shutil.ignore_patterns("LOCK"))
        there = {"data__dir": str(copy), "tier__url": str(tmp_path / "data" / "objects")}
        with pytest.raises(StoreOwned, match="DANUBE_TIER__TAKE_OVER=1") as refused:
            async with opened(**there):
                pass
        assert refused.value.details["field"] == "tier.take_over"
        assert await publish(broker, [b"second"]) == "stored"
        async with opened(**there, tier__take_over=1) as other:
            assert await publish(other, [b"of the copy"]) == "stored"
            with pytest.raises(ClusterError):
                await publish(broker, [b"third"])
            await until(lambda: bool(fenced))
            assert isinstance(fenced[0], Fenced)
            assert broker.journal.read_only is not None
            assert await read(other, 3) == [b"first", b"second", b"of the copy"]


async def test_an_empty_folder_is_a_new_journal(opened: Opener, tmp_path: Path) -> None:
    async with opened(**COPY) as broker:
        await make(broker)
        await publish(broker, [b"x"])
        await all_stored(broker)
    first = file_of(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "journal")
    shutil.rmtree(tmp_path / "data" / "metadata.sqlite", ignore_errors=True)
    for path in (tmp_path / "data").glob("metadata.sqlite*"):
        path.unlink()
    async with opened(**COPY) as broker:
        await all_stored(broker)
        assert file_of(tmp_path / "data").journal != first.journal


async def test_a_store_that_is_away_stops_no_copied_broker_and_is_taken_up_later(
    opened: Opener, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    place.write_bytes(b"a file where a folder is to be")
    async with opened(**COPY, tier__url=str(place)) as broker:
        await make(broker)
        assert await publish(broker, [b"x"] * 10) == "fsynced"
        assert broker.chain.error is not None
        place.unlink()
        await all_stored(broker)


async def test_chain_begins_while_the_newest_head_is_in_a_file_of_its_own(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "INLINE_BYTES", 0)  # as with ten thousand topics
    async with opened() as broker:
        await make(broker)
        await publish(broker, [b"x"] * 3)
    async with opened() as broker:  # its head has the topic
        other = TopicName.parse("other")
        await broker.registry.create(
            other, partitions=0, dispatch_strategy="reliable", durability="stored", here=True
        )
        async with connect(broker.broker_url) as client, client.producer("other") as producer:
            assert (await producer.send(b"y")).durability == "stored"
        await all_stored(broker)
        states = await states_in_chain(tmp_path / "data", tmp_path / "replayed")
        ids = {topic.name: topic.topic_id for topic in broker.registry.topics}
        assert {
            name: states[topic_id].next_offset for name, topic_id in ids.items() if topic_id in states
        } == {
            "/default/t": 3,
            "/default/other": 1,
        }


async def test_batches_for_the_store_are_larger_by_default(opened: Opener) -> None:
    async with opened() as broker:
        counts: dict[str, int] = {}
        for durability in ("fsynced", "stored"):
            name = TopicName.parse(durability)
            await broker.registry.create(
                name, partitions=0, dispatch_strategy="reliable", durability=durability, here=True
            )
            async with connect(broker.broker_url) as client, client.producer(durability) as producer:
                await producer.send(b"opened")
                await producer.send_many([bytes(1000)] * 900)
            topic = broker.registry.find(name)
            assert topic is not None
            counts[durability] = len(broker.journal.plan_read(topic.topic_id, 1, 901, 1 << 30))
        assert counts["fsynced"] >= 4
        assert counts["stored"] == 1


async def test_reading_begins_at_a_piece_that_repeats_the_journal_with_its_newest_head(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "INLINE_BYTES", 0)  # as with ten thousand topics
    monkeypatch.setattr(journal_chain, "PIECES_TO_READ", 8)
    async with opened(**COPY, journal__stored_linger=0.01) as broker:
        await make(broker)
        sent = 0
        with anyio.fail_after(60):
            while file_of(tmp_path / "data").from_number <= 16:
                await publish(broker, [b"x"])
                sent += 1
        await all_stored(broker)
        states = await states_in_chain(tmp_path / "data", tmp_path / "replayed")
        topic = broker.registry.find(NAME)
        assert topic is not None
        assert states[topic.topic_id].next_offset == topic.commit == sent
    assert list((tmp_path / "replayed").glob("*.head"))
