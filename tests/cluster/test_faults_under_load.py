"""Three real brokers under load while something fails: what was acknowledged is there, once, in order, and is delivered.

Each fault strikes twice, by itself and in the middle of a move. The seed decides what is struck, and when.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from pydanube import connect

from tests.cluster.networks import ETCD
from tests.cluster.real_cluster import BROKERS, RealCluster, real_cluster
from tests.support.faulty_proxy import Fault as StoreFault
from tests.support.history import History
from tests.support.load import PATIENCE, Load, read_topic
from tests.support.progress import Progress

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(3000)]
ORDERS = "/default/orders"
KEYS = "/default/keys"
BEYOND_LEASE_S = 13.0  # a lease is 10 s
ETCD_AWAY_S = 60.0
STORE_AWAY_S = 12.0


class Fault(StrEnum):
    KILL = "a broker is killed"
    KILL_LEADER = "the leader is killed"
    STALL = "a broker stands still for longer than its lease"
    ETCD_LEADER = "the leader of etcd stands still"
    ETCD = "etcd is away for a minute"
    ETCD_CUT = "a broker is cut off from etcd for longer than its lease"
    STORE = "the store does not answer"
    STORE_BUSY = "the store refuses all"
    CUT = "two brokers do not reach each other"
    CUT_ONE_WAY = "what one broker sends to another is lost"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with real_cluster(tmp_path) as cluster:
        yield cluster


async def strike(cluster: RealCluster, fault: Fault, rng: random.Random) -> None:
    """Let it happen, and be over."""
    brokers, etcd = cluster.brokers, cluster.etcd
    one, other = rng.sample(BROKERS, 2)
    match fault:
        case Fault.KILL | Fault.KILL_LEADER:
            hit = brokers[(await cluster.leader() if fault is Fault.KILL_LEADER else None) or one]
            await to_thread.run_sync(hit.kill)
            await to_thread.run_sync(hit.start)
        case Fault.STALL:
            brokers[one].pause()
            await anyio.sleep(BEYOND_LEASE_S)
            brokers[one].resume()
        case Fault.ETCD_LEADER:
            member = await to_thread.run_sync(etcd.leader)
            etcd.stall(member)
            await anyio.sleep(BEYOND_LEASE_S)
            etcd.resume(member)
        case Fault.ETCD:
            for member in range(3):
                etcd.stall(member)
            await anyio.sleep(ETCD_AWAY_S)
            for member in range(3):
                etcd.resume(member)
        case Fault.ETCD_CUT:
            cluster.networks.cut(one, ETCD)
            await anyio.sleep(BEYOND_LEASE_S)
            cluster.networks.heal()
        case Fault.STORE | Fault.STORE_BUSY:
            cluster.store.fault = StoreFault.HANG if fault is Fault.STORE else StoreFault.BUSY
            await anyio.sleep(STORE_AWAY_S)
            cluster.store.fault = None
        case Fault.CUT | Fault.CUT_ONE_WAY:
            cluster.networks.cut(one, other)
            if fault is Fault.CUT:
                cluster.networks.cut(other, one)
            await anyio.sleep(BEYOND_LEASE_S)
            cluster.networks.heal()


@asynccontextmanager
async def under_load(cluster: RealCluster, seed: object) -> AsyncIterator[Progress]:
    """Producers and consumers at work; in the end all that they were told is held against what is there."""
    await cluster.start()
    history, progress = History(seed), Progress()
    load = Load(cluster.urls, history, progress.one, pause_s=0.05)
    logs = [history.consumer(ORDERS, "batches"), history.consumer(ORDERS, "holes")]
    logs.append(history.consumer(KEYS, "keys"))
    finished = anyio.Event()
    ends: dict[str, dict[int | None, int]] = {}
    async with anyio.create_task_group() as consuming:
        async with anyio.create_task_group() as producing:
            producing.start_soon(lambda: load.lone("lone", ORDERS, seed, style="full"))
            producing.start_soon(lambda: load.bursts("bursts", ORDERS, seed))
            producing.start_soon(lambda: load.lone("keyed", KEYS, seed, style="keyed"))
            producing.start_soon(lambda: load.bursts("keyed-bursts", KEYS, seed, style="keyed"))
            await progress.more(20)
            consuming.start_soon(load.consume_batches, logs[0], finished.is_set)
            consuming.start_soon(load.consume_messages, logs[1], seed, finished.is_set)
            for member in ("one", "other"):
                consuming.start_soon(load.consume_keys, logs[2], member, finished.is_set)
            await progress.more(20)
            yield progress
            load.stop()
        async with connect(cluster.urls, retry=PATIENCE) as client:
            for topic in (ORDERS, KEYS):
                rows = await read_topic(client, topic)
                history.check_log(topic, rows)
                ends[topic] = {partition: len(found) for partition, found in rows.items()}
        await _all_acknowledged(cluster)
        finished.set()
    for topic in (ORDERS, KEYS):
        history.check_consumers(topic, ends[topic])
    history.check_no_failures()
    print(
        f"{history.acknowledged} messages acknowledged, {sum(sum(o.values()) for o in ends.values())} stored"
    )


async def _all_acknowledged(cluster: RealCluster) -> None:
    end = time.monotonic() + 300
    while True:
        items = (await cluster.call("subscriptions.lag", {"limit": 100}))["items"]
        if len(items) == 3 and not any(item["lag_messages"] for item in items):
            return
        assert time.monotonic() < end, items
        await anyio.sleep(0.2)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
async def test_nothing_is_lost_doubled_or_out_of_order(cluster: RealCluster, fault: Fault) -> None:
    seed = os.environ.get("CLUSTER_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"CLUSTER_SEED={seed}")
    rng = random.Random(f"{seed}/{fault}")
    async with under_load(cluster, seed) as progress:
        await strike(cluster, fault, rng)
        await progress.more(20)
        for topic in (ORDERS, KEYS):
            while not await cluster.begin_move(topic):  # noqa: ASYNC110
                await anyio.sleep(0.2)
        await anyio.sleep(rng.random() * 0.6)  # a move takes 50 to 500 ms
        await strike(cluster, fault, rng)
        await progress.more(20)


async def test_brokers_are_replaced_one_by_one(cluster: RealCluster) -> None:
    async with under_load(cluster, "rolling") as progress:
        for n in BROKERS:
            await cluster.replace(n)
            await progress.more(20)
