"""The handler loop beside the same work in a loop written by hand: `async for`, call, ack.

    python benchmarks/handler_loop.py [--messages 200000] [--runs 7]

Both consume the same topic of a broker in memory, in turns. Prints messages a second of each run, the medians and their
ratio; exit 1 below `--least` (0.9).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from pydanube import Client, Message
from pydanube.testing import InMemoryCluster


class Counted:
    """A function that counts; says when the first and the last have come."""

    def __init__(self, messages: int) -> None:
        self.messages = self.left = messages
        self.since, self.done = 0.0, asyncio.Event()

    async def __call__(self, message: Message) -> None:
        if self.left == self.messages:
            self.since = time.perf_counter()
        self.left -= 1
        if not self.left:
            self.rate = self.messages / (time.perf_counter() - self.since)
            self.done.set()


async def by_hand(client: Client, subscription: str, messages: int) -> float:
    handler = Counted(messages)
    async with client.consumer("t", subscription, type="shared") as consumer:
        async for message in consumer:
            await handler(message)
            await message.ack()
            if handler.done.is_set():
                break
    return handler.rate


async def by_loop(client: Client, subscription: str, messages: int) -> float:
    handler = Counted(messages)
    await client.run(handler, "t", subscription, stop=handler.done)
    return handler.rate


async def main(messages: int, runs: int, least: float) -> int:
    hand, loop = [], []
    with InMemoryCluster() as cluster:
        async with cluster.connect() as client:
            async with client.producer("t") as producer:
                await producer.send_many([b"x" * 100] * messages)
            for run in range(runs):
                hand.append(await by_hand(client, f"hand-{run}", messages))
                loop.append(await by_loop(client, f"loop-{run}", messages))
                print(f"run {run}: by hand {hand[-1]:,.0f}/s, loop {loop[-1]:,.0f}/s", flush=True)
    ratio = statistics.median(loop) / statistics.median(hand)
    print(
        f"median by hand {statistics.median(hand):,.0f}/s, loop {statistics.median(loop):,.0f}/s, ratio {ratio:.2f}"
    )
    return int(ratio < least)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.9)
    given = parser.parse_args()
    raise SystemExit(asyncio.run(main(given.messages, given.runs, given.least)))
