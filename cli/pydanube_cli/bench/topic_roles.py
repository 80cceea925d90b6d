"""The roles of the scenario `topics`: fill very many topics, and drain what their subscriptions have left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydanube_cli.bench.payloads import Checker, make_payloads
from pydanube_cli.bench.role import QUIET_S, Spec, Start, open_client

TOPICS_AT_ONCE: Final = 32
SUBSCRIPTION: Final = "bench"


async def fill_topics(spec: Spec, start: Start) -> dict[str, Any]:
    """Make `topics` topics, send each its messages, and have a subscription of each acknowledge the first half."""
    checker = Checker(size=spec["size"])
    durability = ""
    async with open_client(spec) as client:

        async def one(number: int) -> None:
            nonlocal durability
            count = spec["sent"][number]
            payloads = make_payloads(
                producer=number, first=0, count=count, size=spec["size"], now_ns=time.monotonic_ns()
            )
            topic = f"{spec['topic']}-{number}"
            async with client.producer(topic, name="bench") as producer:
                durability = (await producer.send_many(payloads)).durability
            await _take(client, topic, count // 2, checker)

        await start.go()
        begun = time.monotonic_ns()
        await _at_once(one, spec["topics"])
        ended = time.monotonic_ns()
    part = checker.part(spec["sent"])
    return {"begun": begun, "ended": ended, "durability": durability, "part": part.to_json()}


async def drain_topics(spec: Spec, start: Start) -> dict[str, Any]:
    """Take what each topic's subscription has left."""
    checker = Checker(size=spec["size"])
    async with open_client(spec) as client:

        async def one(number: int) -> None:
            count = spec["sent"][number]
            await _take(client, f"{spec['topic']}-{number}", count - count // 2, checker)

        await start.go()
        begun = time.monotonic_ns()
        await _at_once(one, spec["topics"])
        ended = time.monotonic_ns()
    return {"begun": begun, "ended": ended, "part": checker.part(spec["sent"]).to_json()}


async def _take(client: Any, topic: str, count: int, checker: Checker) -> None:
    """Receive and acknowledge the next `count` messages of the topic's subscription, or what comes in time."""
    async with client.consumer(topic, SUBSCRIPTION) as consumer:
        while count:
            messages = await consumer.receive(max_messages=count, max_wait_s=QUIET_S)
            if not messages:
                return
            checker.add([message.payload for message in messages], time.monotonic_ns())
            for message in messages:
                await message.ack()
            count -= len(messages)


async def _at_once(work: Callable[[int], Awaitable[None]], topics: int) -> None:
    """Do the work for every topic, TOPICS_AT_ONCE of them at a time."""
    numbers = iter(range(topics))

    async def in_turn() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TOPICS_AT_ONCE):
            tasks.create_task(in_turn())
