"""etcd is put back to an older snapshot, or a second one is made of it: noticed before anything is lost by it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.home import metadata_watch
from pydanube_broker.home.cluster_file import Home
from pydanube_broker.home.cluster_recovery import recover
from pydanube_broker.settings.sections import Metadata
from pydanube_broker.tier import metadata_witness, owned_store
from pydanube_core.errors import ClusterMismatch, StoreUnavailable
from pydanube_storage.metadata import Put
from pydanube_storage.objects import OwnerMark

from tests.support.etcd import EtcdMembers, etcd
from tests.support.memory_store import MemoryStore
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

__all__ = ["etcd"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]


async def write(broker: Broker, topic: str) -> None:
    """A topic that was not there before, and a message in it, in an object too."""
    async with connect(broker.broker_url) as client, client.producer(topic) as producer:
        await producer.send(b"x")
    await broker.port.flush_objects(topic)


async def test_a_broker_ends_when_etcd_goes_back_under_it(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    await cluster.start(1)
    broker = cluster.brokers[1]
    etcd.save(tmp_path / "snapshot")
    await write(broker, "made-after-the-snapshot")
    etcd.restore(tmp_path / "snapshot")
    await until(lambda: broker.health.fenced is not None)
    assert isinstance(broker.health.fenced, ClusterMismatch)
    assert "restored from an older snapshot" in broker.health.fenced.message
    with pytest.raises(ClusterMismatch):
        broker.health.check_publish()


async def test_a_directory_knows_how_far_etcd_was_however_its_broker_ended(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_watch, "NOTE_S", 0.05)
    await cluster.start(1)
    broker = cluster.brokers[1]
    folder = broker.data_dir.path
    etcd.save(tmp_path / "snapshot")
    await write(broker, "t")
    record = broker.registry.catalog.index.topics()[-1]

    def noted() -> bool:
        home = Home.read(folder)
        return home is not None and home.revision >= record.topic_id

    await until(noted)
    written = (folder / "cluster.json").read_bytes()
    await cluster.stop(1)
    (folder / "cluster.json").write_bytes(written)  # as a crash leaves it
    etcd.restore(tmp_path / "snapshot")
    with pytest.raises(ClusterMismatch, match="restored from an older snapshot"):
        await Broker(cluster.settings(1)).__aenter__()


async def test_the_store_knows_how_far_etcd_was_whichever_broker_asks(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    await cluster.start(1)
    etcd.save(tmp_path / "snapshot")
    await cluster.stop(1)
    await cluster.start(1)  # its start leaves a mark
    await cluster.stop(1)
    etcd.restore(tmp_path / "snapshot")
    objects = sorted((tmp_path / "objects").rglob("*"))
    with pytest.raises(ClusterMismatch, match="restored from an older snapshot"):
        await Broker(cluster.settings(2)).__aenter__()
    assert sorted((tmp_path / "objects").rglob("*")) == objects, "nothing was written there"


async def test_a_second_etcd_made_of_a_snapshot_is_noticed_in_the_store(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_store, "CHECK_S", 0.1)
    await cluster.start(1)
    first = cluster.brokers[1]
    etcd.save(tmp_path / "snapshot")
    with EtcdMembers(tmp_path / "etcd-2") as beside:
        beside.restore(tmp_path / "snapshot")
        settings = cluster.settings(2)
        prefix = settings.metadata.url.rpartition("/")[2]
        settings = settings.model_copy(update={"metadata": Metadata(url=beside.url(f"/{prefix}"))})
        async with Broker(settings) as second:
            await until(lambda: not first.tier.hold.held)
            assert first.tier.hold.code == "CLUSTER_MISMATCH"
            assert "another etcd, made of a snapshot" in str(first.tier.hold.reason)
            assert second.tier.hold.held, "one of the two may go on"


def test_the_error_of_an_unknown_mark_names_both_revisions() -> None:
    """It lost the fact that etcd has no record of the write: etcd's revision may even be the higher one."""
    mark = OwnerMark(
        incarnation=50,
        life="f",
        place="p",
        broker_id="7",
        host="h",
        data_dir="/d",
        pid=1,
        since="2026-12-01T00:00:00Z",
    )
    noted = metadata_witness.Noted(marks=((40, "e"),), read_at=90, written_at=41)
    with pytest.raises(
        ClusterMismatch, match="etcd, at revision 90, has no record of the write to s3://b at revision 50"
    ):
        metadata_witness.check_known(mark, noted, "s3://b")


async def test_a_store_that_takes_no_marks_for_long_is_not_taken_for_anothers() -> None:
    async with MemoryStore() as metadata:
        made: list[OwnerMark] = []
        full = False

        async def newest() -> OwnerMark | None:
            return made[-1] if made else None

        async def make(mark: OwnerMark) -> None:
            if full:
                raise StoreUnavailable("it is full")
            made.append(mark)

        now_s = 0.0
        witness = metadata_witness.MetadataWitness(
            metadata, "s3://b", newest=newest, make=make, me=("1", "/d"), monotonic=lambda: now_s
        )
        await witness.look()
        assert len(made) == 1
        full = True
        for n in range(200):
            now_s += 61.0
            await metadata.transact([Put(f"/{n}", b"x"), Put(f"/{n}/more", b"x")])
            with suppress(StoreUnavailable):
                await witness.look()
        full = False
        now_s += 61.0
        await metadata.transact([Put("/last", b"x")])
        await witness.look()
        assert len(made) == 2
        made.append(replace(made[-1], incarnation=made[-1].incarnation + 1000, life="another"))
        with pytest.raises(ClusterMismatch, match="has no record of the write to"):
            await witness.look()


async def test_marks_of_brokers_that_share_an_etcd_are_known_to_all(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_store, "CHECK_S", 0.01)
    monkeypatch.setattr(metadata_witness, "EVERY_S", 0.0)
    for n in (1, 2, 3):
        await cluster.start(n)
    brokers = list(cluster.brokers.values())
    for n in range(20):
        async with connect(brokers[n % 3].broker_url) as client, client.producer(f"t{n}") as producer:
            await producer.send(b"x")
        assert all(each.tier.hold.held for each in brokers), "no broker took another's mark for a stranger's"


async def test_an_older_etcd_stays_refused_after_a_broker_that_knew_less_has_gone_on_with_it(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    await cluster.start(1)
    await cluster.start(2)
    await cluster.all_know_all()
    await cluster.stop(2)
    etcd.save(tmp_path / "snapshot")
    await write(cluster.brokers[1], "made-after-the-snapshot")
    await cluster.stop(1)
    etcd.restore(tmp_path / "snapshot")
    for lease in etcd.control("lease", "list").splitlines()[1:]:  # no need to wait for them
        etcd.control("lease", "revoke", lease)
    for n in (1, 2, 1):
        with pytest.raises(ClusterMismatch, match="restored from an older snapshot"):
            await Broker(cluster.settings(n)).__aenter__()
    for n in (2, 1):
        await recover(cluster.settings(n))
        if n == 2:
            with pytest.raises(ClusterMismatch, match="is recovered now"):
                await Broker(cluster.settings(1)).__aenter__()
    for n in (1, 2):
        await cluster.start(n)
