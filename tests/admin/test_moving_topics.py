"""`topics.move`, `topics.unload` and `brokers.unload` at any of three brokers."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.serving import moves
from pydanube_broker.tier.flushing import Failure
from pydanube_core.errors import ClusterError, StoreUnavailable
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.names import TopicName

from tests.admin.test_any_broker_administers import administered, ask
from tests.admin.test_danube_admin_grpc import Tool
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, several_brokers, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
async def cluster(
    etcd: EtcdMembers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SeveralBrokers]:
    """Three brokers for all tests, which have topics of their own and leave every broker active."""
    async with several_brokers(etcd, tmp_path_factory.mktemp("brokers"), administered) as cluster:
        yield cluster


async def activate(cluster: SeveralBrokers, drained: Broker) -> None:
    """Let a broker take topics again, and wait until all brokers know."""
    assert (await ask(drained, "brokers.activate", broker_id=id_of(drained)))["state"] == "active"
    await cluster.all_know_all()


def id_of(broker: Broker) -> str:
    return str(broker.data_dir.broker_id)


async def create(cluster: SeveralBrokers, topic: str, **arguments: object) -> None:
    await ask(cluster.brokers[1], "topics.create", topic=topic, **arguments)
    await until(lambda: cluster.serves(TopicName.parse(topic)))


async def test_topic_goes_to_the_broker_that_is_named_whichever_is_asked(cluster: SeveralBrokers) -> None:
    await create(cluster, "t")
    async with connect(cluster.brokers[1].broker_url) as client, client.producer("t") as producer:
        for target in [*cluster.others("t"), cluster.owner("t")]:
            await producer.send(b"m")
            for asked in cluster.others("t"):
                if asked is not target:
                    break
            moved = await ask(asked, "topics.move", topic="t", to_broker=id_of(target))
            assert moved["moves"] == {"/default/t": id_of(target)}
            await until(lambda target=target: target.registry.find(TopicName.parse("t")) is not None)
        await producer.send(b"m")
    found = cluster.owner("t").registry.find(TopicName.parse("t"))
    assert found is not None
    assert found.commit == 4


async def test_hand_overs_are_deleted_when_nothing_is_on_its_way_and_not_before(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(cluster, "handed")
    target = cluster.others("handed")[0]
    await ask(target, "topics.move", topic="handed", to_broker=id_of(target))
    await until(lambda: target.registry.find(TopicName.parse("handed")) is not None)

    def fragments() -> set[Path]:
        return set(Path(cluster.settings(1).tier.url).rglob("*.fragment"))

    old = fragments()
    assert old
    new = next(iter(old)).with_name("1-new.fragment")
    new.write_bytes(b"of a move that has just begun")
    two_hours_ago = time.time() - 7200
    for each in old:
        os.utime(each, (two_hours_ago, two_hours_ago))
    monkeypatch.setattr(moves, "QUIET_LOOKS", 2)
    await until(lambda: fragments() == {new})


async def test_move_that_the_target_cannot_take_is_refused_before_anything_stops(
    cluster: SeveralBrokers,
) -> None:
    await create(cluster, "stays")
    owner = cluster.owner("stays")
    one, other = cluster.others("stays")

    async def refused(target: str) -> ClusterError:
        with pytest.raises(ClusterError) as caught:
            await ask(one, "topics.move", topic="stays", to_broker=target)
        assert cluster.owner("stays") is owner
        return caught.value

    assert (await refused("7")).code == "INVALID_ARGUMENT"
    assert (await refused(id_of(owner))).code == "CONFLICT"
    other.tier.flusher.failures[0] = Failure(
        StoreUnavailable("the store does not answer", store="x", cause="timeout"), 1, 0.0
    )
    error = await refused(id_of(other))
    assert (error.code, error.retryable) == ("UNAVAILABLE", True)
    assert "does not answer" in error.message
    other.tier.flusher.failures.clear()
    await ask(one, "brokers.unload", broker_id=id_of(other))
    await until(lambda: id_of(other) not in [str(each) for each in one.moves.takers()])
    assert "takes no topics" in (await refused(id_of(other))).message
    with pytest.raises(ClusterError, match="no broker '7' that is registered"):
        await ask(one, "brokers.unload", broker_id="7")
    await activate(cluster, other)


async def test_non_reliable_topic_moves_and_its_clients_follow(cluster: SeveralBrokers) -> None:
    await create(cluster, "live", dispatch_strategy="non_reliable")
    name = TopicName.parse("live")
    async with (
        connect(cluster.brokers[1].broker_url) as client,
        client.consumer("live", "s") as consumer,
        client.producer("live", dispatch_strategy="non_reliable") as producer,
    ):
        await producer.send(b"before")
        assert (await anext(aiter(consumer))).payload == b"before"
        before = cluster.owner("live")
        (target, _) = cluster.others("live")
        await ask(before, "topics.move", topic="live", to_broker=id_of(target))
        await until(lambda: cluster.serves(name) and cluster.owner("live") is target)
        pump = target.registry.find(name).subscriptions["s"]  # type: ignore[union-attr]
        await until(lambda: pump.links)
        await producer.send(b"after")
        assert (await anext(aiter(consumer))).payload == b"after"


async def test_partitions_of_an_unloaded_topic_do_not_all_go_to_one_broker(cluster: SeveralBrokers) -> None:
    await ask(cluster.brokers[1], "topics.create", topic="wide", partitions=6)
    parts = [TopicName.parse(f"wide-part-{n}") for n in range(6)]
    await until(lambda: all(cluster.serves(part) for part in parts))
    before = {str(part): id_of(cluster.owner(str(part))) for part in parts}
    moved = (await ask(cluster.brokers[1], "topics.unload", topic="wide"))["moves"]
    assert moved.keys() == before.keys()
    assert all(moved[part] != before[part] for part in before)
    assert len(set(moved.values())) > 1
    await until(
        lambda: all(
            cluster.serves(part) and id_of(cluster.owner(str(part))) == moved[str(part)] for part in parts
        )
    )


async def test_unloaded_broker_keeps_its_audit_alone(cluster: SeveralBrokers) -> None:
    for n in range(4):
        await create(cluster, f"t{n}")
        await create(cluster, f"live{n}", dispatch_strategy="non_reliable")
    leaving = next(broker for broker in cluster.brokers.values() if broker.registry.count)
    other = next(broker for broker in cluster.brokers.values() if broker is not leaving)
    assert (await ask(other, "brokers.unload", broker_id=id_of(leaving)))["state"] == "draining"

    def state() -> str:
        return leaving.registry.ownership.office.members[leaving.data_dir.broker_id].state.value

    await until(lambda: state() == "drained" and leaving.registry.count == 0)
    await until(
        lambda: other.registry.ownership.office.members[leaving.data_dir.broker_id].state == "drained"
    )
    listed = {each["broker_id"]: each["state"] for each in (await ask(other, "brokers.list"))["items"]}
    assert listed == {
        id_of(each): "drained" if each is leaving else "active" for each in cluster.brokers.values()
    }
    (leader,) = [each for each in cluster.brokers.values() if each.registry.ownership.office.leads()]
    async with grpc.aio.insecure_channel(other.admin_url.removeprefix("http://")) as channel:
        tool = Tool(channel)
        told = (await tool("BrokerAdmin/ListBrokers", pb.Empty())).brokers
        assert {each.broker_id: each.broker_status for each in told} == listed
        assert [each.broker_id for each in told if each.broker_role == "Cluster_Leader"] == [id_of(leader)]
        assert (await tool("BrokerAdmin/GetLeaderBroker", pb.Empty())).leader == id_of(leader)
        status = await tool("ClusterAdmin/ClusterStatus", pb.Empty())
        assert {str(each) for each in status.voters} == listed.keys()
        assert (status.leader_id, status.self_node_id) == (int(id_of(leader)), int(id_of(other)))
    for n in range(4):
        await until(lambda n=n: cluster.serves(TopicName.parse(f"live{n}")))
    await activate(cluster, leaving)
