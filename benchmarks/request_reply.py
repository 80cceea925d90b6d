"""How long a request and its reply take, beside a lone `send()` to the same broker.

    ./danube up &  python benchmarks/request_reply.py --broker http://127.0.0.1:6650 [--requests 2000] [--runs 5]

Client and responder are two clients of one process. Without `--broker` it is a broker in memory, where nothing is synced.
Prints p50 and p99 of both in turns, and the ratio of the medians of the p50; exit 1 above `--most` (2.5).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from pydanube import Message, connect
from pydanube.testing import InMemoryCluster


async def timed(what: str, ask: Callable[[], Awaitable[object]], count: int) -> float:
    took_ms = []
    for _ in range(count):
        since = time.perf_counter()
        await ask()
        took_ms.append((time.perf_counter() - since) * 1000)
    took_ms.sort()
    print(f"{what}: p50 {took_ms[count // 2]:.3f} ms, p99 {took_ms[count * 99 // 100]:.3f} ms", flush=True)
    return took_ms[count // 2]


async def main(url: str, requests: int, runs: int, most: float) -> int:
    async def echo(message: Message) -> bytes:
        return message.payload

    stop, name = asyncio.Event(), f"rr-{time.time_ns()}"
    sends, asked = [], []
    async with connect(url) as client, connect(url) as other, asyncio.TaskGroup() as tasks:
        tasks.create_task(other.run(echo, name, "responders", stop=stop))
        async with client.producer(f"{name}-lone") as producer:
            await client.request(name, b"x" * 100, timeout_s=30)
            for _ in range(runs):
                sends.append(await timed("send   ", lambda: producer.send(b"x" * 100), requests))
                asked.append(
                    await timed("request", lambda: client.request(name, b"x" * 100, timeout_s=30), requests)
                )
        stop.set()
    ratio = statistics.median(asked) / statistics.median(sends)
    print(
        f"median of p50: send {statistics.median(sends):.3f} ms, request {statistics.median(asked):.3f} ms, ratio {ratio:.2f}"
    )
    return int(ratio > most)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--broker", default="")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--most", type=float, default=2.5)
    given = parser.parse_args()
    if given.broker:
        raise SystemExit(asyncio.run(main(given.broker, given.requests, given.runs, given.most)))
    with InMemoryCluster() as cluster:
        raise SystemExit(asyncio.run(main(cluster.url, given.requests, given.runs, given.most)))
