"""Part of `danube bench failover`: a broker is lost under load, and others take its topics over from its chain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydanube import Client, connect
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId

from pydanube_cli.bench.own_cluster import BROKERS, PATIENCE, OwnCluster, own_cluster, until
from pydanube_cli.render import prose

LOADED_S: Final = 3.0
PAUSE_S: Final = 0.2  # between two sends to a topic, unless there are many topics
#: messages per second to all topics. More would take the processor time that is measured.
MOST_PER_S: Final = 2_000
#: between an acknowledgement and the copy of the message in the store: the linger of 0.1 s, a request, and a busy machine
COPIED_S: Final = 1.0
CALM_S: Final = 11.0  # the leader takes nothing over in its first lease
TAKING: Final = {"DANUBE_JOURNAL__COPY": "true", "DANUBE_CLUSTER__ON_LOSS": "take_over"}

Found = dict[str, Any]


async def taken_over(
    topics: int, runs: int, home: Path | None, *, written: int | None = None, loaded_s: float = LOADED_S
) -> tuple[list[float], list[float], list[Found]]:
    """Kill a broker with `topics` topics, `runs` times.

    Args:
        written: number of topics that get messages, None for all.
        loaded_s: seconds for which they get messages before the broker is killed.

    Returns:
        For each written topic and run the seconds from the end of the broker's lease to the topic's first acknowledgement, for
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
            late, counts = await _lost(cluster, victim, names[-written:] if written else names, loaded_s)
        prose(
            f"served after {median(late):.2f} s, the last topic after {max(late):.2f} s. {counts['not_copied']} of "
            f"{counts['sent']} messages were not copied, the first of them acknowledged {counts['not_copied_s']:.2f} s before "
            f"the kill. {counts['missing']} others are missing"
        )
        all_late += late
        slowest.append(max(late))
        verified.append(counts)
    return all_late, slowest, verified


async def _lost(
    cluster: OwnCluster, victim: int, names: Sequence[str], loaded_s: float
) -> tuple[list[float], Found]:
    """Kill the broker. Return for each topic the seconds from the end of the lease to its first receipt, and counts."""
    other = next(n for n in range(1, BROKERS + 1) if n != victim)
    member = keys.member_key(BrokerId(int(cluster.local.facts(victim)["broker_id"])))
    acknowledged: dict[str, list[float]] = {name: [] for name in names}
    pause_s = max(PAUSE_S, len(names) / MOST_PER_S)
    enough = asyncio.Event()

    async def send(client: Client, name: str) -> None:
        async with client.producer(name) as producer:
            while not enough.is_set():
                await producer.send(len(acknowledged[name]).to_bytes(8, "little") + bytes(120))
                acknowledged[name].append(time.perf_counter())
                await asyncio.sleep(pause_s)  # a wait for `enough`, too, would cost a third of this process

    async def all_answered(since_s: float) -> bool:
        return all(each and each[-1] >= since_s for each in acknowledged.values())

    async def is_over() -> bool:
        return await cluster.store.get(member) is None

    async with connect(cluster.broker(other).url, retry=PATIENCE) as client, asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(send(client, name))
        await until(lambda: all_answered(time.perf_counter() - 10 * pause_s), "all topics are written")
        await asyncio.sleep(loaded_s)
        killed_s = time.perf_counter()
        await cluster.local.kill_broker(victim)
        await until(is_over, "the lease is over")
        over_s = time.perf_counter()
        await until(lambda: all_answered(over_s), "all topics are served again")
        enough.set()
    late = [next(each for each in times if each >= over_s) - over_s for times in acknowledged.values()]
    return late, await _read_back(cluster, other, acknowledged, killed_s, over_s)


async def _read_back(
    cluster: OwnCluster, at: int, acknowledged: Mapping[str, Sequence[float]], killed_s: float, over_s: float
) -> Found:
    """Compare the topics with the times of the acknowledgements, and count.

    `not_copied`: messages that are missing because the copy of the journal may not have had them when the broker was killed:
    acknowledged less than `COPIED_S` before that, by this broker. `not_copied_s`: the most that one was acknowledged before.
    `missing`: all others that are missing.
    """
    received = missing = duplicates = unordered = 0
    not_copied: list[float] = []
    async with connect(cluster.broker(at).url, retry=PATIENCE) as client:
        for name, times in acknowledged.items():
            async with client.reader(name, stop="head") as reader:
                numbers = [int.from_bytes(each.payload[:8], "little") async for each in reader]
            received += len(numbers)
            lost_s = [times[number] for number in set(range(len(times))).difference(numbers)]
            ages_s = [killed_s - each for each in lost_s if killed_s - COPIED_S <= each < over_s]
            not_copied += ages_s
            missing += len(lost_s) - len(ages_s)
            duplicates += len(numbers) - len(set(numbers))
            unordered += sum(b < a for a, b in pairwise(numbers))
    return {
        "sent": sum(map(len, acknowledged.values())),
        "received": received,
        "missing": missing,
        "duplicates": duplicates,
        "out_of_order": unordered,
        "not_copied": len(not_copied),
        "not_copied_s": round(max(not_copied, default=0.0), 3),
    }
