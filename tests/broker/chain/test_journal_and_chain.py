"""A broker with a chain: what it copies, what it waits for, and what it finds there after a loss."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import Receipt, Retry, connect
from pydanube_broker import broker as broker_module
from pydanube_broker.broker import Broker
from pydanube_broker.chain import ChainObjects, chain_end, chain_folder, replay
from pydanube_broker.chain.folder import ChainFile
from pydanube_broker.chain.probe import check_create_only
from pydanube_broker.home import data_dir
from pydanube_broker.journal import Disk, journal
from pydanube_broker.journal.recovery import recover
from pydanube_broker.tier import journal_chain
from pydanube_broker.tier.cold_reads import ColdRange
from pydanube_broker.topics.log_state import LogState, decode_head, replay_record
from pydanube_broker.topics.topic import now_ms
from pydanube_core.errors import (
    ClusterError,
    CorruptObject,
    Fenced,
    StoreOwned,
    StoreUnavailable,
    Unavailable,
)
from pydanube_core.names import TopicName
from pydanube_storage.objects import LocalStore

from tests.broker.chain.stored import all_stored
from tests.broker.delivery.conftest import Opener, one_loop, opened
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

__all__ = ["one_loop", "opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(120)]

NAME, OTHER = TopicName.parse("t"), TopicName.parse("other")
COPY = {"journal__copy": True}


async def make(broker: Broker, durability: str = "fsynced") -> None:
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable", durability=durability)


async def publish(broker: Broker, messages: Sequence[bytes], retry: Retry | None = None) -> str:
    async with connect(broker.broker_url, retry=retry) as client, client.producer("t") as producer:
        return (await producer.send_many(messages)).durability


async def read(broker: Broker, count: int) -> list[bytes]:
    async with connect(broker.broker_url) as client, client.reader("t", start="earliest") as reader:
        return [(await anext(reader)).payload for _ in range(count)]


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


async def test_failed_sync_stops_a_stored_topic_and_loses_nothing(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        assert await publish(broker, [b"first"]) == "stored"
        with SyncGate(monkeypatch) as gate:
            assert await publish(broker, [b"second"]) == "stored", "a local sync is not waited for"
            await until(lambda: gate.requests)
            gate.fail(OSError(5, "injected"))
            async with connect(broker.broker_url, retry=Retry(max_elapsed_s=0)) as client:
                with pytest.raises(ClusterError) as refused:
                    async with client.producer("t") as producer:
                        await producer.send(b"third")
            assert refused.value.code == "JOURNAL_READ_ONLY"
    async with opened() as broker:
        assert await read(broker, 2) == [b"first", b"second"]
        assert await publish(broker, [b"third"]) == "stored"


async def test_damage_in_the_middle_of_a_stored_topics_journal_is_found_by_the_start(
    opened: Opener, tmp_path: Path
) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        for n in range(5):
            await publish(broker, [b"payload-%d" % n])
    (segment,) = (
        path
        for path in (tmp_path / "data" / "journal").glob("*.journal")
        if b"payload-1" in path.read_bytes()
    )
    segment.write_bytes(segment.read_bytes().replace(b"payload-1", b"payload-x", 1))
    with pytest.raises(ClusterError) as refused:
        async with opened():
            pass
    assert refused.value.code == "CORRUPT_JOURNAL"


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
            with pytest.raises(Unavailable):
                await publish(broker, [b"third"], Retry(max_elapsed_s=0))
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


def take_away(store: Path) -> None:
    """Put a file where the folder of the object store is, so that every call of the store fails."""
    store.rename(store.with_name("hidden"))
    store.write_bytes(b"a file where a folder is to be")


def bring_back(store: Path) -> None:
    store.unlink()
    store.with_name("hidden").rename(store)


async def filled(broker: Broker, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A stored topic with two handled messages, two that the store has, and one that only the journal has."""
    await make(broker, "stored")
    await broker.registry.create(OTHER, partitions=0, dispatch_strategy="reliable")
    await publish(broker, [b"0", b"1", b"2"])
    topic = broker.registry.find(NAME)
    assert topic is not None
    async with connect(broker.broker_url) as client, client.consumer("t", "s", start="earliest") as consumer:
        for _ in range(2):
            await (await anext(consumer)).ack()
        await until(lambda: topic.subscriptions["s"].floor == 2)
    await all_stored(broker)
    await until((folder / "clock.json").exists)

    async def refused(key: str, data: bytes) -> bool:
        raise StoreUnavailable("away")

    async def last() -> None:
        async with connect(broker.broker_url) as client, client.producer("t") as producer:
            await producer.send(b"3")
            monkeypatch.setattr(broker.chain.store, "create", refused)
            await producer.send(b"4")

    async with anyio.create_task_group() as group:
        group.start_soon(last)
        await until(lambda: topic.state.next_offset == 5)
        group.cancel_scope.cancel()
    await until(lambda: broker.journal.durable_lsn >= topic.position)
    assert topic.commit == 4
    broker.health.draining = True  # an end without waiting for the store


