"""A data directory and a prefix on etcd belong together for good, and whatever does not fit is refused unchanged."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from pydanube import Retry, connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.identity import IDENTITY
from pydanube_broker.home.cluster_file import Home
from pydanube_broker.home.metadata_home import OLDER, Resident, broker_key, check_resident, check_settings
from pydanube_broker.home.metadata_watch import forget_history
from pydanube_broker.settings.sections import Data, Metadata, Settings, Tier
from pydanube_core.errors import (
    ClusterError,
    ClusterMismatch,
    CorruptJournal,
    InvalidArgument,
    MetadataUnavailable,
    Retryable,
    TierNotShared,
)
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Compacted, Delete, DeleteRange, KeyRange, ModRevision, Put, Revision
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from tests.support.broker_process import free_ports
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import FREE, SMALL
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


class Place:
    """A test's own prefix, object store and data directories."""

    def __init__(self, etcd: EtcdMembers, folder: Path) -> None:
        self.folder = folder
        self.url = etcd.url(f"/{folder.name}")

    def settings(self, directory: str = "data", *, url: str | None = None) -> Settings:
        return Settings(
            server=FREE,
            data=Data(dir=self.folder / directory),
            journal=SMALL,
            metadata=Metadata(url=url or self.url),
            tier=Tier(url=str(self.folder / "objects")),
        )

    def broker(self, directory: str = "data", **options: Any) -> AbstractAsyncContextManager[Broker]:
        return Broker(self.settings(directory, **options))

    async def refused(self, directory: str = "data", **options: Any) -> ClusterError:
        """The error of a start that is refused; the prefix is then as it was, but for a note that it is older than others have seen."""
        before = await self.keys()
        with pytest.raises(ClusterError) as caught:
            async with self.broker(directory, **options):
                pass
        assert [item for item in await self.keys() if item[0] != OLDER] == before
        return caught.value

    async def keys(self) -> list[tuple[str, bytes]]:
        async with self.store() as store:
            return [(item.key, item.value) for item in (await store.range(KeyRange.prefix("/"))).items]

    def store(self) -> EtcdStore:
        return EtcdStore(EtcdOptions(address=EtcdAddress.parse(self.url)))


@pytest.fixture
def place(etcd: EtcdMembers, tmp_path: Path) -> Place:
    return Place(etcd, tmp_path)


async def create(broker: Broker, name: str) -> None:
    await broker.registry.create(TopicName.parse(name), partitions=0, dispatch_strategy="reliable")


async def send(broker: Broker, topic: str, retry: Retry | None = None) -> None:
    async with connect(broker.broker_url, retry=retry) as client, client.producer(topic) as producer:
        await producer.send(b"x")


def reasons(broker: Broker) -> list[str]:
    return [reason.code for reason in broker.port.degraded()]


# Settings


def settings(**other: Any) -> Settings:
    return Settings(**{"metadata": Metadata(url="etcd://h:2379"), **other})


@pytest.mark.parametrize(
    "url", [None, "danube-data/objects", "./danube-data", "file:///tmp/danube/objects", "memory://x"]
)
def test_object_store_that_no_other_broker_sees_is_refused(url: str | None) -> None:
    data = Data(dir=Path("/tmp/danube")) if url and url.startswith("file") else Data()
    with pytest.raises(TierNotShared, match="DANUBE_TIER__URL"):
        check_settings(settings(tier=Tier(url=url), data=data))


@pytest.mark.parametrize("url", ["/srv/danube", "file:///srv/danube", "s3://bucket/prefix"])
def test_object_store_elsewhere_is_taken(url: str) -> None:
    check_settings(settings(tier=Tier(url=url)))


def test_embedded_metadata_asks_for_no_store() -> None:
    check_settings(Settings())


def test_memory_and_etcd_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="--memory"):
        check_settings(settings(data=Data(dir=None), tier=Tier(url="s3://b/p")))


# Starts


async def test_topics_on_etcd_are_there_after_a_restart(place: Place) -> None:
    async with place.broker() as broker:
        await create(broker, "orders")
        life = json.loads((place.folder / "data" / "cluster.json").read_text())["life"]
    async with place.broker() as broker:
        assert broker.registry.find(TopicName.parse("orders")) is not None
        assert broker.registry.ownership.incarnation == 2
    home = json.loads((place.folder / "data" / "cluster.json").read_text())
    assert home["life"] != life
    assert home["revision"] > 10
    assert not (place.folder / "data" / "metadata.sqlite").exists()


