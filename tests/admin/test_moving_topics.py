"""`topics.move`, `topics.unload` and `brokers.unload` at any of three brokers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import grpc
import pytest
from pydanube import connect
from pydanube_admin import cluster_wide_port
from pydanube_admin.cluster_wide_port import ASKED, ClusterWidePort
from pydanube_admin.engine import following
from pydanube_admin.peers import Peers
from pydanube_broker.broker import Broker
from pydanube_broker.copying.arrival import Arrival
from pydanube_broker.copying.piece import Piece
from pydanube_broker.port.brokers import BrokersPart
from pydanube_core.errors import ClusterError, DiskFull, NoOwner, Unavailable
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.names import TopicName

from tests.admin.test_any_broker_administers import administered, ask
from tests.admin.test_danube_admin_grpc import Tool
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers
from tests.support.waiting import until

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


async def ended(broker: Broker, task_id: str) -> dict[str, Any]:
    """Wait until a task has ended."""
    while (task := await ask(broker, "tasks.get", task_id=task_id))["state"] == "running":  # noqa: ASYNC110
        await anyio.sleep(0.05)
    return task


async def outcomes(broker: Broker, call_id: str) -> list[tuple[str, str | None]]:
    """Return the outcomes that the audit has of a call: decision and code."""
    found = (await ask(broker, "audit.query", limit=200))["items"]
    return [
        (each["decision"], each["code"])
        for each in found
        if each["call_id"] == call_id and each["phase"] == "outcome"
    ]


async def test_a_move_is_a_task_with_an_outcome(cluster: SeveralBrokers) -> None:
    await ask(cluster.brokers[1], "topics.create", topic="followed", partitions=3)
    parts = [f"/default/followed-part-{n}" for n in range(3)]
    await until(lambda: all(cluster.serves_name(part) for part in parts))
    asked = cluster.brokers[2]
    moved = await ask(asked, "topics.unload", topic="followed")
    task = await ended(asked, moved["task_id"])
    assert (task["state"], task["operation"], task["of_call"]) == ("done", "topics.unload", moved["call_id"])
    assert task["result"]["moves"] == moved["moves"], "known from when all have arrived"
    for part in parts:
        assert id_of(cluster.owner(part)) == moved["moves"][part]
    listed = (await ask(cluster.brokers[3], "tasks.list", filter="topics.unload"))["items"]
    assert moved["task_id"] in [each["task_id"] for each in listed]
    await until_outcomes(asked, moved["call_id"], [("allowed", None)])
    assert await stated(asked, moved["call_id"]) == [None]


async def until_outcomes(broker: Broker, call_id: str, wanted: list[tuple[str, str | None]]) -> None:
    with anyio.fail_after(20):
        while sorted(await outcomes(broker, call_id), key=str) != wanted:  # noqa: ASYNC110
            await anyio.sleep(0.05)


async def test_a_move_that_fails_is_begun_again_and_ends_as_a_failed_task_and_a_finding(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(cluster, "refused")
    owner, (target, asked) = cluster.owner("refused"), cluster.others("refused")
    monkeypatch.setattr(following, "ATTEMPTS", 3)
    monkeypatch.setattr(following, "FIRST_PAUSE_S", 0.05)
    tries: list[int] = []

    def no_room(size: int) -> None:
        tries.append(size)
        raise DiskFull("there is no room")

    with monkeypatch.context() as full:
        full.setattr(target.health, "check_room", no_room)
        moved = await ask(asked, "topics.move", topic="refused", to_broker=id_of(target))
        task = await ended(asked, moved["task_id"])
    assert (task["state"], task["code"], len(tries)) == ("failed", "DISK_FULL", 3)
    assert "in 3 attempts, and stays with broker" in task["error"]["message"]
    assert "there is no room" in task["error"]["message"]
    assert cluster.owner("refused") is owner
    await until_outcomes(asked, moved["call_id"], [("failed", "DISK_FULL")])

    async def cancelled() -> list[dict[str, Any]]:
        found = (await ask(asked, "diagnose.cluster"))["findings"]
        return [each for each in found if each["rule"] == "move_cancelled"]

    (finding,) = await cancelled()
    assert finding["evidence"]["topics"] == {"/default/refused": "there is no room"}
    again = await ask(asked, "topics.move", topic="refused", to_broker=id_of(target))
    assert (await ended(asked, again["task_id"]))["state"] == "done"
    assert await cancelled() == []


async def test_what_could_not_begin_is_begun_again_to_the_same_broker_while_others_are_under_way(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call failed without a task though others were under way, and another attempt chose its broker anew."""
    await ask(cluster.brokers[1], "topics.create", topic="split", partitions=4)
    parts = [f"/default/split-part-{n}" for n in range(4)]
    await until(lambda: all(cluster.serves_name(part) for part in parts))
    monkeypatch.setattr(following, "FIRST_PAUSE_S", 0.05)
    asked: list[tuple[str, str | None]] = []
    move_topic = BrokersPart.move_topic

    async def some(self: BrokersPart, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        asked.append((topic, to_broker))
        if len(asked) == 2:
            raise Unavailable("the metadata store does not answer", retry_after_ms=10)
        return await move_topic(self, topic, to_broker)

    monkeypatch.setattr(BrokersPart, "move_topic", some)
    plan = await ask(cluster.brokers[2], "topics.unload", topic="split", plan_only=True)
    applied = await ask(cluster.brokers[2], "plans.apply", plan_token=plan["plan_token"])
    moved = applied["result"]
    assert moved["moves"] == plan["pinned"]["moves"]
    assert len({*moved["moves"].values()}) > 1, "not one call for all"
    task = await ended(cluster.brokers[2], moved["task_id"])
    assert (task["state"], task["result"]["moves"]) == ("done", moved["moves"])
    refused = asked[1][0]
    assert asked.count((refused, moved["moves"][refused])) == 2
    for part in parts:
        assert id_of(cluster.owner(part)) == moved["moves"][part]


async def test_a_cancelled_task_begins_no_move_again(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(cluster, "left")
    (target, asked) = cluster.others("left")
    monkeypatch.setattr(following, "FIRST_PAUSE_S", 1000.0)

    def no_room(size: int) -> None:
        raise DiskFull("there is no room")

    monkeypatch.setattr(target.health, "check_room", no_room)
    moved = await ask(asked, "topics.move", topic="left", to_broker=id_of(target))
    await until(lambda: asked.registry.ownership.failed_moves())
    assert await outcomes(asked, moved["call_id"]) == [], "it is not over"
    assert await stated(asked, moved["call_id"]) == ["under_way"]
    await ask(asked, "tasks.cancel", task_id=moved["task_id"])
    assert (await ended(asked, moved["task_id"]))["state"] == "cancelled"
    await until_outcomes(asked, moved["call_id"], [("failed", "CONFLICT")])
    assert await stated(asked, moved["call_id"]) == ["failed"]


async def stated(broker: Broker, call_id: str) -> list[str | None]:
    """Return the states of a change in the list of changes, None if it was made."""
    items = (await ask(broker, "changes.list", limit=200))["items"]
    return [each.get("state") for each in items if each["call_id"] == call_id]


async def test_move_that_the_target_cannot_take_is_refused_before_anything_stops(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
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
    async with connect(one.broker_url) as client, client.producer("stays") as producer:
        await producer.send_many([bytes(64 << 10)] * 40)
    room, folder = os.statvfs, other.data_dir.path

    def with_little_room(path: Any) -> os.statvfs_result:
        found = list(room(path))
        if path == folder:
            found[0:5] = [
                4096,
                4096,
                1 << 20,
                1 << 19,
                (1 << 20) // 20 + 500,
            ]  # 2 MB above what publishing needs
        return os.statvfs_result(found)

    with monkeypatch.context() as small:
        small.setattr("pydanube_broker.status.health.os.statvfs", with_little_room)
        error = await refused(id_of(other))
        assert (error.code, error.details["broker_id"]) == ("DISK_FULL", id_of(other))
        assert "has no room for /default/stays" in error.message
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


async def test_plan_of_a_move_names_the_brokers_to_which_the_partitions_go(cluster: SeveralBrokers) -> None:
    await ask(cluster.brokers[1], "topics.create", topic="planned", partitions=6)
    parts = [f"/default/planned-part-{n}" for n in range(6)]
    await until(lambda: all(cluster.serves_name(part) for part in parts))
    plan = await ask(cluster.brokers[1], "topics.unload", topic="planned", plan_only=True)
    done = await ask(cluster.brokers[1], "topics.unload", topic="planned")
    assert {each["path"]: each["after"] for each in plan["diff"]} == {
        f"topics{part}/owner": to for part, to in done["moves"].items()
    }
    await until(lambda: all(cluster.serves_name(part) for part in parts))


async def test_while_a_partition_is_between_two_owners_nothing_is_said_or_done_of_the_others_alone(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(cluster.brokers[1], "topics.create", topic="parted", partitions=6)
    parts = [TopicName.parse(f"parted-part-{n}") for n in range(6)]
    await until(lambda: all(cluster.serves(part) for part in parts))
    for n, part in enumerate(parts):
        target = cluster.brokers[1 + n % 3]
        if cluster.owner(str(part)) is not target:
            await ask(target, "topics.move", topic=str(part), to_broker=id_of(target))
            await until(lambda part=part, target=target: target.registry.find(part) is not None)
    first = cluster.brokers[1]
    await ask(first, "subscriptions.create", topic="parted", subscription="s", start="earliest")
    gate, end = anyio.Event(), Arrival.await_move

    async def at_the_gate(self: Arrival, move: int) -> None:
        await gate.wait()
        await end(self, move)

    monkeypatch.setattr(Arrival, "await_move", at_the_gate)
    target = cluster.brokers[2]
    await ask(first, "topics.move", topic=str(parts[0]), to_broker=id_of(target))
    topic_id = first.registry.catalog.index.topic(parts[0]).topic_id
    await until(
        lambda: all(each.registry.ownership.owner(topic_id) is None for each in cluster.brokers.values())
    )
    await until(lambda: first.registry.find(parts[0]) is None)
    of_it: dict[str, Any] = {"topic": "parted"}
    for operation, arguments in (
        ("topics.describe", of_it),
        ("topics.metrics", of_it),
        ("topics.delete", {**of_it, "plan_only": True}),
        ("topics.truncate", {**of_it, "before": "latest", "plan_only": True}),
        ("topics.unload", of_it),
        ("subscriptions.list", of_it),
        ("subscriptions.create", {**of_it, "subscription": "t"}),
        ("subscriptions.describe", {**of_it, "subscription": "s"}),
        ("subscriptions.purge", {**of_it, "subscription": "s", "plan_only": True}),
        ("subscriptions.delete", {**of_it, "subscription": "s", "plan_only": True}),
    ):
        for broker in cluster.brokers.values():
            with (
                monkeypatch.context() as impatient
            ):  # only here: under load an answer takes longer than this, too
                impatient.setattr(cluster_wide_port, "DEADLINE_S", 0.1)
                with pytest.raises(ClusterError) as caught:
                    await ask(broker, operation, **arguments)
            assert (caught.value.code, caught.value.retryable) == ("NO_OWNER", True), operation
    listed = await ask(first, "topics.list")
    assert listed["not_seen"], "a list has what there is, and says that it is not all"
    # Between the look at a topic and the change of it, too: each of its owners does all of its part or none.
    for broker in cluster.brokers.values():
        with pytest.raises(NoOwner) as refused:
            await ClusterWidePort(broker.port, Peers(broker.port, ASKED)).create_subscription(
                "/default/parted", f"by-{id_of(broker)}", type="exclusive", start="latest"
            )
        assert refused.value.details["not_done_at"] == [id_of(first)]
    gate.set()
    await until(lambda: target.registry.find(parts[0]) is not None)
    assert (await ask(first, "topics.describe", **of_it))["partitions"] == 6


async def test_of_a_topic_with_a_partition_on_its_way_no_other_is_moved(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(cluster.brokers[1], "topics.create", topic="whole", partitions=3)
    parts = [TopicName.parse(f"whole-part-{n}") for n in range(3)]
    await until(lambda: all(cluster.serves(part) for part in parts))
    before = [cluster.owner(str(part)) for part in parts]
    gate, take = anyio.Event(), Arrival.take

    async def at_the_gate(self: Arrival, piece: Piece) -> None:
        await gate.wait()
        await take(self, piece)

    monkeypatch.setattr(Arrival, "take", at_the_gate)
    last = str(parts[2])
    (target, _) = cluster.others(last)
    await ask(target, "topics.move", topic=last, to_broker=id_of(target))
    with pytest.raises(ClusterError, match="on its way to broker") as caught:
        await ask(target, "topics.unload", topic="whole")
    assert caught.value.code == "CONFLICT"
    assert [each.topic for each in target.registry.ownership.moves()] == [last]
    gate.set()
    await until(lambda: target.registry.find(parts[2]) is not None)
    assert [cluster.owner(str(part)) for part in parts[:2]] == before[:2]


async def test_broker_that_is_unloaded_once_more_is_drained_once_more(cluster: SeveralBrokers) -> None:
    leaving, other = cluster.brokers[1], cluster.brokers[2]

    def state() -> str:
        return other.registry.ownership.coordinator.members[leaving.data_dir.broker_id].state.value

    async def planned(operation: str) -> list[dict[str, Any]]:
        plan = await ask(other, operation, broker_id=id_of(leaving), plan_only=True)
        return [{each["before"]: each["after"]} for each in plan["diff"]]

    assert await planned("brokers.unload") == [{"active": "draining"}]
    for _ in range(2):
        unloaded = await ask(other, "brokers.unload", broker_id=id_of(leaving))
        await until(lambda: state() == "drained")
        task = await ended(other, unloaded["task_id"])
        assert (task["state"], task["result"]["state"]) == ("done", "drained")
    assert await planned("brokers.unload") == [{"drained": "draining"}]
    assert await planned("brokers.activate") == [{"drained": "active"}]
    await activate(cluster, leaving)
    await ask(other, "brokers.unload", broker_id=id_of(leaving))  # it has been given nothing meanwhile
    await until(lambda: state() == "drained")
    await activate(cluster, leaving)


async def test_broker_that_can_store_nothing_is_given_no_topics(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, other = cluster.brokers[1], cluster.brokers[2]
    room, folder = os.statvfs, full.data_dir.path

    def without_room(path: Any) -> os.statvfs_result:
        found = room(path)
        if path != folder:
            return found
        return os.statvfs_result([0 if n == 4 else each for n, each in enumerate(found)])

    monkeypatch.setattr("pydanube_broker.status.health.os.statvfs", without_room)
    await until(lambda: id_of(full) not in [str(each) for each in other.moves.takers()])
    listed = {each["broker_id"]: each["state"] for each in (await ask(other, "brokers.list"))["items"]}
    assert listed[id_of(full)] == "read_only"
    for n in range(6):
        await ask(other, "topics.create", topic=f"elsewhere{n}")
        await until(lambda n=n: cluster.serves_name(f"elsewhere{n}"))
        assert cluster.owner(f"elsewhere{n}") is not full
    with pytest.raises(ClusterError, match="takes no topics"):
        await ask(other, "topics.move", topic="elsewhere0", to_broker=id_of(full))
    monkeypatch.undo()
    await cluster.all_know_all()


async def test_unloaded_broker_keeps_its_audit_alone(cluster: SeveralBrokers) -> None:
    for n in range(4):
        await create(cluster, f"t{n}")
        await create(cluster, f"live{n}", dispatch_strategy="non_reliable")
    leaving = next(broker for broker in cluster.brokers.values() if broker.registry.count)
    other = next(broker for broker in cluster.brokers.values() if broker is not leaving)
    assert (await ask(other, "brokers.unload", broker_id=id_of(leaving)))["state"] == "draining"

    def state() -> str:
        return leaving.registry.ownership.coordinator.members[leaving.data_dir.broker_id].state.value

    await until(lambda: state() == "drained" and leaving.registry.count == 0)
    await until(
        lambda: other.registry.ownership.coordinator.members[leaving.data_dir.broker_id].state == "drained"
    )
    listed = {each["broker_id"]: each["state"] for each in (await ask(other, "brokers.list"))["items"]}
    assert listed == {
        id_of(each): "drained" if each is leaving else "active" for each in cluster.brokers.values()
    }
    (leader,) = [each for each in cluster.brokers.values() if each.registry.ownership.coordinator.leads()]
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