async def test_start_without_the_store_serves_other_topics_and_goes_on_when_it_is_back(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "MAINTENANCE_S", 0.1)
    store = tmp_path / "store"
    async with opened(tier__url=str(store)) as broker:
        await filled(broker, monkeypatch, tmp_path / "data")
    take_away(store)
    async with opened(tier__url=str(store)) as broker:
        assert broker.chain.is_late
        assert broker.chain.error is not None
        topic = broker.registry.find(NAME)
        assert topic is not None
        assert (topic.commit, topic.awaits_store) == (2, True), "nothing that only the journal may have"
        late = broker.observation.viewer.broker().late_store
        assert late is not None
        assert (late.topics, late.error) == (1, broker.chain.error.message)
        assert 0 <= now_ms() - late.since_ms < 3_600_000
        async with connect(broker.broker_url) as client, client.producer("other") as producer:
            assert (await producer.send(b"x")).durability == "fsynced"
        levels: list[str] = []

        async def more() -> None:
            levels.append(await publish(broker, [b"5"]))

        async with anyio.create_task_group() as group:
            group.start_soon(more)
            await until(lambda: topic.position > topic.awaited)  # the session of the producer
            await until(lambda: broker.journal.durable_lsn >= topic.position)
            assert (topic.commit, levels) == (2, [])
            bring_back(store)
        assert levels == ["stored"]
        assert (topic.commit, topic.awaits_store, broker.chain.is_late) == (6, False, False)
        assert broker.observation.viewer.broker().late_store is None
        assert await read(broker, 6) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        async with connect(broker.broker_url) as client, client.consumer("t", "s") as consumer:
            assert [(await anext(consumer)).payload for _ in range(4)] == [b"2", b"3", b"4", b"5"]


async def test_start_with_a_damaged_chain_serves_what_the_disk_has_and_goes_on_when_it_is_restored(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "MAINTENANCE_S", 0.1)
    store = tmp_path / "store"
    async with opened(tier__url=str(store)) as broker:
        await filled(broker, monkeypatch, tmp_path / "data")
    piece = sorted(store.glob("*/journals/*/*"))[-1]
    whole = piece.read_bytes()
    piece.write_bytes(whole[:40])
    async with opened(tier__url=str(store)) as broker:
        topic = broker.registry.find(NAME)
        assert topic is not None
        assert (topic.commit, topic.awaits_store) == (2, True), "nothing that only the journal may have"
        assert "Restore the object from a backup" in str(broker.chain.error)
        async with connect(broker.broker_url) as client, client.producer("other") as producer:
            assert (await producer.send(b"x")).durability == "fsynced"
        piece.write_bytes(whole)
        assert await publish(broker, [b"5"]) == "stored"
        assert (topic.commit, topic.awaits_store) == (6, False)
    piece.write_bytes(whole[:40])
    monkeypatch.setattr(data_dir, "boot_id", lambda: "another")
    with pytest.raises(CorruptObject):  # the disk may lack records, which only the chain has
        async with opened(tier__url=str(store)):
            pass


def without_its_middle(pieces: list[Path]) -> None:
    pieces[4].unlink()