async def test_lone_broker_s_directory_is_refused(place: Place) -> None:
    async with Broker(Settings(server=FREE, journal=SMALL, data=Data(dir=place.folder / "data"))):
        pass
    error = await place.refused()
    assert isinstance(error, ClusterMismatch)
    assert "Start it without --metadata" in error.message


async def test_directory_of_a_cluster_is_not_started_alone(place: Place) -> None:
    async with place.broker():
        pass
    error = await place.refused(url="embedded")
    assert isinstance(error, ClusterMismatch)
    assert f"--metadata {place.url}" in error.message


async def test_second_directory_on_a_prefix_is_another_broker_of_the_cluster(place: Place) -> None:
    async with place.broker() as first, place.broker("second") as second:
        await create(first, "orders")
        assert {second.data_dir.broker_id, first.data_dir.broker_id} == set(
            second.registry.ownership.coordinator.members
        )
        await until(lambda: second.registry.catalog.index.find_topic(TopicName.parse("orders")) is not None)


async def test_start_reads_again_when_the_identity_changes_under_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of a new cluster writes its format into the identity, while others start."""
    transact, changed = EtcdStore.transact, []

    async def between(store: EtcdStore, operations: Any, *, guards: Any = ()) -> Any:
        if not changed and any(guard.key == IDENTITY for guard in guards if isinstance(guard, ModRevision)):
            item = await store.get(IDENTITY)
            assert item is not None
            changed.append(await transact(store, [Put(IDENTITY, item.value)]))
        return await transact(store, operations, guards=guards)

    async with place.broker() as first:
        monkeypatch.setattr(EtcdStore, "transact", between)
        async with place.broker("second") as second:
            assert changed
            assert second.data_dir.broker_id in first.registry.ownership.coordinator.members


async def test_copy_of_a_directory_is_refused(place: Place) -> None:
    async with place.broker():
        pass
    shutil.copytree(place.folder / "data", place.folder / "copy")
    error = await place.refused("copy")
    assert isinstance(error, ClusterMismatch)
    assert "copy" in error.message
    async with place.broker():
        pass


async def test_another_prefix_is_refused_whether_empty_or_another_cluster(place: Place) -> None:
    async with place.broker():
        pass
    elsewhere = Place.__new__(Place)
    elsewhere.folder, elsewhere.url = place.folder, place.url + "-other"
    error = await elsewhere.refused()
    assert "holds no cluster" in error.message
    async with elsewhere.broker("other"):
        pass
    error = await elsewhere.refused()
    assert isinstance(error, ClusterMismatch)
    assert "belongs to" in error.message


async def test_prefix_of_something_else_is_refused(place: Place) -> None:
    async with place.store() as store:
        await store.transact([Put("/theirs", b"")])
    error = await place.refused()
    assert isinstance(error, ClusterMismatch)
    assert "/theirs" in error.message


async def test_etcd_from_an_older_snapshot_is_refused(place: Place) -> None:
    async with place.broker():
        pass
    home = Home.read(place.folder / "data")
    assert home is not None
    dataclasses.replace(home, revision=home.revision + 1_000_000).write(place.folder / "data")
    error = await place.refused()
    assert isinstance(error, ClusterMismatch)
    assert "older snapshot" in error.message


async def test_messages_without_a_word_of_whose_they_are_are_refused(place: Place) -> None:
    async with place.broker() as broker:
        await create(broker, "orders")
        await send(broker, "orders")
    (place.folder / "data" / "cluster.json").unlink()
    async with place.store() as store:
        await store.transact([DeleteRange(KeyRange.prefix("/"))])
    assert isinstance(await place.refused(), CorruptJournal)


async def test_damaged_cluster_file_is_named(place: Place) -> None:
    async with place.broker():
        pass
    (place.folder / "data" / "cluster.json").write_text("{")
    error = await place.refused()
    assert isinstance(error, ClusterMismatch)
    assert "cluster.json" in error.message


def test_life_that_was_only_about_to_begin_is_ours_too() -> None:
    """A start that ended between its note in the directory and etcd's, on either side."""
    own = Resident(broker_id="1", life="new", place="7", host="h", data_dir="/d")
    home = Home(cluster_id="c", metadata="u", life="old", next_life="begun")
    for life in ("old", "begun"):
        check_resident(dataclasses.replace(own, life=life), own, home, "u")
    for other in ({"life": "else"}, {"place": "8"}, {"broker_id": "2"}):
        with pytest.raises(ClusterMismatch):
            check_resident(dataclasses.replace(own, **{"life": "old", **other}), own, home, "u")


