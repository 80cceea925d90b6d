"""Twelve shapes of work that is as it should be, each running until it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydanube import Message

from tests.diagnosis.injector import World

__all__ = ["SHAPES"]


async def _consume(
    world: World, topic: str, *, type: str = "exclusive", name: str | None = None, pause_s: float = 0
) -> None:
    async with world.client.consumer(topic, "s", type=type, name=name) as consumer:
        async for message in consumer:
            if pause_s:
                await asyncio.sleep(pause_s)
            await message.ack()


async def _produce(
    world: World, topic: str, *, per_turn: int, every_s: float, keys: int = 0, **options: Any
) -> None:
    async with world.client.producer(topic, **options) as producer:
        count = 0
        while True:
            messages = [
                Message.new(b"x", key=f"k{(count + i) % keys}" if keys else None) for i in range(per_turn)
            ]
            await producer.send_many(messages)
            count += per_turn
            await asyncio.sleep(every_s)


async def idle(world: World) -> None:
    topic = f"{world.name}-idle"
    await world.call("topics.create", topic=topic)
    await world.call("subscriptions.create", topic=topic, subscription="s")
    await asyncio.Event().wait()


async def steady(world: World) -> None:
    topic = f"{world.name}-steady"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(_produce(world, topic, per_turn=5, every_s=0.1), _consume(world, topic))


async def bursty(world: World) -> None:
    topic = f"{world.name}-bursty"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(_produce(world, topic, per_turn=300, every_s=2.5), _consume(world, topic))


async def batch_job(world: World) -> None:
    """A consumer comes every second, reads everything and goes; production never waits for it."""
    topic = f"{world.name}-batch"
    await world.call("topics.create", topic=topic)

    async def job() -> None:
        while True:
            async with world.client.consumer(topic, "s") as consumer:
                while messages := await consumer.receive(max_messages=100, max_wait_s=0.3):
                    for message in messages:
                        await message.ack()
            await asyncio.sleep(1.0)

    await asyncio.gather(_produce(world, topic, per_turn=10, every_s=0.5), job())


async def paused(world: World) -> None:
    """A consumer that takes nothing for a second now and then."""
    topic = f"{world.name}-paused"
    await world.call("topics.create", topic=topic)

    async def work() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            while True:
                for _ in range(10):
                    for message in await consumer.receive(max_messages=100, max_wait_s=0.1):
                        await message.ack()
                await asyncio.sleep(1.0)

    await asyncio.gather(_produce(world, topic, per_turn=3, every_s=0.2), work())


async def shared(world: World) -> None:
    topic = f"{world.name}-shared"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(
        _produce(world, topic, per_turn=6, every_s=0.1),
        *(_consume(world, topic, type="shared", name=f"c{i}", pause_s=0.005) for i in range(3)),
    )


async def even_keys(world: World) -> None:
    topic = f"{world.name}-even"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(
        _produce(world, topic, per_turn=8, every_s=0.2, keys=40),
        *(_consume(world, topic, type="key-shared", name=f"c{i}") for i in range(2)),
    )


async def failover(world: World) -> None:
    """A standby holds nothing and answers nothing, as it should."""
    topic = f"{world.name}-failover"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(
        _produce(world, topic, per_turn=4, every_s=0.2),
        *(_consume(world, topic, type="failover", name=f"c{i}") for i in range(2)),
    )


async def nacking(world: World) -> None:
    """A message fails once in a while, and works the second time."""
    topic = f"{world.name}-nacking"
    await world.call("topics.create", topic=topic)
    await world.call("subscriptions.create", topic=topic, subscription="s", type="shared")
    await world.call(
        "subscriptions.set_failure_policy", topic=topic, subscription="s", base_redelivery_delay_ms=50,
        max_redelivery_delay_ms=50,
    )  # fmt: skip

    async def work() -> None:
        async with world.client.consumer(topic, "s", type="shared") as consumer:
            async for message in consumer:
                if message.offset % 20 == 0 and message.delivery_count == 1:
                    await message.nack(reason="not yet")
                else:
                    await message.ack()

    await asyncio.gather(_produce(world, topic, per_turn=5, every_s=0.2), work())


async def finished(world: World) -> None:
    """A job that wrote its messages, all were read, everybody left in good order."""
    topic = f"{world.name}-finished"
    await world.publish(topic, 200)
    async with world.client.consumer(topic, "s") as consumer:
        left = 200
        while left:
            for message in await consumer.receive(max_messages=left, max_wait_s=1):
                await message.ack()
                left -= 1
    await asyncio.Event().wait()


async def uneven(world: World) -> None:
    """One of four workers has half the machine of the others."""
    topic = f"{world.name}-uneven"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(
        _produce(world, topic, per_turn=6, every_s=0.1),
        *(_consume(world, topic, type="shared", name=f"c{i}", pause_s=0.02 if i else 0.04) for i in range(4)),
    )


async def heartbeats(world: World) -> None:
    """Three services that publish the same few messages all the time, with the clocks of their own machines."""
    topic = f"{world.name}-beats"
    await world.call("topics.create", topic=topic)
    await asyncio.gather(
        *(_produce(world, topic, per_turn=4, every_s=0.1, keys=9) for _ in range(3)), _consume(world, topic)
    )


SHAPES: Final[tuple[Callable[[World], Awaitable[None]], ...]] = (
    idle, steady, bursty, batch_job, paused, shared, even_keys, failover, nacking, finished, uneven,
    heartbeats,
)  # fmt: skip
