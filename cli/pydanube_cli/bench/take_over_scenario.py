"""Part of `danube bench failover`: a broker is lost under load, and others take its topics over from its chain."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydanube import Client, Retry, connect
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId

from pydanube_cli.bench.own_cluster import BROKERS, OwnCluster, own_cluster, until
from pydanube_cli.render import prose

LOADED_S: Final = 3.0  # all topics are written for so long before the broker is killed
PAUSE_S: Final = 0.2  # between two sends to a topic
PATIENCE: Final = Retry(max_elapsed_s=120.0)
CALM_S: Final = 11.0  # the leader takes nothing over in its first lease
TAKING: Final = {"DANUBE_JOURNAL__COPY": "true", "DANUBE_CLUSTER__ON_LOSS": "take_over"}

Found = dict[str, Any]


async def taken_over(
    topics: int, runs: int, home: Path | None
) -> tuple[list[float], list[float], list[Found]]:
    """Kill a broker with so many topics that are being written, `runs` times.

    Returns:
        For each topic and run the seconds from the end of the broker's lease to the topic's first acknowledgement, for
        each run the seconds until the slowest topic, and the counts of messages.
    """
    all_late: list[float] = []
    slowest: list[float] = []
    verified: list[Found] = []
    for number in range(runs):
        async with own_cluster(home, environment=TAKING) as cluster:
            begun_s = time.monotonic()
            leader = await cluster.leader()
            victim = next(n for n in range(1, BROKERS + 1) if n != leader)
            prose(f"run {number + 1} of {runs}: making {topics} topics at one broker")
            names = await cluster.partitions_of(victim, topics)
            await asyncio.sleep(max(0.0, begun_s + CALM_S - time.monotonic()))
            late, counts = await _lost(cluster, victim, names)
        prose(
            f"served after {median(late):.2f} s, the last topic after {max(late):.2f} s. {counts['missing']} of "
            f"{counts['sent']} messages are missing"
        )
        all_late += late
        slowest.append(max(late))
        verified.append(counts)
    return all_late, slowest, verified


async def _lost(cluster: OwnCluster, victim: int, names: Sequence[str]) -> tuple[list[float], Found]:
    """Kill the broker; return each topic's seconds from the end of the lease to its first acknowledgement, and counts."""
    other = next(n for n in range(1, BROKERS + 1) if n != victim)
    member = keys.member_key(BrokerId(int(cluster.local.facts(victim)["broker_id"])))
    acknowledged: dict[str, list[float]] = {name: [] for name in names}
    enough = asyncio.Event()

    async def send(client: Client, name: str) -> None:
        async with client.producer(name) as producer:
            while not enough.is_set():
                await producer.send(len(acknowledged[name]).to_bytes(8, "little") + bytes(120))
                acknowledged[name].append(time.perf_counter())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(enough.wait(), PAUSE_S)

    async def all_answered(since_s: float) -> bool:
        return all(each and each[-1] >= since_s for each in acknowledged.values())

    async def is_over() -> bool:
        return await cluster.store.get(member) is None

    async with connect(cluster.broker(other).url, retry=PATIENCE) as client, asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(send(client, name))
        await until(lambda: all_answered(time.perf_counter() - 10 * PAUSE_S), "all topics are written")
        await asyncio.sleep(LOADED_S)
        await cluster.local.kill_broker(victim)
        await until(is_over, "the lease is over")
        over_s = time.perf_counter()
        await until(lambda: all_answered(over_s), "all topics are served again")
        enough.set()
    late = [next(each for each in times if each >= over_s) - over_s for times in acknowledged.values()]
    return late, await _read_back(cluster, other, {name: len(times) for name, times in acknowledged.items()})


async def _read_back(cluster: OwnCluster, at: int, acknowledged: Mapping[str, int]) -> Found:
    received = missing = duplicates = unordered = 0
    async with connect(cluster.broker(at).url, retry=PATIENCE) as client:
        for name, sent in acknowledged.items():
            async with client.reader(name, stop="head") as reader:
                numbers = [int.from_bytes(each.payload[:8], "little") async for each in reader]
            received += len(numbers)
            missing += len(set(range(sent)).difference(numbers))
            duplicates += len(numbers) - len(set(numbers))
            unordered += sum(b < a for a, b in pairwise(numbers))
    sent = sum(acknowledged.values())
    return {
        "sent": sent,
        "received": received,
        "missing": missing,
        "duplicates": duplicates,
        "out_of_order": unordered,
    }
