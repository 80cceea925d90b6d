"""What one tenant costs another: a quiet one alone, and beside one that brings ten times its share.

    python benchmarks/tenants.py [--runs 3] [--seconds 10] [--share 1000] [--times 10] [--no-quota] [--json]

Each tenant is a namespace with a quota of `--share` messages a second, in both directions, and a process of its own. The quiet
one sends half its share, open loop (a message is due at its time, whether the one before was answered or not), and reads what
it sends; its latency is from the time that a message was due to its receipt. The loud one tries `--times` its share. Runs alone and
beside the loud one take turns; medians of the runs are shown, and what is left of the quiet one's throughput and how often
its p99 fits into that beside the loud one. `--no-quota` shows what the quotas are for.

Messages have 1 KiB; data is on the disk of the temporary folder, and fsynced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube import PendingSend, Producer, WindowFull, connect

from benchmarks.measuring import USUAL, danube, parser_of
from tests.support.broker_process import BrokerProcess

PAYLOAD: Final = bytes(1024)
TICK_S: Final = 0.01


async def load(url: str, topic: str, rate: float, seconds: float) -> None:
    """Send `rate` messages a second for that long, and read them; print what came through, and how late.

    The process ends at once: what waits for its quota is not waited for.
    """
    waits: list[float] = []
    async with connect(url) as client, client.producer(topic) as producer:
        reading = asyncio.create_task(_read(url, topic))
        sent = await _send(producer, rate, seconds, waits)
        told = producer.statistics()
        cuts = quantiles(waits, n=100) if len(waits) > 100 else [0.0] * 99
        found = {
            "sent_per_s": sent / seconds,
            "p50_ms": round(cuts[49] * 1000, 2),
            "p99_ms": round(cuts[98] * 1000, 2),
            "throttled_by": told.throttled_by,
        }
        reading.cancel()
        print(json.dumps(found), flush=True)
        os._exit(0)


async def _send(producer: Producer, rate: float, seconds: float, waits: list[float]) -> int:
    """Send at an even pace; return how many were answered in time, and append the seconds from due to answered to `waits`."""
    loop = asyncio.get_running_loop()
    begun, due, answered = loop.time(), 0, 0
    under_way: set[asyncio.Task[None]] = set()

    async def answer(handles: list[PendingSend], at: float) -> None:
        nonlocal answered
        for handle in handles:
            await handle
            waits.append(loop.time() - at)
            answered += loop.time() - begun <= seconds

    while (now := loop.time() - begun) < seconds:
        wanted, handles = int(now * rate), []
        try:
            while due < wanted:
                handles.append(producer.send_nowait(PAYLOAD))
                due += 1
        except WindowFull:
            due = wanted  # what finds no room is not sent
        if handles:
            task = asyncio.create_task(answer(handles, loop.time()))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.sleep(TICK_S)
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
    return answered


async def _read(url: str, topic: str) -> None:
    async with connect(url) as client, client.reader(topic, start="latest") as reader:
        async for _ in reader:
            pass


def tenant(url: str, topic: str, rate: float, seconds: float) -> subprocess.Popen[bytes]:
    words = [sys.executable, __file__, "--load", url, topic, str(rate), str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def result_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit("a tenant's process failed; see above")
    found: dict[str, Any] = json.loads(out)
    return found


def compare(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {"alone": [], "beside": [], "loud": []}
    with BrokerProcess(folder, environment=USUAL) as broker:
        where = ("--admin", broker.admin)
        for namespace in ("quiet", "loud"):
            danube("namespaces", "create", namespace, *where)
            if not given.no_quota:
                limits = {"messages_in_per_s": given.share, "messages_out_per_s": given.share}
                danube("quotas", "set", "--namespace", namespace, "--limits", json.dumps(limits), *where)
        for number in range(given.runs):
            for name in ("alone", "beside"):
                loud = None
                if name == "beside":
                    rate = given.share * given.times
                    loud = tenant(broker.url, f"/loud/t{number}", rate, given.seconds + 4)
                    asyncio.run(asyncio.sleep(2))
                topic = f"/quiet/{name}{number}"
                found[name].append(result_of(tenant(broker.url, topic, given.share / 2, given.seconds)))
                if loud is not None:
                    found["loud"].append(result_of(loud))
    shown: dict[str, Any] = {
        f"{name}_{key}": round(median(each[key] for each in runs), 2)
        for name, runs in found.items()
        for key in ("sent_per_s", "p50_ms", "p99_ms")
    }
    shown["loud_throttled_by"] = found["loud"][-1]["throttled_by"]
    shown["left_percent"] = round(100 * shown["beside_sent_per_s"] / shown["alone_sent_per_s"], 1)
    shown["p99_times"] = round(shown["beside_p99_ms"] / shown["alone_p99_ms"], 2)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--share", type=int, default=1000)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--no-quota", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--load", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.load:
        url, topic, rate, seconds = given.load
        asyncio.run(load(url, topic, float(rate), float(seconds)))
        return
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="danube-tenants-") as folder:
        found = compare(Path(folder), given)
    found["load"] = round(began, 1)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"quiet alone: {found['alone_sent_per_s']:,.0f} messages/s, p99 {found['alone_p99_ms']} ms\n"
        f"beside one that tries {given.times} times its share: {found['beside_sent_per_s']:,.0f} messages/s, p99 "
        f"{found['beside_p99_ms']} ms: {found['left_percent']} % are left, the p99 is {found['p99_times']} times as long\n"
        f"the loud one: {found['loud_sent_per_s']:,.0f} messages/s, throttled by {found['loud_throttled_by']} "
        f"(load {found['load']} when it began)"
    )


if __name__ == "__main__":
    main()
