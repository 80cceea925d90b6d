"""The publishing roles of workers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterator
from itertools import chain, cycle
from typing import Any, Final

from pydanube_core.errors import WindowFull

from pydanube_cli.bench.payloads import key_of, make_payloads, percentiles_ms
from pydanube_cli.bench.role import Spec, Start, open_client, open_producer

CHUNK_MESSAGES: Final = 8192  # made at a time: large enough that making them vanishes in the mean
WARM_UP_PRODUCER: Final = 1 << 20  # no producer of the plan: such messages are not counted


def _pieces(spec: Spec) -> Iterator[list[bytes]]:
    """Yield all payloads of a producer, made on demand."""
    for first in range(0, spec["messages"], CHUNK_MESSAGES):
        yield make_payloads(
            producer=spec["index"],
            first=first,
            count=min(CHUNK_MESSAGES, spec["messages"] - first),
            size=spec["size"],
            now_ns=time.monotonic_ns(),
        )


def _keys(spec: Spec) -> list[str]:
    """The key of message i is that at i modulo their number. Without keys it is empty."""
    return [key_of(number, spec["keys"]) for number in range(spec.get("keys", 0))]


async def produce_many(spec: Spec, start: Start) -> dict[str, Any]:
    """Send `messages` by the batch and wait for all."""
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        await start.go()
        begun = time.monotonic_ns()
        # One call: the window bounds the messages in flight, and nothing waits between pieces.
        keys = _keys(spec)
        summary = await producer.send_many(
            chain.from_iterable(_pieces(spec)), keys=cycle(keys) if keys else None
        )
        ended = time.monotonic_ns()
    return {"begun": begun, "ended": ended, "acknowledged": summary.count, "durability": summary.durability}


async def produce_each(spec: Spec, start: Start) -> dict[str, Any]:
    """Send `messages` one by one with `send_nowait`. With a full window, wait for an earlier one."""
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        await start.go()
        begun = time.monotonic_ns()
        send = producer.send_nowait
        keys: list[str] | list[None] = _keys(spec) or [None]
        earlier: deque[Awaitable[Any]] = deque()
        sent = 0
        while sent < spec["messages"]:
            count = min(CHUNK_MESSAGES, spec["messages"] - sent)
            payloads = make_payloads(
                producer=spec["index"], first=sent, count=count, size=spec["size"], now_ns=time.monotonic_ns()
            )
            for at, payload in enumerate(payloads):
                key = keys[(sent + at) % len(keys)]
                try:
                    handle = send(payload, key=key)
                except WindowFull:
                    while True:
                        await earlier.popleft()
                        try:
                            handle = send(payload, key=key)
                            break
                        except WindowFull:
                            continue
                if not at & 511:
                    earlier.append(handle)
                    await asyncio.sleep(0)
            sent += count
        receipt = await handle
        await producer.flush()
        ended = time.monotonic_ns()
        acknowledged = producer.statistics().acknowledged_messages
    return {"begun": begun, "ended": ended, "acknowledged": acknowledged, "durability": receipt.durability}


async def send_lone(spec: Spec, start: Start) -> dict[str, Any]:
    """Send messages one after another, each awaited: `messages` of them, or until `stop`."""
    limit = spec["messages"]
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        for payload in make_payloads(
            producer=WARM_UP_PRODUCER, first=0, count=spec["warm_up"], size=spec["size"], now_ns=0
        ):
            await producer.send(payload)
        await start.go()
        begun = time.monotonic_ns()
        taken_ns: list[int] = []
        durability = ""
        while not start.stopped and (limit is None or len(taken_ns) < limit):
            now = time.monotonic_ns()
            [payload] = make_payloads(
                producer=spec["index"], first=len(taken_ns), count=1, size=spec["size"], now_ns=now
            )
            now = time.monotonic_ns()
            receipt = await producer.send(payload)
            taken_ns.append(time.monotonic_ns() - now)
            durability = receipt.durability
        ended = time.monotonic_ns()
    latencies = percentiles_ms([ns / 1e6 for ns in taken_ns])
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken_ns),
        "durability": durability,
        "latency": latencies,
    }


async def send_await(spec: Spec, start: Start) -> dict[str, Any]:
    """`coroutines` that each await one send after another, over `producers` producers of one process.

    With `messages` they share that many. Without, they go on until `stop`.
    """
    limit = spec["messages"]
    async with open_client(spec) as client:
        producers = [open_producer(client, spec, index) for index in range(spec["producers"])]
        for producer in producers:
            await producer.__aenter__()
        try:
            await start.go()
            begun = time.monotonic_ns()
            handed = 0
            filler = b"." * (spec["size"] - 16)
            taken_ns: list[int] = []
            durability = ""

            async def caller(producer: Any) -> None:
                nonlocal handed, durability
                while not start.stopped and (limit is None or handed < limit):
                    number = handed
                    handed += 1
                    now = time.monotonic_ns()
                    payload = number.to_bytes(8, "little") + now.to_bytes(8, "little") + filler
                    receipt = await producer.send(payload)
                    taken_ns.append(time.monotonic_ns() - now)
                    durability = receipt.durability

            async with asyncio.TaskGroup() as tasks:
                for index in range(spec["coroutines"]):
                    tasks.create_task(caller(producers[index % len(producers)]))
            ended = time.monotonic_ns()
        finally:
            for producer in producers:
                await producer.__aexit__(None, None, None)
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken_ns),
        "durability": durability,
        "latency": percentiles_ms([ns / 1e6 for ns in taken_ns]),
    }
