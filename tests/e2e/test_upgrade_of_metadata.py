"""Brokers of c6007d03, which writes metadata format 1, are replaced one by one by this build under load."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydanube import connect
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.records import FormatRecord
from pydanube_storage.metadata import MetadataStore, read_all
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from tests.support.broker_process import BrokerDied, BrokerProcess
from tests.support.etcd import EtcdMembers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(580)]

OLD = "c6007d03"
ROOTS = ("admin_core", "broker", "cli", "client", "core", "mcp_server", "spark_diagnostics", "storage", "tui")
HERE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def old_build(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `danube` is that of the old build."""
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(
        ["git", "-C", str(HERE), "archive", OLD, *ROOTS], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"this clone has no commit {OLD}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return {"PYTHONPATH": ":".join(str(folder / root) for root in ROOTS)}


class Cluster:
    """Three brokers on one etcd, each of the old build until it is replaced."""

    def __init__(self, etcd: EtcdMembers, folder: Path, old: dict[str, str]) -> None:
        self.url = etcd.url(f"/{uuid.uuid4().hex}")
        self._folder = folder
        self.tier = {"DANUBE_TIER__URL": str(folder / "objects")}
        self._old = old
        self.brokers = {n: self._broker(n, old) for n in (1, 2, 3)}

    def _broker(self, n: int, environment: dict[str, str]) -> BrokerProcess:
        return BrokerProcess(
            self._folder / f"b{n}",
            arguments=["--metadata", self.url],
            environment={**self.tier, **environment},
        )

    def replace(self, n: int) -> None:
        """Stop a broker, and start this build on its data and ports."""
        former = self.brokers[n]
        assert former.stop() == 0
        self.brokers[n] = self._broker(n, {})
        self.brokers[n].ports = former.ports
        self.brokers[n].start()

    def old_again(self, n: int) -> BrokerProcess:
        """Return a broker of the old build on a broker's data."""
        found = self._broker(n, self._old)
        found.ports = self.brokers[n].ports
        return found

    def stop(self) -> None:
        for broker in self.brokers.values():
            if broker.running:
                broker.kill()

    def store(self) -> EtcdStore:
        return EtcdStore(EtcdOptions(address=EtcdAddress.parse(self.url)))


@pytest.fixture
def cluster(etcd: EtcdMembers, tmp_path: Path, old_build: dict[str, str]) -> Iterator[Cluster]:
    found = Cluster(etcd, tmp_path, old_build)
    try:
        for broker in found.brokers.values():
            broker.start()
        yield found
    finally:
        found.stop()


async def metadata_format(store: MetadataStore) -> FormatRecord:
    item = await store.get(keys.FORMAT)
    return (
        FormatRecord(metadata_format=1) if item is None else FormatRecord.from_json(item.value, key=item.key)
    )


async def all_keys(store: MetadataStore) -> dict[str, bytes]:
    """Return the records of topics, subscriptions and clients, without those that brokers write for themselves."""
    found: dict[str, bytes] = {}
    for tree in (keys.REGISTRY, keys.TOMBSTONES, keys.CLIENTS):
        found |= {item.key: item.value for item in (await read_all(store, tree))[0]}
    return found


async def is_converted(store: MetadataStore) -> bool:
    return (await metadata_format(store)).converted


async def owns_nothing(store: MetadataStore, broker_id: str) -> bool:
    items, _ = await read_all(store, keys.ASSIGNMENTS)
    places = [Assignment.of(item.key, item.value) for item in items]
    return all(str(place.broker_id) != broker_id or place.topic.is_audit for place in places)


def id_of(broker: BrokerProcess) -> str:
    return (broker.data_dir / "broker-id").read_text().strip()


class Load:
    """Sends to every partition and reads everything, through whichever broker answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sent: set[bytes] = set()
        self.received: set[bytes] = set()

    async def send(self, stop: anyio.Event) -> None:
        async with connect(self._url) as client, client.producer("wide") as producer:
            number = 0
            while not stop.is_set():
                payload = b"%d" % number
                await producer.send(payload, key=str(number))
                self.sent.add(payload)
                number += 1
                await anyio.sleep(0.002)

    async def receive(self) -> None:
        async with connect(self._url) as client, client.consumer("wide", "s", start="earliest") as consumer:
            async for message in consumer:
                self.received.add(message.payload)
                await message.ack()


async def test_three_brokers_are_replaced_one_by_one_under_load(cluster: Cluster) -> None:
    urls = ",".join(broker.url for broker in cluster.brokers.values())
    async with cluster.store() as store, connect(urls) as client:
        async with client.producer("wide", partitions=12):
            pass
        load, stop = Load(urls), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(load.receive)

            async def send() -> None:
                await load.send(stop)

            async with anyio.create_task_group() as senders:
                senders.start_soon(send)
                await until(lambda: len(load.sent) > 50)
                for n in (1, 2, 3):
                    assert (await metadata_format(store)).metadata_format == 1, "an old build is there still"
                    before = len(load.sent)
                    await anyio.to_thread.run_sync(cluster.replace, n)
                    await until(lambda before=before: len(load.sent) > before + 50)
                await until(lambda: is_converted(store))
                before = len(load.sent)
                await until(lambda: len(load.sent) > before + 50)
                stop.set()
            await until(lambda: load.sent <= load.received)
            group.cancel_scope.cancel()
        names = set(await all_keys(store))
        assert keys.PARTITIONED.start + "default/wide" in names
        assert not any("wide-part" in name for name in names)
        # one of the old build on the data of a broker that was replaced
        cluster.brokers[2].kill()
        before_start = await all_keys(store)
        old = cluster.old_again(2)
        with pytest.raises(BrokerDied, match="metadata have format 2"):
            await anyio.to_thread.run_sync(old.start)
        assert await all_keys(store) == before_start


def object_formats(folder: Path) -> dict[str, int]:
    """Return the formats of the committed objects of topics, by name, and check what their payloads are."""
    found = {}
    for path in (folder / "objects").rglob("*/nulls-*/**/*.parquet"):
        try:
            version = int((pq.read_metadata(path).metadata or {})[b"danube.format_version"])
            payloads = pq.read_table(path).column("payload").to_pylist()
        except (OSError, pa.ArrowException):  # merged into another one meanwhile
            continue
        assert payloads.count(None) == (len(payloads) if version == 2 else 0)
        found[path.name] = version
    return found


async def test_objects_hold_null_payloads_as_nulls_once_no_broker_is_of_the_old_build(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A broker of the old build would refuse them: it may become the owner at any time."""
    topics = [f"nulls-{n}" for n in range(6)]
    urls = ",".join(broker.url for broker in cluster.brokers.values())
    cluster.tier["DANUBE_TIER__FLUSH_AGE"] = "300ms"  # of brokers of this build

    async def send_nulls() -> None:
        async with connect(urls) as client:
            for topic in topics:
                async with client.producer(topic) as producer:
                    await producer.send(None, key="k")

    def formats() -> set[int]:
        return set(object_formats(tmp_path).values())

    await anyio.to_thread.run_sync(cluster.replace, 1)
    await send_nulls()
    await until(lambda: formats() == {1})
    for n in (2, 3):
        await anyio.to_thread.run_sync(cluster.replace, n)
    async with cluster.store() as store:
        await until(lambda: is_converted(store))
    await send_nulls()
    await until(lambda: 2 in formats())
    async with connect(urls) as client:
        for topic in topics:
            async with client.reader(topic, stop="head") as reader:
                assert [message.is_null async for message in reader] == [True, True]


async def test_a_stopped_owner_of_the_old_build_holds_the_step_up_and_refuses_after_it(
    cluster: Cluster,
) -> None:
    urls = ",".join(broker.url for broker in cluster.brokers.values())
    async with cluster.store() as store:
        async with connect(urls) as client, client.producer("wide", partitions=6) as producer:
            for number in range(60):
                await producer.send(b"%d" % number, key=str(number))
        cluster.brokers[3].command("brokers", "unload", id_of(cluster.brokers[3]))
        await until(lambda: owns_nothing(store, id_of(cluster.brokers[3])))
        assert cluster.brokers[3].stop() == 0
        for n in (1, 2):
            await anyio.to_thread.run_sync(cluster.replace, n)
        await until(lambda: is_converted(store))
        before = await all_keys(store)
        with pytest.raises(BrokerDied, match="metadata have format 2"):
            await anyio.to_thread.run_sync(cluster.old_again(3).start)
        assert await all_keys(store) == before
        async with connect(urls) as client, client.reader("wide", start="earliest") as reader:
            assert {(await anext(reader)).payload for _ in range(60)} == {b"%d" % n for n in range(60)}
