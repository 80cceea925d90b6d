"""etcd is restored from an older snapshot, and the cluster goes on with what directories and store know."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.home.cluster_recovery import recover
from pydanube_core.errors import ClusterMismatch, Conflict, InvalidArgument
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import broker_id, move
from tests.support.etcd import EtcdMembers, etcd
from tests.support.killed_steps import killed_at
from tests.support.several_brokers import SeveralBrokers

__all__ = ["etcd"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]

BEFORE = [b"before-%d" % n for n in range(5)]
TIERED = [b"tiered-%d" % n for n in range(5)]
TAIL = [b"tail-%d" % n for n in range(5)]


async def create(broker: Broker, topic: str) -> None:
    await broker.registry.create(
        TopicName.parse(topic), partitions=0, dispatch_strategy="reliable", here=True
    )


async def send(broker: Broker, topic: str, payloads: list[bytes]) -> None:
    async with connect(broker.broker_url) as client, client.producer(topic) as producer:
        await producer.send_many(payloads)


async def read(broker: Broker, topic: str, messages: int) -> list[bytes]:
    async with connect(broker.broker_url) as client, client.reader(topic, start="earliest") as reader:
        return [(await anext(reader)).payload for _ in range(messages)]


async def put_back(cluster: SeveralBrokers, etcd: EtcdMembers, folder: Path) -> tuple[str, str, int]:
    """Two brokers, and an etcd that lacks all that happened after a snapshot; their ids, and the highest topic id."""
    for n in (1, 2):
        await cluster.start(n)
    await cluster.all_know_all()
    one, two = cluster.brokers[1], cluster.brokers[2]
    for topic in ("stays", "moves"):
        await create(one, topic)
        await send(one, topic, BEFORE)
    await create(two, "own")
    await send(two, "own", BEFORE)
    etcd.save(folder / "snapshot")
    await cluster.stop(2)
    await cluster.start(2)  # in a new epoch of all that it has
    await cluster.all_know_all()
    two = cluster.brokers[2]
    await send(two, "own", TAIL)
    await send(one, "stays", TIERED)
    await one.port.flush_objects("stays")
    await send(one, "stays", TAIL)
    await move(cluster, "moves", two)
    await send(two, "moves", TAIL)
    await create(one, "new")
    await send(one, "new", TAIL)
    newest = max(record.topic_id for record in one.registry.catalog.index.topics())
    ids = str(broker_id(one)), str(broker_id(two))
    for n in (1, 2):
        await cluster.stop(n)
    etcd.restore(folder / "snapshot")
    for lease in etcd.control("lease", "list").splitlines()[
        1:
    ]:  # of brokers that are gone: no need to wait for them
        etcd.control("lease", "revoke", lease)
    return *ids, newest


async def assert_all_there(cluster: SeveralBrokers, newest: int) -> None:
    await cluster.all_know_all()
    one, two = cluster.brokers[1], cluster.brokers[2]
    assert cluster.owner("moves") is two
    assert await read(one, "stays", 15) == BEFORE + TIERED + TAIL
    assert await read(two, "moves", 10) == BEFORE + TAIL
    assert await read(two, "own", 10) == BEFORE + TAIL
    for owner, topic in ((one, "stays"), (two, "moves")):
        await send(owner, topic, [b"more"])
        await owner.port.flush_objects(topic)
    assert (await read(one, "stays", 16))[-1] == b"more"
    await create(one, "made-afterwards")
    made = one.registry.catalog.index.find_topic(TopicName.parse("made-afterwards"))
    assert made is not None
    assert made.topic_id > newest, "no id is given out twice"


async def test_a_cluster_goes_on_with_what_directories_and_store_know(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    first, second, newest = await put_back(cluster, etcd, tmp_path)
    with pytest.raises(ClusterMismatch, match="danube cluster recover"):
        await Broker(cluster.settings(1)).__aenter__()
    with pytest.raises(InvalidArgument, match="nobody"):
        await recover(cluster.settings(1), without=("nobody",))
    done = await recover(cluster.settings(1))
    assert done.waiting == (second,)
    assert done.objects > 0
    assert done.lost_and_found is not None, "etcd does not know what `new` was"
    for n in (1, 2, 3):
        with pytest.raises(ClusterMismatch, match=f"is recovered now.*{second}"):
            await Broker(cluster.settings(n)).__aenter__()
    assert (await recover(cluster.settings(1))).waiting == (second,), "called again it finds all done"
    done = await recover(cluster.settings(2))
    assert (done.waiting, done.topics) == ((), 1)
    for n in (1, 2):
        await cluster.start(n)
    await assert_all_there(cluster, newest)
    assert list((tmp_path / "objects").glob(f"*/lost+found/{first}/unknown/*/*/*.parquet"))


async def test_the_next_start_finds_a_note_about_its_audit(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    await cluster.start(1)
    etcd.save(tmp_path / "snapshot")
    await create(cluster.brokers[1], "t")
    await cluster.stop(1)
    etcd.restore(tmp_path / "snapshot")
    for lease in etcd.control("lease", "list").splitlines()[1:]:
        etcd.control("lease", "revoke", lease)
    assert (await recover(cluster.settings(1), by="ada@h")).waiting == ()
    await cluster.start(1)
    found = await cluster.brokers[1].port.audit_recovery()
    assert found is not None
    assert found.by == "ada@h"


class Interrupted(Exception):
    """The command ends here."""


async def test_it_is_gone_on_with_wherever_it_failed(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    _, _, newest = await put_back(cluster, etcd, tmp_path)
    failed = 0
    for n in (1, 2):
        for last in count():
            said: list[str] = []

            def say(line: str, said: list[str] = said, last: int = last) -> None:
                if len(said) == last:
                    raise Interrupted
                said.append(line)

            try:
                await recover(cluster.settings(n), say=say)
                break
            except (Interrupted, ExceptionGroup):
                failed += 1
    assert failed >= 8, "every step was one to fail at"
    for n in (1, 2):
        await cluster.start(n)
    await assert_all_there(cluster, newest)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_it_is_gone_on_with_wherever_it_was_killed(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    _, _, newest = await put_back(cluster, etcd, tmp_path)
    killed = 0
    for n in (1, 2):
        settings, step = cluster.settings(n), 0
        while True:
            code = await killed_at(step, "recover", settings)
            if code != -signal.SIGKILL:
                break
            killed, step = killed + 1, step + 1
            with pytest.raises(ClusterMismatch):
                await Broker(settings).__aenter__()
        assert code == 0
    assert killed >= 8, "every step was one to be killed at"
    for n in (1, 2):
        await cluster.start(n)
    await assert_all_there(cluster, newest)


async def test_a_directory_that_was_not_seen_does_not_start_before_it_is(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    _, second, _ = await put_back(cluster, etcd, tmp_path)
    assert (await recover(cluster.settings(1), without=(second,))).waiting == ()
    with pytest.raises(ClusterMismatch, match="recovered without"):
        await Broker(cluster.settings(2)).__aenter__()
    late = await recover(cluster.settings(2))
    assert late.topics == 0, "whose topics went on is settled"
    assert late.lost_and_found is not None
    for n in (1, 2):
        await cluster.start(n)
    one = cluster.brokers[1]
    assert cluster.owner("moves") is one
    assert await read(one, "stays", 15) == BEFORE + TIERED + TAIL
    assert await read(cluster.brokers[2], "own", 10) == BEFORE + TAIL


async def test_a_broker_that_came_after_the_snapshot_is_recovered_with_what_moved_to_it(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    await cluster.start(1)
    await create(cluster.brokers[1], "moves")
    await send(cluster.brokers[1], "moves", BEFORE)
    etcd.save(tmp_path / "snapshot")
    await cluster.start(2)
    await cluster.all_know_all()
    await move(cluster, "moves", cluster.brokers[2])
    await send(cluster.brokers[2], "moves", TAIL)
    ids = {n: str(broker_id(cluster.brokers[n])) for n in (1, 2)}
    for n in (1, 2):
        await cluster.stop(n)
    for first, last in ((2, 1), (1, 2)):  # a second time over: etcd knows nothing of the first
        etcd.restore(tmp_path / "snapshot")
        for lease in etcd.control("lease", "list").splitlines()[1:]:
            etcd.control("lease", "revoke", lease)
        done = await recover(cluster.settings(first))
        assert done.waiting == (ids[last],), "the store knows of both"
        more = await recover(cluster.settings(last))
        assert more.waiting == ()
        assert done.topics + more.topics == 1
        for n in (1, 2):
            await cluster.start(n)
        assert await read(cluster.owner("moves"), "moves", 10) == BEFORE + TAIL
        assert cluster.owner("moves") is cluster.brokers[2]
        for n in (1, 2):
            await cluster.stop(n)


async def test_nothing_is_changed_where_there_is_nothing_to_recover(
    etcd: EtcdMembers, cluster: SeveralBrokers, tmp_path: Path
) -> None:
    await cluster.start(1)
    await cluster.start(2)
    etcd.save(tmp_path / "snapshot")
    await cluster.stop(1)
    before = etcd.control("get", "--prefix", "/", "--keys-only", endpoints=etcd.endpoints)
    assert (await recover(cluster.settings(1))).waiting == ()
    assert etcd.control("get", "--prefix", "/", "--keys-only", endpoints=etcd.endpoints) == before
    await cluster.start(1)
    await create(cluster.brokers[1], "t")
    await cluster.stop(1)
    await cluster.stop(2)
    etcd.restore(tmp_path / "snapshot")  # with the leases of both, which run for some seconds yet
    with pytest.raises(Conflict, match="are registered"):
        await recover(cluster.settings(1))
