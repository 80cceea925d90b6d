"""A producer or consumer in a process of its own, to be killed or stopped: `python client_program.py ROLE URL TOPIC …`.

A producer sends one message at a time and prints how many are acknowledged. A consumer prints how many it acknowledged.
Both print one number a line, after the fact.
"""

from __future__ import annotations

import asyncio
import sys

from pydanube import connect


async def produce(url: str, topic: str, every_s: float) -> None:
    async with connect(url) as client, client.producer(topic, name="steady") as producer:
        count = 0
        while True:
            await producer.send(b"x" * 100)
            count += 1
            print(count, flush=True)
            await asyncio.sleep(every_s)


async def consume(url: str, topic: str, subscription: str) -> None:
    async with connect(url) as client, client.consumer(topic, subscription, name="worker") as consumer:
        count = 0
        async for message in consumer:
            await message.ack()
            count += 1
            print(count, flush=True)


async def flood(url: str, topic: str) -> None:
    async with connect(url) as client, client.producer(topic, name="flood") as producer:
        while True:
            await producer.send_many([b"x" * 8192] * 200)


if __name__ == "__main__":
    role, url, topic, more = sys.argv[1:5]
    match role:
        case "produce":
            asyncio.run(produce(url, topic, float(more)))
        case "flood":
            asyncio.run(flood(url, topic))
        case _:
            asyncio.run(consume(url, topic, more))
