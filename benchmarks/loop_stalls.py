"""How long one request keeps a broker's loop from everybody else, at 10 000 topics.

    python benchmarks/loop_stalls.py                    # 10 000 topics with a subscription each
    python benchmarks/loop_stalls.py --topics 2000 --json

A broker runs in this process, in memory. Beside each request a ticker runs in its loop; what it reports is the processor time
of the loop's thread between two ticks, the longest of them: what others wait for on a machine that does nothing else,
and the same figure on a busy one. Goal: 50 ms each.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_core.names import TopicName
from pydanube_core.positions import Position

from tests.admin.real_broker import Administered, administered

GOAL_MS: Final = 50.0
HOLES: Final = 32_000
FULL_CURSORS: Final = 8


class Ticker:
    """The longest time of the loop's thread between two turns of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = time.thread_time()
        self._on = True
        self.longest_ms = 0.0
        self._tick()

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest_ms = max(self.longest_ms, (now - self._at) * 1000)
        self._at = now
        if self._on:
            self._loop.call_soon(self._tick)

    def stop(self) -> float:
        self._on = False
        self._tick()
        return self.longest_ms


async def measured(work: Callable[[], Awaitable[Any]]) -> float:
    """The best of three: what is left is the request's own, not the garbage collector's that came by."""
    found = []
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0.05)
        ticker = Ticker()
        await work()
        found.append(ticker.stop())
    return min(found)


async def fill(cluster: Administered, topics: int) -> None:
    registry = cluster.broker.registry
    for number in range(topics):
        name = TopicName.parse(f"topic-{number:05d}")
        await registry.create(
            name, partitions=0, dispatch_strategy="reliable", durability="fsynced", options={}
        )
        topic = registry.parts(name)[1][0]
        earliest = Position.parse("earliest", now_ms=0)
        await registry.subscribe(topic, "s", type="shared", start=earliest, start_given=False)
        if number % 1000 == 999:
            print(f"{number + 1} topics", file=sys.stderr, flush=True)


async def full_cursors(cluster: Administered) -> list[Any]:
    """Subscriptions of which every second message of the longest span is acknowledged."""
    await cluster("topics.create", topic="holes")
    for number in range(FULL_CURSORS):
        await cluster("subscriptions.create", topic="holes", subscription=f"s{number}", type="shared")
    topic = cluster.broker.registry.parts(TopicName.parse("holes"))[1][0]
    for _ in range(0, 2 * HOLES, 1000):
        await cluster.publish("holes", *[b"x"] * 1000)
    return list(topic.subscriptions.values())


def make_holes(pump: Any) -> None:
    pump.restore_cursor(
        CursorSnapshot(floor=0, acknowledged=tuple((at, at + 1) for at in range(1, 2 * HOLES, 2)))
    )


async def run(topics: int) -> dict[str, float]:
    async with administered() as cluster:
        await fill(cluster, topics)
        port, registry = cluster.broker.port, cluster.broker.registry

        async def unknown() -> None:
            await cluster.refused("topics.describe", topic="topik-00001")

        async def ten_unknown() -> None:
            await asyncio.gather(
                *(cluster.refused("topics.describe", topic=f"topik-{n:05d}") for n in range(10))
            )

        async def expiry() -> None:
            await cluster.broker._expire_sessions()

        works: dict[str, Callable[[], Awaitable[Any]]] = {
            "topics.list": lambda: cluster("topics.list", limit=1000),
            "topics.list filter": lambda: cluster("topics.list", filter="*999*", limit=1000),
            "subscriptions.lag": lambda: cluster("subscriptions.lag", limit=1000),
            "/metrics": lambda: port.metrics(),
            "/status": lambda: port.status(),
            "unknown topic": unknown,
            "ten unknown topics at once": ten_unknown,
            "session expiry": expiry,
            "diagnose.cluster": lambda: cluster("diagnose.cluster"),
            "topics.list, sorted": lambda: cluster("topics.list", sort="-bytes", top=10),
            "subscriptions.list, sorted": lambda: cluster("subscriptions.list", sort="-lag_messages", top=10),
            "subscriptions.lag, sorted": lambda: cluster("subscriptions.lag", sort="-lag_messages", top=10),
            "operations.find": lambda: cluster("operations.find", query="keep messages for 30 days"),
            "namespaces.list": lambda: cluster("namespaces.list"),
            "deleted topics": lambda: registry.deleted.forget(1),
        }
        found = {}
        for name, work in works.items():
            try:
                found[name] = await measured(work)
            except Exception as error:
                print(f"{name}: {error!r}", file=sys.stderr)
        pumps = await full_cursors(cluster)
        pump = pumps[0]

        async def written() -> None:
            while any(one.dirty for one in pumps):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        for one in pumps:
            make_holes(one)
        ticker = Ticker()
        await written()
        found[f"{FULL_CURSORS} cursors of {HOLES} holes: written"] = ticker.stop()

        async def snapshot() -> None:
            pump._snapshot_stale = True
            pump.store_snapshot()

        async def delta() -> None:
            pump.write_cursor()

        found[f"cursor of {HOLES} holes: delta"] = await measured(delta)
        found[f"cursor of {HOLES} holes: snapshot"] = await measured(snapshot)
        found[f"cursor of {HOLES} holes: lag"] = await measured(
            lambda: cluster("subscriptions.lag", topic="holes")
        )
        return found


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--topics", type=int, default=10_000)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    found = asyncio.run(run(chosen.topics))
    if chosen.json:
        print(json.dumps({name: round(ms, 2) for name, ms in found.items()}, indent=2))
    else:
        for name, ms in found.items():
            print(f"{name:<36}{ms:>9.1f} ms{'' if ms <= GOAL_MS else '  ABOVE ' + str(GOAL_MS)}")
    return 0 if all(ms <= GOAL_MS for ms in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
