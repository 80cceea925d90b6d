"""What waits in a client's buffer is not late; a delivery's time begins when the application is handed it."""

import asyncio
from typing import Any

import pytest
from pydanube import Consumer, InvalidArgument

pytestmark = pytest.mark.anyio


async def published(client: Any, topic: str, count: int, **options: Any) -> None:
    async with client.producer(topic, **options) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


async def test_messages_behind_a_slow_handler_are_not_late(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await published(client, topic, 60)
        handled: list[int] = []
        async with client.consumer(topic, "s", ack_timeout_ms=400) as consumer:
            async for message in consumer:
                await asyncio.sleep(0.03)  # the last is handled 1.8 s after it came
                handled.append(message.offset)
                assert message.delivery_count == 1
                await message.ack()
                if len(handled) == 60:
                    break
            await consumer.flush_acks()
            assert consumer.statistics().redelivered_messages == 0
        assert handled == list(range(60))


async def test_what_was_handed_out_and_forgotten_comes_again(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await published(client, topic, 3)
        async with client.consumer(topic, "s", ack_timeout_ms=300) as consumer:
            first = await anext(consumer)
            again: list[Any] = []
            while not again:
                again = [m for m in await consumer.receive(max_wait_s=5) if m.offset == first.offset]
            assert again[0].delivery_count == 2


async def test_a_seek_that_is_refused_changes_nothing_on_any_partition(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=2, routing="round-robin") as producer:
            for number in range(7):  # 4 in one partition, 3 in the other
                await producer.send(b"%d" % number)
        async with client.consumer(topic, "s") as consumer:
            taken = [await anext(consumer) for _ in range(7)]
            for message in taken:
                await message.ack()
            await consumer.flush_acks()
            with pytest.raises(InvalidArgument):
                await consumer.seek("offset:4")  # one partition has three only
            assert await consumer.receive(max_wait_s=0.5) == []  # neither has moved, and it lives on
            await consumer.seek("offset:1")
            assert sorted(await offsets(consumer, 5)) == [1, 1, 2, 2, 3]


async def offsets(consumer: Consumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]