def flipped(pieces: list[Path]) -> None:
    body = bytearray(pieces[-1].read_bytes())
    body[-1] ^= 1
    pieces[-1].write_bytes(body)


@pytest.mark.parametrize("damage", [without_its_middle, flipped])
@pytest.mark.parametrize("durability", ["stored", "fsynced"])
async def test_start_with_a_damaged_chain_leaves_its_pieces_and_is_refused_if_the_disk_may_lack_records(
    opened: Opener,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[list[Path]], None],
    durability: str,
) -> None:
    monkeypatch.setattr(broker_module, "MAINTENANCE_S", 0.1)
    here = {"tier__url": str(tmp_path / "store"), **COPY}
    async with opened(**here) as broker:
        await make(broker, durability)
        for number in range(10):
            await publish(broker, [b"%d" % number])
            await all_stored(broker)
        await until((tmp_path / "data" / "clock.json").exists)
        chain = (
            tmp_path
            / "store"
            / chain_folder(file_of(tmp_path / "data").cluster, int(file_of(tmp_path / "data").journal))
        )
    whole, older = tmp_path / "whole", sorted(chain.iterdir())
    shutil.copytree(chain, whole)
    damage(older)
    left = [each.name for each in sorted(chain.iterdir())]
    with monkeypatch.context() as rebooted:
        rebooted.setattr(data_dir, "boot_id", lambda: "another")
        with pytest.raises(CorruptObject, match=rf"piece \d+ of the chain .*{chain}") as refused:
            async with opened(**here):
                pass
    assert refused.value.details["path"] == str(chain)
    async with opened(**here) as broker:  # the disk has everything
        if damage is without_its_middle:
            assert "Restore the object from a backup" in str(broker.chain.error)
            assert [each.name for each in sorted(chain.iterdir())] == left
        if damage is flipped or durability == "fsynced":  # else the topic waits for the object
            assert await read(broker, 10) == [b"%d" % number for number in range(10)]
    for each in whole.iterdir():
        shutil.copy(each, chain)
    async with opened(**here) as broker:
        assert await read(broker, 10) == [b"%d" % number for number in range(10)]
        assert await publish(broker, [b"10"]) == durability
        await all_stored(broker)


async def test_damaged_copy_is_given_up_by_moving_it_and_the_chain_file_away(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"tier__url": str(tmp_path / "store"), **COPY}
    async with opened(**here) as broker:
        await make(broker)
        for number in range(10):
            await publish(broker, [b"%d" % number])
            await all_stored(broker)
    (chain,) = (tmp_path / "store").glob("*/journals/*")
    without_its_middle(sorted(chain.iterdir()))
    monkeypatch.setattr(data_dir, "boot_id", lambda: "another")
    with pytest.raises(CorruptObject):
        async with opened(**here):
            pass
    (tmp_path / "data" / "journal" / "chain.json").unlink()
    async with opened(**here) as broker:
        assert await read(broker, 10) == [b"%d" % number for number in range(10)]
        assert isinstance(broker.chain.error, CorruptObject)
    (tmp_path / "data" / "journal" / "chain.json").unlink()
    shutil.rmtree(chain)
    async with opened(**here) as broker:
        assert await publish(broker, [b"10"]) == "fsynced"
        await all_stored(broker)
        assert broker.chain.error is None


async def test_start_without_the_store_is_refused_when_the_disk_may_lack_records(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "MAINTENANCE_S", 0.1)
    store = tmp_path / "store"
    async with opened(tier__url=str(store)) as broker:
        await filled(broker, monkeypatch, tmp_path / "data")
    take_away(store)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy, ignore=shutil.ignore_patterns("LOCK"))
    with pytest.raises(StoreUnavailable):  # it might be fenced, or fence another
        async with opened(tier__url=str(store), data__dir=str(copy)):
            pass
    monkeypatch.setattr(data_dir, "boot_id", lambda: "another")
    with pytest.raises(StoreUnavailable):
        async with opened(tier__url=str(store)):
            pass


