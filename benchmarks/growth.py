"""How the broker's cost grows with its work: each case at three sizes, its exponent, and the longest stop of the loop.

    python benchmarks/growth.py                       # all cases
    python benchmarks/growth.py --only vanish --json
    python benchmarks/growth.py --scale 0.1           # a tenth of each size

A broker runs in this process, in memory. The cost of a case is the processor time of the loop's thread while it works. The
exponent is the slope of cost over size, both as logarithms, by least squares. A stop is the processor time between two turns
of the loop, which is how long other callers wait on an idle machine. Exit 1 if an exponent is above 1.1 or a stop above
50 ms, or above what the case states.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.services import CONSUMER_SERVICE

from benchmarks.loop_stalls import Ticker
from tests.admin.real_broker import Administered, administered

EXPONENT: Final = 1.1
STOP_MS: Final = 50.0
ON_A_CONNECTION: Final = 50  # official consumers; a client that vanishes takes all of its connections along
BURST: Final = 500

Work = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of work.

    Args:
        make: prepare a broker for a size, and return the work that is measured.
        again: the work can be repeated. The best of three counts then.
        exponent, stop_ms: bounds, with the reason where they are not the usual ones.
    """

    name: str
    sizes: tuple[int, int, int]
    make: Callable[[Administered, int, ExitStack], Awaitable[Work]]
    again: bool = True
    exponent: float = EXPONENT
    stop_ms: float = STOP_MS
    reason: str = ""


