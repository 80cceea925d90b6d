"""What the SDK itself costs per message: processor time of this process, whose broker in memory is another one.

    python benchmarks/sdk_costs.py [--messages 200000] [--size 128]

Prints one line a path: nanoseconds a message, best of three runs. "in the call" of `send_nowait` is the time inside
the calls only; everything else includes encoding, the transport and the receipts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pydanube import Client, connect
from pydanube.message import DecodedBatch
from pydanube.testing import InMemoryCluster
from pydanube_core.batch import broker_part, encode_batch

Run = Callable[[int, bytes], Awaitable[float]]


@asynccontextmanager
async def _connected(cluster: InMemoryCluster) -> AsyncIterator[Client]:
    """A client without the transport that can fail; the cluster lives as long."""
    async with connect(cluster.url) as client:
        yield client


async def send_nowait_call(messages: int, payload: bytes) -> float:
    async with (
        _connected(InMemoryCluster()) as client,
        client.producer("t", window_messages=10_000_000) as producer,
    ):
        send = producer.send_nowait
        messages = min(messages, 300_000)
        started = time.process_time()
        for _ in range(messages):
            send(payload)
        took = time.process_time() - started
        await producer.flush()
        return took / messages


async def send_nowait(messages: int, payload: bytes) -> float:
    async with _connected(InMemoryCluster()) as client, client.producer("t") as producer:
        started = time.process_time()
        for start in range(0, messages, 10_000):
            handles = [producer.send_nowait(payload) for _ in range(min(10_000, messages - start))]
            await handles[-1]
        await producer.flush()
        return (time.process_time() - started) / messages


async def send_nowait_with_key(messages: int, payload: bytes) -> float:
    async with _connected(InMemoryCluster()) as client, client.producer("t") as producer:
        started = time.process_time()
        for start in range(0, messages, 10_000):
            for i in range(min(10_000, messages - start)):
                handle = producer.send_nowait(payload, key="customer-7" if i & 1 else "customer-8")
            await handle
        await producer.flush()
        return (time.process_time() - started) / messages


async def send_many(messages: int, payload: bytes) -> float:
    async with _connected(InMemoryCluster()) as client, client.producer("t") as producer:
        started = time.process_time()
        await producer.send_many([payload] * messages)
        return (time.process_time() - started) / messages


async def send_256_awaiting(messages: int, payload: bytes) -> float:
    async with _connected(InMemoryCluster()) as client, client.producer("t") as producer:
        each = max(1, messages // 256)

        async def one() -> None:
            for _ in range(each):
                await producer.send(payload)

        started = time.process_time()
        await asyncio.gather(*(one() for _ in range(256)))
        return (time.process_time() - started) / (256 * each)


async def lone_send(messages: int, payload: bytes) -> float:
    async with _connected(InMemoryCluster()) as client, client.producer("t") as producer:
        count = min(messages, 3000)
        started = time.process_time()
        for _ in range(count):
            await producer.send(payload)
        return (time.process_time() - started) / count


async def _filled(messages: int, payload: bytes) -> InMemoryCluster:
    cluster = InMemoryCluster()
    async with _connected(cluster) as client, client.producer("t") as producer:
        await producer.send_many([payload] * messages)
    return cluster


async def async_for_and_ack(messages: int, payload: bytes) -> float:
    cluster = await _filled(messages, payload)
    async with _connected(cluster) as client, client.consumer("t", "s") as consumer:
        started = time.process_time()
        left = messages
        async for message in consumer:
            await message.ack()
            left -= 1
            if not left:
                break
        await consumer.flush_acks()
        return (time.process_time() - started) / messages


async def batches_and_ack(messages: int, payload: bytes) -> float:
    cluster = await _filled(messages, payload)
    async with _connected(cluster) as client, client.consumer("t", "s") as consumer:
        started = time.process_time()
        left = messages
        async for batch in consumer.batches():
            await batch.ack()
            left -= len(batch)
            if not left:
                break
        await consumer.flush_acks()
        return (time.process_time() - started) / messages


async def decode(messages: int, payload: bytes) -> float:
    count = 2000
    head = broker_part(base_offset=0, last_offset=count - 1, epoch=1, append_time_ms=0)
    stored = head + encode_batch([payload] * count)
    rounds = max(1, messages // count)
    started = time.process_time()
    for _ in range(rounds):
        DecodedBatch(stored).payloads(0, count)
    return (time.process_time() - started) / (rounds * count)


async def encode(messages: int, payload: bytes) -> float:
    count = 2000
    rounds = max(1, messages // count)
    payloads = [payload] * count
    started = time.process_time()
    for _ in range(rounds):
        encode_batch(payloads)
    return (time.process_time() - started) / (rounds * count)


PATHS: dict[str, Run] = {
    "encode, batches of 2000": encode,
    "decode with checksum": decode,
    "send_nowait, in the call": send_nowait_call,
    "send_nowait, end to end": send_nowait,
    "send_nowait with key, end to end": send_nowait_with_key,
    "send_many, end to end": send_many,
    "256 coroutines awaiting send": send_256_awaiting,
    "one coroutine awaiting send": lone_send,
    "async for + ack": async_for_and_ack,
    "batches() + ack": batches_and_ack,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    arguments = parser.parse_args()
    for name, run in PATHS.items():
        best = float("inf")
        for _ in range(3):
            gc.collect()
            best = min(best, asyncio.run(run(arguments.messages, bytes(arguments.size))))  # type: ignore[arg-type]
        print(f"{name:34} {best * 1e9:10.0f} ns/message")


if __name__ == "__main__":
    main()
