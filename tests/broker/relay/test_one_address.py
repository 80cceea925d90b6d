"""Clients that reach one address only: `server.connect_url`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.serving import topic_access
from pydanube_broker.settings.sections import Settings
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.official.raw_client import CONSUMER, RawClient
from tests.broker.serving.test_several_brokers import create
from tests.support.broker_process import free_ports
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]


@pytest.fixture
async def behind_one(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    """Three brokers that all say that clients reach them at the address of the first."""
    (port,) = free_ports(1)
    ports = iter((port, 0, 0))

    def make(settings: Settings) -> Broker:
        server: dict[str, Any] = {
            "grpc_port": next(ports),
            "connect_url": f"http://127.0.0.1:{port}",
        }
        return Broker(settings.model_copy(update={"server": settings.server.model_copy(update=server)}))

    async with several_brokers(etcd, tmp_path, make) as cluster:
        yield cluster


async def test_sdk_publishes_and_consumes_everything_through_one_broker_while_topics_move(
    behind_one: SeveralBrokers,
) -> None:
    cluster = behind_one
    async with connect(cluster.brokers[1].broker_url) as client, AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(client.producer(f"t{n}")) for n in range(6)]
        seen: list[Counter[bytes]] = [Counter() for _ in producers]

        async def consume(n: int) -> None:
            async with client.consumer(f"t{n}", "s", start="earliest") as consumer:
                async for message in consumer:
                    seen[n][message.payload] += 1
                    await message.ack()

        async with anyio.create_task_group() as group:
            for n in range(6):
                group.start_soon(consume, n)
            for round in range(3):
                for producer in producers:
                    for i in range(10):
                        await producer.send(b"%d-%d" % (round, i))
                for n in range(6):
                    await move(cluster, f"t{n}", cluster.others(f"t{n}")[0])
            await until(lambda: all(len(each) == 30 for each in seen))
            group.cancel_scope.cancel()
    owners = {cluster.owner(f"t{n}") for n in range(6)}
    assert owners - {cluster.brokers[1]}, "some were never at the broker that the client knows"


async def test_official_client_is_told_the_one_address_and_names_the_owner_in_its_header(
    behind_one: SeveralBrokers,
) -> None:
    cluster = behind_one
    asked = cluster.brokers[1]
    async with RawClient(asked.broker_url) as client:
        for n in range(60):
            name = f"/default/t{n}"
            await client.create_producer(name)
            await until(lambda name=name: cluster.serves(TopicName.parse(name)))
            if asked.registry.find(TopicName.parse(name)) is None:
                break
        owner = cluster.owner(name)
        found = await client.lookup(name)
        assert (found.connect_url, found.broker_url, found.proxy) == (
            asked.broker_url,
            owner.broker_url,
            True,
        )
        (third,) = [each for each in cluster.others(name) if each is not asked]
        consumer = await client.subscribe(name)
    async with RawClient(third.broker_url) as client:
        assert await client.health(CONSUMER, consumer) == "CLOSE", "it has never heard of it"
        header = (("x-danube-broker-url", f"{owner.broker_url}/"),)
        request = client.call(
            "HealthCheck/HealthCheck",
            pb.HealthCheckRequest(client=pb.HealthCheckRequest.ClientType.Consumer, id=consumer),
            metadata=header,
        )
        assert (await request).status == 0


@pytest.mark.parametrize("one_address", [True, False])
async def test_waiting_look_up_waits_until_a_lost_owner_or_the_next_one_is_registered(
    behind_one: SeveralBrokers, monkeypatch: pytest.MonkeyPatch, one_address: bool
) -> None:
    """It compared the owner's own URL with the one address, and answered at once: clients asked four times a second.

    Without a one address, it waited on for an owner that had registered again in the same epoch.
    """
    cluster = behind_one
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves_name("t"))
    if cluster.owner("t") is not cluster.brokers[1]:  # its own URL is the one address
        await move(cluster, "t", cluster.brokers[1])
    asked = cluster.others("t")[0]
    name = TopicName.parse("t")
    away = str(asked.access.connect_url)
    if not one_address:
        away = cluster.owner("t").broker_url
        monkeypatch.setattr(asked.access, "connect_url", None)
    is_lost, placed = True, topic_access.Placement.parts

    def parts(self: topic_access.Placement, name: TopicName) -> tuple[bool, Sequence[topic_access.Placed]]:
        partitioned, found = placed(self, name)
        return partitioned, [replace(each, waits_for="7" if is_lost else "") for each in found]

    monkeypatch.setattr(topic_access.Placement, "parts", parts)

    async def look_up(wait_s: float) -> Sequence[topic_access.Placed]:
        _, found = await asked.access.placed_away(COLD_CALL, name, away, wait_s)
        return found

    begun_s = anyio.current_time()
    assert (await look_up(0.3))[0].waits_for == "7"
    assert anyio.current_time() - begun_s >= 0.3

    async def register() -> None:
        nonlocal is_lost
        await until(lambda: asked.registry.ownership.waits)
        is_lost = False
        asked.registry.ownership.recheck_waits()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(register)
            assert (await look_up(3600.0))[0].waits_for == ""
