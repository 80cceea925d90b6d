"""The official Python client's side of benchmarks/javascript.mjs: `URL TOPIC COUNT`, prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from typing import Any

from danube import DanubeClientBuilder, DispatchStrategy, SubType

PAYLOAD = b"x" * 128


async def measured(operations: int, work: Awaitable[Any]) -> dict[str, int]:
    """Return operations a second, and processor time of each in microseconds."""
    begun, before = time.perf_counter(), time.process_time()
    await work
    took, cpu = time.perf_counter() - begun, time.process_time() - before
    return {"per_s": round(operations / took), "cpu_us": round(cpu * 1e6 / operations)}


async def main(url: str, topic: str, count: int) -> None:
    client = await DanubeClientBuilder().service_url(url).build()
    producer = (
        client.new_producer()
        .with_topic(topic)
        .with_name("p")
        .with_dispatch_strategy(DispatchStrategy.RELIABLE)
        .build()
    )
    await producer.create()
    consumer = (
        client.new_consumer().with_topic(topic).with_consumer_name("c").with_subscription("s")
        .with_subscription_type(SubType.EXCLUSIVE).build()
    )  # fmt: skip
    await consumer.subscribe()
    inbox = await consumer.receive()

    async def send(times: int) -> None:
        for _ in range(times):
            await producer.send(PAYLOAD)

    async def receive(times: int) -> None:
        acks = set[asyncio.Task[Any]]()
        for _ in range(times):
            ack = asyncio.create_task(consumer.ack(await inbox.get()))
            acks.add(ack)
            ack.add_done_callback(acks.discard)
            if len(acks) >= 64:
                await asyncio.wait(acks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*acks)

    single, each = count // 10, count // 64
    await asyncio.gather(*(send(each) for _ in range(64)))
    one = await measured(single, send(single))
    many = await measured(each * 64, asyncio.gather(*(send(each) for _ in range(64))))
    deliveries = single + 2 * each * 64
    received = await measured(deliveries, receive(deliveries))
    await consumer.close()
    await producer.close()
    print(json.dumps({"one_in_flight": one, "in_flight_64": many, "deliveries": received}))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