async def test_broker_whose_place_was_taken_accepts_nothing_more(place: Place) -> None:
    ended = anyio.Event()
    async with place.broker() as broker:
        await create(broker, "orders")
        broker.health.on_fenced = lambda _error: ended.set()
        async with place.store() as store:
            other = Resident(broker_id="7", life="x", place="1", host="elsewhere", data_dir="/other")
            await store.transact([Put(broker_key(broker.data_dir.broker_id), other.to_json())])
        await ended.wait()
        with pytest.raises(ClusterError) as caught:
            await send(broker, "orders", Retry(max_elapsed_s=0))
        assert isinstance(caught.value, Retryable), "the topic continues at another broker"
        assert caught.value.details["reason"] == "FENCED"
        assert "/other on elsewhere" in caught.value.message


async def test_entry_deleted_while_the_broker_lives_is_put_back(place: Place) -> None:
    async with place.broker() as broker, place.store() as store:
        key = broker_key(broker.data_dir.broker_id)
        item = await store.get(key)
        assert item is not None
        now = await store.transact([Delete(key)])
        async with store.watch(KeyRange.prefix("/cluster/"), from_revision=Revision(now + 1)) as events:
            assert (await anext(events)).value == item.value
        assert broker.health.fenced is None


async def test_history_on_etcd_is_given_up_in_time(place: Place) -> None:
    async with place.store() as store:
        await store.transact([Put("/a", b"1")])
        seen = store.statistics().revision
        await store.transact([Put("/a", b"2")])
        with anyio.move_on_after(30) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(forget_history, store, every_s=0.01))
                await until(lambda: (store.statistics().oldest_event_revision or 0) > seen)
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        async with store.watch(KeyRange.prefix("/"), from_revision=seen) as events:
            with pytest.raises(Compacted):
                await anext(events)


# etcd away


async def test_unreachable_etcd_ends_the_first_start(place: Place) -> None:
    (port,) = free_ports(1)
    with pytest.raises(MetadataUnavailable, match=r"metadata\] url"):
        async with place.broker(url=f"etcd://127.0.0.1:{port}/x"):
            pass


async def test_without_etcd_messages_flow_on_and_changes_wait_for_it(tmp_path: Path) -> None:
    with EtcdMembers(tmp_path / "etcd") as etcd:
        place = Place(etcd, tmp_path)
        async with place.broker() as broker:
            await create(broker, "orders")
            etcd.stall(0)
            await send(broker, "orders")
            with pytest.raises(MetadataUnavailable):
                await create(broker, "new")
            with pytest.raises(MetadataUnavailable):
                await broker.port.write_state({"x": b"{}"})
            await until(lambda: {"METADATA_UNAVAILABLE", "METADATA_UNWRITABLE"} <= {*reasons(broker)})
            async with httpx.AsyncClient() as web:
                answer = await web.get(f"{broker.metrics_url}/readyz")
            assert (answer.status_code, answer.json()["ready"]) == (200, True), "messages flow on"
            assert "METADATA_UNAVAILABLE" in [each["code"] for each in answer.json()["reasons"]]
            etcd.resume(0)
            await until(lambda: "METADATA_UNAVAILABLE" not in reasons(broker))
            while broker.registry.find(TopicName.parse("new")) is None:
                try:
                    await broker.registry.resolve_unknown()
                    await create(broker, "new")
                except ClusterError:
                    await anyio.sleep(0.05)


@pytest.mark.long
async def test_later_start_waits_for_etcd(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EtcdMembers(tmp_path / "etcd") as etcd:
        place = Place(etcd, tmp_path)
        async with place.broker():
            pass
        etcd.stop(0)
        started = anyio.Event()

        async def start() -> None:
            async with place.broker():
                started.set()

        async with anyio.create_task_group() as group:
            group.start_soon(start)
            await until(lambda: "metadata_waiting" in [record.getMessage() for record in caplog.records])
            assert not started.is_set()
            await anyio.to_thread.run_sync(etcd.start, 0)
            await started.wait()
