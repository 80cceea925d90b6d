"""Key-shared subscriptions, over every transport: a key has one consumer at a time, and keeps its order."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube import InvalidArgument, Message

pytestmark = pytest.mark.anyio


async def publish(client: Any, topic: str, count: int, keys: int, first: int = 0) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many(
            [Message.new(b"%d" % n, key=f"k{n % keys}") for n in range(first, first + count)]
        )


async def drained(*consumers: Any, count: int) -> list[list[Message]]:
    """What each was handed, all acknowledged, until there are so many."""
    taken: list[list[Message]] = [[] for _ in consumers]
    while sum(map(len, taken)) < count:
        for consumer, mine in zip(consumers, taken, strict=True):
            for message in await consumer.receive(max_wait_s=0.05):
                mine.append(message)
                await message.ack()
    return taken


def in_order(messages: list[Message]) -> bool:
    by_key: dict[str | None, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.key, []).append(message.offset)
    return all(offsets == sorted(offsets) for offsets in by_key.values())


async def test_each_key_has_one_consumer_and_its_order(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with (
            client.consumer(topic, "s", type="key-shared", name="a", create=True) as a,
            client.consumer(topic, "s", type="key-shared", name="b") as b,
        ):
            await publish(client, topic, 400, keys=40)
            of_a, of_b = await drained(a, b, count=400)
            assert {m.key for m in of_a}.isdisjoint(m.key for m in of_b)
            assert len(of_a) + len(of_b) == 400
            assert of_a
            assert of_b
            assert in_order(of_a)
            assert in_order(of_b)
        async with client.consumer(topic, "s", type="key-shared") as consumer:
            assert await consumer.receive(max_wait_s=0.05) == []


async def test_what_a_leaver_held_goes_to_the_others_in_order(cluster: Any) -> None:
    topic = cluster.topic()
    async with (
        cluster.connect() as client,
        client.consumer(topic, "s", type="key-shared", name="stays", create=True) as stays,
    ):
        async with client.consumer(topic, "s", type="key-shared", name="leaves") as leaves:
            await publish(client, topic, 200, keys=20)
            held = await leaves.receive(500, max_wait_s=10)
            assert held
        await publish(client, topic, 20, keys=20, first=200)
        (mine,) = await drained(stays, count=220)
        assert in_order(mine)
        assert len({m.offset for m in mine}) == 220


async def test_nothing_of_a_key_overtakes_a_message_that_waits_for_its_delay(cluster: Any) -> None:
    topic = cluster.topic()
    async with (
        cluster.connect() as client,
        client.consumer(topic, "s", type="key-shared", create=True, credit_messages=1) as consumer,
    ):
        await publish(client, topic, 6, keys=2)
        order: list[int] = []
        while len(order) < 6:
            for message in await consumer.receive(1, max_wait_s=1):
                if message.offset == 0 and message.delivery_count == 1:
                    await message.nack(delay_ms=200)
                    continue
                order.append(message.offset)
                await message.ack()
        assert [offset for offset in order if offset % 2 == 0] == [0, 2, 4]
        assert [offset for offset in order if offset % 2] == [1, 3, 5]
        assert order.index(1) < order.index(0)  # another key did not wait


async def test_filters_choose_keys_and_what_nobody_takes_is_done(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with (
            client.consumer(topic, "s", type="key-shared", name="a", key_filters=["k1*"], create=True) as a,
            client.consumer(topic, "s", type="key-shared", name="b", key_filters=["k2"]) as b,
        ):
            await publish(client, topic, 40, keys=20)
            of_a, of_b = await drained(a, b, count=24)
            assert {m.key for m in of_a} == {"k1", *(f"k1{n}" for n in range(10))}
            assert {m.key for m in of_b} == {"k2"}
            await a.flush_acks()
            await b.flush_acks()
        async with client.consumer(topic, "s", type="key-shared") as anybody:
            assert await anybody.receive(max_wait_s=0.1) == []
        with pytest.raises(InvalidArgument):
            async with client.consumer(topic, "other", key_filters=["k1"]):
                pass


async def test_messages_without_a_key_are_delivered_once(cluster: Any) -> None:
    topic = cluster.topic()
    async with (
        cluster.connect() as client,
        client.consumer(topic, "s", type="key-shared", name="a", create=True) as a,
        client.consumer(topic, "s", type="key-shared", name="b") as b,
    ):
        async with client.producer(topic) as producer:
            await producer.send_many([b"%d" % n for n in range(100)])
        taken = await drained(a, b, count=100)
        assert sorted(int(m.payload) for mine in taken for m in mine) == list(range(100))