async def consume(url: str, count: int) -> None:
    """Attach official consumers of one subscription, tell so, and stay."""
    transports = [Http2Transport(url) for _ in range(-(-count // ON_A_CONNECTION))]
    streams = []
    for number in range(count):
        transport = transports[number // ON_A_CONNECTION]
        wanted = pb.ConsumerRequest(
            topic_name="/default/t", consumer_name=f"c{number}", subscription="s", subscription_type="Shared"
        )
        path = CONSUMER_SERVICE["Subscribe"].path
        answer = await transport.call(path, wanted.SerializeToString(), timeout_s=60)
        number = pb.ConsumerResponse.FromString(answer).consumer_id
        request = pb.ReceiveRequest(consumer_id=number).SerializeToString()
        streams.append(await transport.ask(CONSUMER_SERVICE["ReceiveMessages"].path, request))
    print("ready", flush=True)
    await asyncio.Event().wait()


async def attached(cluster: Administered, count: int, ends: ExitStack) -> tuple[Any, subprocess.Popen[bytes]]:
    """Return the subscription, once a process has that many consumers of it."""
    await cluster("topics.create", topic="t")
    await cluster("subscriptions.create", topic="t", subscription="s", type="shared")
    pump: Any = part(cluster, "t").subscriptions["s"]
    words = [sys.executable, __file__, "--consume", cluster.broker.broker_url, "--count", str(count)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)  # noqa: ASYNC220
    ends.callback(process.kill)
    while len(pump.links) < count:
        assert process.poll() is None
        await asyncio.sleep(0.1)
    return pump, process


def part(cluster: Administered, topic: str) -> Any:
    return cluster.broker.registry.parts(TopicName.parse(topic))[1][0]


async def vanish(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """Consumers whose process is killed, each with a message."""
    pump, process = await attached(cluster, count, ends)
    await cluster.publish("t", *[b"x"] * count)
    while pump.core().window.in_flight < count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)

    async def work() -> None:
        process.kill()
        while pump.links:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        process.wait()

    return work


async def burst(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """A burst of single messages to many consumers."""
    await attached(cluster, count, ends)

    async def work() -> None:
        for _ in range(BURST):
            await cluster.publish("t", b"x")

    return work


async def subscriptions(cluster: Administered, count: int, topic: str = "t") -> None:
    await cluster("topics.create", topic=topic)
    for number in range(count):
        start = Position.parse("earliest", now_ms=0)
        await cluster.broker.registry.subscribe(
            part(cluster, topic), f"s{number}", type="shared", start=start, start_given=False
        )


async def metrics(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """`/metrics` of a topic with many subscriptions."""
    await subscriptions(cluster, count)
    return cluster.broker.port.metrics


async def delete(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """A topic with many subscriptions is deleted."""
    await subscriptions(cluster, count)
    return lambda: cluster.apply("topics.delete", topic="t")


async def partitions(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """`topics.describe` of many partitions."""
    await cluster("topics.create", topic="t", partitions=count)
    return lambda: cluster("topics.describe", topic="t")


async def search(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """`messages.search` of a topic without a match."""
    await cluster("topics.create", topic="t")
    for _ in range(count // 1000):
        await cluster.publish("t", *[b"{" + b"y" * 200 + b"}"] * 1000)
    return lambda: cluster("messages.search", topic="t", contains="nothing like it")


async def schemas(cluster: Administered, count: int) -> None:
    for number in range(count):
        await register(cluster, f"subject-{number:06d}")


async def register(cluster: Administered, subject: str) -> None:
    await cluster("schemas.register", subject=subject, schema_type="json_schema", schema_definition="{}")


async def schemas_list(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """`schemas.list`, one page."""
    await schemas(cluster, count)
    return lambda: cluster("schemas.list", limit=100)


async def schemas_register(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """A registration beside many subjects."""
    await schemas(cluster, count)
    names = (f"new-{number}" for number in range(1000))
    return lambda: register(cluster, next(names))


async def roles(cluster: Administered, count: int, ends: ExitStack) -> Work:
    """A role is created beside many."""
    for number in range(count):
        await cluster("roles.create", role=f"role-{number:06d}", permissions="topics:read")
    names = (f"new-{number}" for number in range(1000))
    return lambda: cluster("roles.create", role=next(names), permissions="topics:read")


CASES: Final = (
    Case(name="vanish", sizes=(300, 1000, 3000), make=vanish, again=False),
    Case(name="burst", sizes=(30, 300, 3000), make=burst),
    Case(name="metrics", sizes=(300, 1000, 3000), make=metrics),
    Case(name="delete", sizes=(300, 1000, 3000), make=delete, again=False),
    Case(name="describe", sizes=(100, 300, 1000), make=partitions),
    Case(name="search", sizes=(10_000, 30_000, 100_000), make=search),
    Case(name="schemas.list", sizes=(300, 1000, 3000), make=schemas_list),
    Case(name="schemas.register", sizes=(300, 1000, 3000), make=schemas_register),
    Case(name="roles", sizes=(300, 1000, 3000), make=roles),
)


async def measured(case: Case, size: int) -> tuple[float, float]:
    """Return the processor time in ms and the longest stop in ms of one case."""
    async with administered() as cluster:
        with ExitStack() as ends:
            work = await case.make(cluster, size, ends)
            found = []
            for _ in range(3 if case.again else 1):
                gc.collect()
                gc.freeze()
                await asyncio.sleep(0.3)
                ticker, begun = Ticker(), time.thread_time()
                await work()
                found.append(((time.thread_time() - begun) * 1000, ticker.stop()))
            return min(cost for cost, _ in found), min(stop for _, stop in found)


def exponent(sizes: tuple[int, ...], costs: list[float]) -> float:
    xs, ys = [math.log(size) for size in sizes], [math.log(max(cost, 0.01)) for cost in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", action="append", choices=[case.name for case in CASES])
    options.add_argument("--scale", type=float, default=1.0)
    options.add_argument("--json", action="store_true")
    options.add_argument("--consume", help=argparse.SUPPRESS)
    options.add_argument("--count", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.consume:
        asyncio.run(consume(chosen.consume, chosen.count))
        return 0
    good, rows = True, []
    for case in CASES:
        if chosen.only and case.name not in chosen.only:
            continue
        sizes = tuple(max(1, int(size * chosen.scale)) for size in case.sizes)
        found = [asyncio.run(measured(case, size)) for size in sizes]
        grows, stop = exponent(sizes, [cost for cost, _ in found]), found[-1][1]
        held = grows <= case.exponent and stop <= case.stop_ms
        good = good and held
        rows.append(
            {
                "case": case.name,
                "sizes": sizes,
                "cost_ms": [round(cost, 2) for cost, _ in found],
                "exponent": round(grows, 2),
                "stop_ms": round(stop, 1),
                "held": held,
            }
        )
        if not chosen.json:
            print(" ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if chosen.json:
        print(json.dumps(rows, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
