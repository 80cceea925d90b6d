"""`delay_ms` and `ttl_ms` of a message on a real broker: in its turn when due, and not at all when its time is over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from pydanube import Client, InvalidArgument, Message, connect
from pydanube.options import SubscriptionType
from pydanube.testing import InMemoryCluster

pytestmark = pytest.mark.anyio
TYPES = get_args(SubscriptionType)
LONG_MS = 3_600_000


async def dropped(client: Client, topic: str, subscription: str) -> int:
    return sum(
        part.dropped for part in (await client.admin.subscriptions.describe(topic, subscription)).parts
    )


@pytest.mark.parametrize("type", TYPES)
async def test_a_delayed_message_lets_others_pass_and_comes_when_due(
    memory: InMemoryCluster, type: SubscriptionType
) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        late = await producer.send(b"late", key="a", attributes={"mine": "1"}, delay_ms=300)
        await producer.send(b"now", key="b")
        await producer.send(b"never", key="c", delay_ms=LONG_MS)
        async with client.consumer("t", "s", type=type) as consumer:
            got = []
            for _ in range(2):
                message = await anext(consumer)
                got.append((message.payload, message.delivery_count))
                await message.ack()
            assert got == [(b"now", 1), (b"late", 1)]
            assert message.attributes["mine"] == "1"
            assert time.time() * 1000 >= late.append_time.timestamp() * 1000 + 300
            assert await consumer.receive(max_wait_s=0.05) == []
    assert memory.unacknowledged("t", "s") == 1


@pytest.mark.parametrize("type", TYPES)
async def test_what_has_outlived_its_time_is_not_delivered_and_counted(
    memory: InMemoryCluster, type: SubscriptionType
) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        await producer.send_many(
            Message.new(b"%d" % n, key=f"{n}", ttl_ms=1 if n % 2 else LONG_MS) for n in range(10)
        )
        await producer.send(b"waits longer than it lives", ttl_ms=1, delay_ms=20)
        await asyncio.sleep(0.03)
        async with client.consumer("t", "s", type=type) as consumer:
            got = []
            for _ in range(5):
                message = await anext(consumer)
                got.append(message.payload)
                await message.ack()
            assert sorted(got) == [b"0", b"2", b"4", b"6", b"8"]
        assert memory.unacknowledged("t", "s") == 0
        assert await dropped(client, "t", "s") == 6


async def test_a_message_that_failed_and_outlives_its_time_is_not_tried_again(
    memory: InMemoryCluster,
) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        async with client.consumer("t", "s", create=True) as consumer:
            await producer.send(b"short", ttl_ms=400)
            await (await anext(consumer)).nack(delay_ms=500)
            await producer.send(b"next")
            message = await anext(consumer)
            assert message.payload == b"next"
            await message.ack()
            while memory.unacknowledged("t", "s"):
                assert await consumer.receive(max_wait_s=0.05) == []
        assert await dropped(client, "t", "s") == 1


async def test_many_delays_in_one_batch(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        await producer.send_many(Message.new(b"%d" % n, delay_ms=(n % 5) * 40) for n in range(3000))
        async with client.consumer("t", "s", type="shared") as consumer:
            got: list[int] = []
            while len(got) < 3000:
                for message in await consumer.receive(1000):
                    got.append(int(message.payload))
                    await message.ack()
        assert sorted(got) == list(range(3000))


async def test_key_shared_keeps_the_order_of_a_key_behind_a_delay(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        await producer.send(b"first", key="k", delay_ms=200)
        await producer.send(b"second", key="k")
        await producer.send(b"other", key="o")
        async with client.consumer("t", "s", type="key-shared") as consumer:
            got = []
            while len(got) < 3:
                message = await anext(consumer)
                got.append(message.payload)
                await message.ack()
        assert got.index(b"first") < got.index(b"second")


async def test_a_dead_letter_neither_waits_nor_expires(memory: InMemoryCluster) -> None:
    async def fail(message: Message) -> None:
        raise ValueError("no")

    stop = asyncio.Event()
    async with memory.connect() as client, client.producer("t") as producer, asyncio.TaskGroup() as tasks:
        await producer.send(b"bad", delay_ms=20, ttl_ms=LONG_MS)
        tasks.create_task(client.run(fail, "t", "s", retries=0, stop=stop))
        async with client.consumer("t-dlq-s", "look", create=True) as consumer:
            dead = await anext(consumer)
        assert not [name for name in dead.attributes if name.startswith("danube-")]
        stop.set()


async def test_a_reader_sees_the_log_as_it_is(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        await producer.send(b"later", delay_ms=LONG_MS)
        async with client.reader("t", stop="head") as reader:
            assert [message.payload async for message in reader] == [b"later"]


async def test_what_waits_survives_a_killed_broker(start_broker: Any, tmp_path: Path) -> None:
    broker = start_broker(tmp_path, 0)
    async with connect(broker.url) as client, client.producer("t") as producer:
        await producer.send(b"late", delay_ms=1500)
        await producer.send(b"now")
        await producer.send(b"gone", ttl_ms=1)
        async with client.consumer("t", "s") as consumer:
            message = await anext(consumer)
            assert message.payload == b"now"
            await message.ack()
            await consumer.flush_acks()
    broker.kill()
    again = start_broker(tmp_path, 0)
    async with connect(again.url) as client:
        async with client.consumer("t", "s") as consumer:
            message = await anext(consumer)
            assert (message.payload, message.delivery_count) == (b"late", 1)
            assert time.time() >= message.append_time.timestamp() + 1.5
            await message.ack()
            assert await consumer.receive(max_wait_s=0.05) == []
        lag = (await client.admin.subscriptions.lag(topic="t", subscription="s")).items[0]
        assert lag.lag_messages == 0


async def test_arguments_that_are_none(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            for changes in ({"delay_ms": -1}, {"ttl_ms": 0.5}, {"delay_ms": 10**12}):
                with pytest.raises(InvalidArgument) as refused:
                    await producer.send(b"x", **changes)  # type: ignore[arg-type]
                assert refused.value.details["field"] == next(iter(changes))
        async with client.producer("live", dispatch_strategy="non_reliable") as producer:
            with pytest.raises(InvalidArgument, match="keeps nothing for later"):
                await producer.send(b"x", delay_ms=5)
        async with client.producer("odd") as producer:  # of somebody else's client
            await producer.send(b"x", attributes={"danube-delay-ms": "soon", "danube-ttl-ms": "-1"})
        async with client.consumer("odd", "s") as consumer:
            assert (await anext(consumer)).payload == b"x"


async def test_a_message_that_is_handed_over_takes_them_too(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        late = producer.send_nowait(b"late", key="a", attributes={"mine": "1"}, delay_ms=LONG_MS)
        gone = producer.send_nowait(b"gone", ttl_ms=1)
        kept = producer.send_nowait(b"kept", ttl_ms=LONG_MS)
        with pytest.raises(InvalidArgument, match="ttl_ms"):
            producer.send_nowait(b"no", ttl_ms=-1)
        assert [(await each).offset for each in (late, gone, kept)] == [0, 1, 2]
        await asyncio.sleep(0.01)
        async with client.consumer("t", "s") as consumer:
            assert [message.payload for message in await consumer.receive(max_wait_s=10)] == [b"kept"]
        async with client.reader("t", stop="head") as reader:
            assert (await anext(reader)).attributes == {"mine": "1", "danube-delay-ms": str(LONG_MS)}


def test_a_message_that_is_handed_over_without_await_takes_them_too(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        producer.send_nowait(b"later", delay_ms=LONG_MS).result()
        producer.send_nowait(b"now").result()
        with client.consumer("t", "s") as consumer:
            assert [message.payload for message in consumer.receive(max_wait_s=10)] == [b"now"]