async def test_broker_ends_when_the_store_has_records_that_its_folder_lacks(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "MAINTENANCE_S", 0.1)
    store, journal_folder = tmp_path / "store", tmp_path / "data" / "journal"
    async with opened(tier__url=str(store)) as broker:
        await filled(broker, monkeypatch, tmp_path / "data")
    shutil.copytree(journal_folder, tmp_path / "older")
    async with opened(tier__url=str(store)) as broker:
        assert await publish(broker, [b"5"]) == "stored"
    take_away(store)
    shutil.rmtree(journal_folder)
    (tmp_path / "older").rename(journal_folder)
    async with opened(tier__url=str(store)) as broker:
        fenced: list[ClusterError] = []
        broker.health.on_fenced = fenced.append
        bring_back(store)
        await until(lambda: bool(fenced))
        assert "lacks" in fenced[0].message
        with pytest.raises(ClusterError):
            await publish(broker, [b"of the older folder"], Retry(max_elapsed_s=0))
    async with opened(tier__url=str(store)) as broker:
        assert await read(broker, 6) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_audit_waits_a_second_for_the_store_of_stored_topics_and_then_says_so(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as broker:
        await make(broker, "stored")
        seq, _ = await broker.port.open_audit()
        await broker.port.append_audit([b"{}"], at=seq)
        statistics, audit = broker.chain.statistics(), await broker.registry.audit_topic()
        assert statistics is not None
        assert statistics.stored_lsn >= audit.position
        create, go_on = broker.chain.store.create, anyio.Event()

        async def held(key: str, data: bytes) -> bool:
            await go_on.wait()
            return await create(key, data)

        monkeypatch.setattr(broker.chain.store, "create", held)
        await broker.port.append_audit([b"{}"], at=seq + 1)
        assert [each.message for each in caplog.records if "audit" in each.message] == ["audit_only_on_disk"]
        go_on.set()
        await broker.port.append_audit([b"{}"], at=seq + 2)


async def test_flush_of_messages_that_were_trimmed_meanwhile_is_no_failure(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker:
        await make(broker)
        await publish(broker, [b"x"] * 5)
        topic = broker.registry.find(NAME)
        assert topic is not None
        call = broker.tier.child.call

        async def trimmed(name: str, arguments: dict[str, Any], blob: bytes = b"") -> Any:
            if name == "flush":
                topic.trim(3)
                raise Unavailable("[Errno 2] No such file or directory: its segment was deleted")
            return await call(name, arguments, blob)

        monkeypatch.setattr(broker.tier.child, "call", trimmed)
        assert not await broker.tier.flusher.flush(topic)
        assert broker.tier.flusher.errors == 0
        monkeypatch.setattr(broker.tier.child, "call", call)
        assert await broker.tier.flusher.flush(topic)
        assert topic.state.tiered_offset == 5


async def test_truncated_messages_leave_the_cache_of_cold_reads(opened: Opener) -> None:
    async with opened() as broker:
        await make(broker)
        await publish(broker, [b"x"] * 5)
        topic = broker.registry.find(NAME)
        assert topic is not None
        assert await broker.tier.flusher.flush(topic)
        cache = broker.tier.cold.cache
        cache.add(ColdRange(topic.topic_id, 0, 3, [], 1000))
        cache.add(ColdRange(topic.topic_id + 1000, 0, 3, [], 1000))  # of a topic that was deleted meanwhile
        cache.add(ColdRange(topic.topic_id, 3, 5, [], 10))
        topic.trim(3)
        broker.tier.wake()
        with anyio.fail_after(30):
            while cache.used_bytes != 10:  # noqa: ASYNC110
                await anyio.sleep(0.02)


async def test_probe_of_a_store_that_is_away_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = ChainObjects(LocalStore(tmp_path))

    async def hangs(key: str, data: bytes) -> bool:
        await anyio.sleep_forever()
        return False

    async def fails(key: str) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "create", hangs)
    monkeypatch.setattr(store, "delete", fails)
    with anyio.move_on_after(0.05) as scope:
        await check_create_only(store, "cluster", "url")
    assert scope.cancelled_caught


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
