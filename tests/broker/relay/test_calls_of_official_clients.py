"""A client of the official protocol that knows one broker uses topics of all, and notices no move."""

from __future__ import annotations

from typing import Any

import anyio
import grpc
import pytest
from pydanube_broker.broker import Broker
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.official.raw_client import (
    CONSUMER,
    EXCLUSIVE,
    KEY_SHARED,
    PRODUCER,
    SHARED,
    RawClient,
    Stream,
    code_of,
)
from tests.broker.serving.test_several_brokers import create
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]


async def topic_elsewhere(cluster: SeveralBrokers, asked: Broker, name: str) -> str:
    """A topic that another broker serves, by the name that official clients use."""
    for n in range(60):
        await create(cluster.brokers[1], f"{name}-{n}")
        topic = TopicName.parse(f"{name}-{n}")
        await until(lambda topic=topic: cluster.serves(topic))
        if asked.registry.find(topic) is None:
            return str(topic)
    raise AssertionError("all topics went to one broker")


async def test_every_call_about_another_brokers_topic_is_carried_there(cluster: SeveralBrokers) -> None:
    asked = cluster.brokers[1]
    name = await topic_elsewhere(cluster, asked, "t")
    async with RawClient(asked.broker_url) as client:
        producer = await client.create_producer(name)
        stream = await client.consume(name, type=SHARED)
        assert await client.health(PRODUCER, producer) == "OK"
        for n in range(10):
            await client.send(name, producer, b"%d" % n)
        first = await stream.next()
        await client.nack(first, delay_ms=0)
        seen = {first.payload}
        for _ in range(10):
            message = await stream.next()
            seen.add(message.payload)
            await client.ack(message)
        assert seen == {b"%d" % n for n in range(10)}
        served = cluster.owner(name).registry.find(TopicName.parse(name))
        assert served is not None
        await until(lambda: served.subscriptions["s"].floor == 10)
        (consumer,) = served.subscriptions["s"].links
        assert await client.health(CONSUMER, consumer) == "OK"
        stream.cancel()
        await until(lambda: not served.subscriptions["s"].links)


async def test_clients_of_one_broker_notice_nothing_of_twenty_moves(cluster: SeveralBrokers) -> None:
    asked = cluster.brokers[1]
    name = await topic_elsewhere(cluster, asked, "t")
    topic = TopicName.parse(name)
    sent, got, enough = 0, list[bytes](), anyio.Event()
    async with RawClient(asked.broker_url) as client:
        producer = await client.create_producer(name)
        stream: Stream = await client.consume(name)

        async def produce() -> None:
            nonlocal sent
            while not enough.is_set():
                await client.send(name, producer, b"%d" % sent)
                sent += 1

        async def consume() -> None:
            while True:
                message: Any = await stream.next()
                got.append(message.payload)
                await client.ack(message)

        async def check() -> None:
            while True:
                assert await client.health(PRODUCER, producer) == "OK"
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            group.start_soon(check)
            async with anyio.create_task_group() as producing:
                producing.start_soon(produce)
                for _ in range(20):
                    wanted = sent + 5
                    await until(lambda wanted=wanted: sent >= wanted)
                    await move(cluster, name, cluster.others(name)[0])
                enough.set()
            await until(lambda: len(got) == sent)
            group.cancel_scope.cancel()
    assert got == [b"%d" % n for n in range(sent)], "in order, each once"
    stored = cluster.owner(name).registry.find(topic)
    assert stored is not None
    assert stored.commit == sent, "each stored once"


async def _take(stream: Stream, count: int) -> list[Any]:
    return [await stream.next() for _ in range(count)]


@pytest.mark.parametrize("type", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_a_stream_that_is_carried_on_keeps_what_its_client_holds(
    cluster: SeveralBrokers, type: int
) -> None:
    """Over moves to other brokers and back to the one that the client knows; answers of before and between count."""
    asked = cluster.brokers[1]
    await asked.registry.create(
        TopicName.parse("kept"), partitions=0, dispatch_strategy="reliable", here=True, must_be_new=True
    )
    name = "/default/kept"
    targets = [cluster.brokers[2], cluster.brokers[3], asked]
    async with RawClient(asked.broker_url) as client:
        producer = await client.create_producer(name)
        stream = await client.consume(name, type=type)
        for n in range(40):
            await client.send(name, producer, b"%d" % n, routing_key=str(n))
        held = await _take(stream, 40)
        for n, target in enumerate(targets):
            await move(cluster, name, target)
            pump = target.registry.known(TopicName.parse(name)).subscriptions["s"]
            for message in held[10 * n : 10 * n + 10]:
                await client.ack(message)
            await until(lambda pump=pump, n=n: pump.floor == 10 * n + 10)
            await until(lambda pump=pump: pump.links)
            await client.send(name, producer, b"after", routing_key=f"after-{n}")
            assert (await _take(stream, 1))[0].payload == b"after", "and nothing of before again"
        stream.cancel()
        await until(lambda: not pump.links)
        again = await client.consume(name, type=type)
        payloads = [message.payload for message in await _take(again, 13)]
        assert sorted(payloads) == sorted([*(b"%d" % n for n in range(30, 40)), *[b"after"] * 3]), (
            "a client that comes anew has lost what it held"
        )


async def test_a_client_that_comes_anew_during_a_move_is_sent_again_what_it_held(
    cluster: SeveralBrokers,
) -> None:
    asked = cluster.brokers[1]
    name = await topic_elsewhere(cluster, asked, "t")
    async with RawClient(asked.broker_url) as client:
        producer = await client.create_producer(name)
        stream = await client.consume(name)
        for n in range(5):
            await client.send(name, producer, b"%d" % n)
        await _take(stream, 5)
        async with anyio.create_task_group() as group:
            group.start_soon(move, cluster, name, cluster.others(name)[0])
            stream.cancel()
            again = await client.consume(name)
            payloads = [message.payload for message in await _take(again, 5)]
        assert payloads == [b"%d" % n for n in range(5)]


async def test_a_broker_that_relays_proves_that_it_is_of_the_cluster_and_its_calls_go_no_further(
    cluster: SeveralBrokers,
) -> None:
    asked, other = cluster.brokers[1], cluster.brokers[2]
    name = await topic_elsewhere(cluster, asked, "t")
    assert other.relay is not None
    assert other.relay.membership is not None
    proof = other.relay.membership.proof(asked.registry.ownership.me.broker_id).decode()
    async with RawClient(asked.broker_url) as client:
        message = client.message(name, 1, b"x")
        for shown, code in (
            (proof, grpc.StatusCode.UNAVAILABLE),
            ("7.00", grpc.StatusCode.PERMISSION_DENIED),
        ):
            call = client.call(
                "ProducerService/SendMessage", message, metadata=(("x-danube-relayed", shown),)
            )
            assert await code_of(call) is code
