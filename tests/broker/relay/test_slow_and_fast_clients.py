"""A client that does not read what is carried to it holds up nobody else, and costs no more than its windows."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.rpc.own_connection import OwnConnection
from pydanube_core.names import TopicName

from tests.broker.official.raw_client import RELIABLE, RawClient
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]

MESSAGE_BYTES = 1 << 20
HELD_BYTES = 8 << 20
LARGEST_BYTES = 3_900_000  # three such are more than what a connection may have waiting
DEAF = 4


async def topics_of(owner: Broker, cluster: SeveralBrokers, count: int) -> list[str]:
    """So many topics that one broker serves."""
    found: list[str] = []
    async with RawClient(owner.broker_url) as client:
        for n in range(100):
            name = f"/default/t{n}"
            await client.create_producer(name, strategy=RELIABLE)
            topic = TopicName.parse(name)
            await until(lambda topic=topic: cluster.serves(topic))
            if owner.registry.find(topic) is not None:
                found.append(name)
            if len(found) == count:
                return found
    raise AssertionError("hardly any topic went to that broker")


async def test_client_that_reads_nothing_stops_no_other(cluster: SeveralBrokers) -> None:
    asked, owner = cluster.brokers[1], cluster.brokers[2]
    slow, fast = await topics_of(owner, cluster, 2)
    async with RawClient(asked.broker_url) as reading, RawClient(asked.broker_url) as deaf:
        for name, client in ((slow, deaf), (fast, reading)):
            await client.create_producer(name)
        stuck = await deaf.consume(slow)
        stream = await reading.consume(fast)
        producer = await reading.create_producer(slow)
        for _ in range(30):
            await reading.send(slow, producer, b"x" * MESSAGE_BYTES)
        producer = await reading.create_producer(fast)
        with anyio.fail_after(60):
            for n in range(50):
                await reading.send(fast, producer, b"%d" % n)
                message = await stream.next()
                assert message.payload == b"%d" % n
                await reading.ack(message)
        for broker in (asked, owner):
            held = sum(each.holds() for server in broker.servers for each in server.open_connections)
            assert held < HELD_BYTES, "what the other does not read waits on disk"
        # and whoever begins to read gets all of it
        with anyio.fail_after(60):
            for _ in range(30):
                message = await stuck.next()
                assert len(message.payload) == MESSAGE_BYTES
                await deaf.ack(message)


async def test_clients_that_read_nothing_of_large_messages_stop_no_other(cluster: SeveralBrokers) -> None:
    """What waits for them at the owner, on the connection that all share, is not in the way of the others."""
    asked, owner = cluster.brokers[1], cluster.brokers[2]
    slow, fast = await topics_of(owner, cluster, 2)

    def connections() -> list[OwnConnection]:
        return [each for server in owner.servers for each in server.open_connections]

    async with RawClient(asked.broker_url) as reading, AsyncExitStack() as stack:
        await reading.create_producer(fast)
        stream = await reading.consume(fast)
        producer = await reading.create_producer(slow)
        for number in range(DEAF):
            client = await stack.enter_async_context(RawClient(asked.broker_url))
            await client.consume(slow, subscription=f"s{number}")
        for _ in range(8):
            await reading.send(slow, producer, b"x" * LARGEST_BYTES)
        await until(lambda: sum(each.holds() for each in connections()) > HELD_BYTES)
        streams = sum(len(each.http.streams) for each in connections())
        producer = await reading.create_producer(fast)
        for n in range(50):
            await reading.send(fast, producer, b"%d" % n)
            message = await stream.next()
            assert message.payload == b"%d" % n
            await reading.ack(message)
        assert sum(len(each.http.streams) for each in connections()) == streams, (
            "none of them was ended for it"
        )
