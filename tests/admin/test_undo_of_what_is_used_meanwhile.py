"""An undo or a time to live deletes unused topics and subscriptions: clients come between any two of its steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.serving import unused_holds
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_core.errors import ClusterError
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered
from tests.admin.test_any_broker_administers import administered as one_of_several
from tests.admin.test_any_broker_administers import ask
from tests.admin.test_danube_admin_grpc import Tool
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

ORDERS = TopicName.parse("orders")
Act = Callable[[int], Awaitable[None]]


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


def before_each_step(monkeypatch: pytest.MonkeyPatch, broker: Broker, act: Act) -> None:
    """Call `act` with 0, 1, 2 … before each transaction and each read of a broker's metadata."""
    store: Any = broker.registry.catalog.store
    steps = iter(range(1 << 30))

    def interrupted(name: str) -> None:
        original = getattr(store, name)

        async def method(*args: Any, **named: Any) -> Any:
            await act(next(steps))
            return await original(*args, **named)

        monkeypatch.setattr(store, name, method)

    for name in ("transact", "get", "range"):
        interrupted(name)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_no_acknowledged_message_is_lost_to_the_undo_of_a_creation(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """A producer sends before the n-th step, for every n that the undo has."""
    for at in range(100):
        made = await cluster("topics.create", topic="orders", partitions=partitions)
        acknowledged: list[bytes] = []
        steps = 0

        async def send(step: int, at: int = at, acknowledged: list[bytes] = acknowledged) -> None:
            nonlocal steps
            steps = step + 1
            if step == at:
                for part in list(cluster.broker.registry.parts(ORDERS)[1]):
                    payload = part.name.encode()
                    try:
                        await append_durably(part, [payload], producer="test")
                    except ClusterError:
                        continue
                    acknowledged.append(payload)

        with monkeypatch.context() as patched:
            before_each_step(patched, cluster.broker, send)
            outcome = await cluster.call("changes.undo", {"call_id": made["call_id"]}, "ann")
        found = await cluster.payloads("orders")
        assert sorted(found) == sorted(acknowledged), f"before step {at} of {steps}"
        if acknowledged:
            assert isinstance(outcome, ClusterError)
            await cluster.publish("orders", b"goes on")
        if cluster.broker.registry.parts(ORDERS)[1]:
            await cluster.apply("topics.delete", topic="orders")
        if at >= steps:
            return
    raise AssertionError("the undo has no end")


class Joins:
    """The consumers that joined a subscription, by its id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joined: list[int] = []
        self.refused = 0
        join = SubscriptionPump.join

        def watched(pump: SubscriptionPump, *args: Any) -> int:
            try:
                session = join(pump, *args)
            except ClusterError:
                self.refused += 1
                raise
            self.joined.append(pump.subscription_id)
            return session

        monkeypatch.setattr(SubscriptionPump, "join", watched)

    @property
    def any(self) -> bool:
        return bool(self.joined or self.refused)


async def consume(url: str, topic: str, subscription: str) -> None:
    async with connect(url) as client, client.consumer(topic, subscription):
        await anyio.sleep_forever()


@pytest.mark.parametrize("way", ["undo", "official unsubscribe"])
async def test_no_consumer_loses_the_subscription_that_it_joined_meanwhile(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    await cluster("topics.create", topic="orders")
    made = await cluster("subscriptions.create", topic="orders", subscription="late")
    topic = cluster.broker.registry.known(ORDERS)
    number = topic.subscriptions["late"].subscription_id
    joins = Joins(monkeypatch)
    delete = type(cluster.broker.port).delete_subscription
    async with anyio.create_task_group() as group:

        async def interrupted(port: Any, *args: Any, **named: Any) -> None:
            group.start_soon(consume, cluster.broker.broker_url, "orders", "late")
            await until(lambda: joins.any)
            await delete(port, *args, **named)

        monkeypatch.setattr(type(cluster.broker.port), "delete_subscription", interrupted)
        if way == "undo":
            await cluster.call("changes.undo", {"call_id": made["call_id"]}, "ann")
        else:
            async with grpc.aio.insecure_channel(cluster.url.removeprefix("http://")) as channel:
                request = pb.SubscriptionRequest(topic="/default/orders", subscription="late")
                await Tool(channel)("TopicAdmin/Unsubscribe", request)
        assert number not in joins.joined
        assert joins.refused
        await until(lambda: joins.joined)  # it comes again, to a new subscription
        group.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["undo", "official unsubscribe"])
async def test_a_subscription_with_a_consumer_stays(cluster: Administered, way: str) -> None:
    await cluster("topics.create", topic="orders")
    made = await cluster("subscriptions.create", topic="orders", subscription="late")
    async with connect(cluster.broker.broker_url) as client, client.consumer("orders", "late"):
        if way == "undo":
            assert (await cluster.refused("changes.undo", call_id=made["call_id"])).code == "CONFLICT"
        else:
            async with grpc.aio.insecure_channel(cluster.url.removeprefix("http://")) as channel:
                request = pb.SubscriptionRequest(topic="/default/orders", subscription="late")
                refused = await Tool(channel).refused("TopicAdmin/Unsubscribe", request)
            assert refused[0] == "FAILED_PRECONDITION"
            assert "active consumer" in refused[1]
        assert "late" in cluster.broker.registry.known(ORDERS).subscriptions


async def test_a_topic_with_a_time_to_live_is_not_deleted_under_a_producer_that_came_meanwhile(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(cluster.broker.broker_url) as client:
        async with client.producer("orders", unused_ttl_s=1) as producer:
            await producer.send(b"first")
        acknowledged = 0

        async def send(step: int) -> None:
            nonlocal acknowledged
            if (topic := cluster.broker.registry.find(ORDERS)) is not None:
                topic.producer_attached()
                try:
                    await append_durably(topic, [b"later"], producer="test")
                    acknowledged += 1
                except ClusterError:
                    topic.producer_detached()

        with monkeypatch.context() as patched:
            before_each_step(patched, cluster.broker, send)
            await until(lambda: acknowledged or cluster.broker.registry.find(ORDERS) is None)
            await cluster.broker.unused.delete()
        assert len(await cluster.payloads("orders")) == (1 + acknowledged if acknowledged else 0)


@pytest.fixture
async def several(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(etcd, tmp_path, one_of_several) as cluster:
        yield cluster


async def test_a_deletion_that_owners_permitted_fails_once_one_has_opened_again(
    several: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator stands still for longer than its owners wait, or until one of them was restarted."""
    monkeypatch.setattr(unused_holds, "HOLD_S", 0.0)
    first = several.brokers[1]
    made = await ask(first, "topics.create", topic="wide", partitions=6)
    parts = [TopicName.parse(f"wide-part-{n}") for n in range(6)]
    await until(lambda: all(several.serves(part) for part in parts))
    port: Any = first.port
    for late in ("expired", "restarted"):
        held = []
        for broker in several.brokers.values():
            if any(broker.registry.find(part) is not None for part in parts):
                held += await broker.port.hold_unused("/default/wide")
        assert len({each.broker_id for each in held}) > 1
        topics = [broker.registry.find(part) for broker in several.brokers.values() for part in parts]
        assert all(topic.closed is not None for topic in topics if topic is not None)
        if late == "expired":
            for broker in several.brokers.values():
                await broker.registry.unused.expire()
        else:
            other = next(n for n, b in several.brokers.items() if n != 1 and any(map(b.registry.find, parts)))
            await several.stop(other)
            await several.start(other)
            await several.all_know_all()
        with pytest.raises(ClusterError) as caught:
            await port.delete_topic("/default/wide", held=held)
        assert caught.value.code == "CONFLICT"
        for broker in several.brokers.values():
            await broker.registry.unused.expire()
        await until(lambda: all(several.serves(part) for part in parts))
        for part in parts:
            topic = several.owner(str(part)).registry.find(part)
            assert topic is not None
            assert topic.closed is None
    assert (await ask(first, "changes.undo", call_id=made["call_id"]))["operation"] == "topics.create"
    await until(lambda: not any(several.serves(part) for part in parts))
