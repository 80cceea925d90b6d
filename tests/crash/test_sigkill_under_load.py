"""SIGKILL at random moments, under load, during start and recovery: nothing acknowledged is lost, doubled or moved.

One broker lives many lives on one data directory; its clients never learn of it except by waiting. A failure prints
the seed: put it into SEEDS, where it stays.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube import connect
from pydanube_admin.remote import OpsClient

from tests.support.broker_process import BrokerProcess
from tests.support.history import History
from tests.support.load import PATIENCE, Load, read_topic
from tests.support.progress import Progress

ORDERS = "/default/orders"
PARTS = "/default/parts"
# Small segments: a round crosses several, so that kills meet rolling, heads and clean-up too.
ENVIRONMENT = {"DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB", "DANUBE_DATA__MIN_FREE_BYTES": "1MiB"}

Make = Callable[..., BrokerProcess]


class _Rounds:
    """The killer: waits for progress of the producers, kills, starts again."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.progress = Progress()

    async def one(self) -> None:
        await self.progress.more(self.rng.choice((1, 2, 5, 20, 80, 200)))
        # A random moment between two answers: the point of the exercise, nothing depends on its length.
        await anyio.sleep(self.rng.random() * 0.03)
        await to_thread.run_sync(self.broker.kill)
        while self.rng.random() < 0.35:
            # Die again while it starts: anywhere between exec and the ready line.
            self.broker.begin()
            await anyio.sleep(self.rng.random() * 4)
            await to_thread.run_sync(self.broker.kill)
        await to_thread.run_sync(self.broker.start)


async def run(broker: BrokerProcess, seed: object, rounds: int, deadline_s: float) -> None:
    rng = random.Random(f"{seed}")
    history = History(seed)
    with anyio.fail_after(deadline_s):
        await to_thread.run_sync(broker.start)
        rounds_of = _Rounds(broker, rng)
        load = Load(broker.url, history, rounds_of.progress.one)
        logs = [history.consumer(ORDERS, "batches"), history.consumer(ORDERS, "holes")]
        logs.append(history.consumer(PARTS, "parts"))
        ends: dict[str, dict[int | None, int]] = {}
        finished = anyio.Event()

        async with anyio.create_task_group() as consuming:
            async with anyio.create_task_group() as producing:
                producing.start_soon(load.lone, "lone", ORDERS, seed)
                producing.start_soon(lambda: load.lone("lone-full", ORDERS, seed, style="full"))
                producing.start_soon(lambda: load.bursts("bursts", ORDERS, seed))
                producing.start_soon(lambda: load.bursts("bursts-lz4", ORDERS, seed, compression="lz4"))
                producing.start_soon(lambda: load.batches("plain", ORDERS, seed))
                producing.start_soon(
                    lambda: load.batches("zstd", ORDERS, seed, style="keyed", compression="zstd")
                )
                producing.start_soon(lambda: load.batches("parted", PARTS, seed, style="keyed", partitions=3))
                await rounds_of.progress.more(40)  # every topic exists, and so do a few messages
                await _topic_exists(broker.url, PARTS)
                consuming.start_soon(load.consume_batches, logs[0], finished.is_set)
                consuming.start_soon(load.consume_messages, logs[1], seed, finished.is_set)
                consuming.start_soon(load.consume_batches, logs[2], finished.is_set)
                for _ in range(rounds):
                    await rounds_of.one()
                load.stop()
            # The last word has the disk: what is read now was recovered, not remembered.
            await to_thread.run_sync(broker.kill)
            await to_thread.run_sync(broker.start)
            async with connect(broker.url, retry=PATIENCE) as client:
                for topic in (ORDERS, PARTS):
                    rows = await read_topic(client, topic)
                    history.check_log(topic, rows)
                    ends[topic] = {partition: len(found) for partition, found in rows.items()}
            await lag_gone(broker.admin, subscriptions=5)
            finished.set()
        for topic in (ORDERS, PARTS):
            history.check_consumers(topic, ends[topic])
        history.check_no_failures()
        # The consumers left with everything confirmed: so it must be after one more death.
        await to_thread.run_sync(broker.kill)
        await to_thread.run_sync(broker.start)
        async with OpsClient(broker.admin) as ops:
            for item in await lags(ops, subscriptions=5):
                end = ends[ORDERS][None] if item["topic"] == ORDERS else ends[PARTS][item["partition"]]
                assert (item["next_offset"], item["next_unacked"], item["lag_messages"]) == (end, end, 0), (
                    item
                )
        assert await to_thread.run_sync(broker.stop) == 0
    broker.check_log()


async def lags(ops: OpsClient, *, subscriptions: int) -> list[dict[str, Any]]:
    """Lag of each subscription of each concrete topic; there must be that many."""
    items = (await ops.call("subscriptions.lag", {"limit": 100}))["items"]
    concrete = [item for item in items if item["topic"] == ORDERS or item["partition"] is not None]
    assert len(concrete) == subscriptions, items
    return concrete


async def lag_gone(admin_url: str, *, subscriptions: int) -> None:
    """Wait until everything is acknowledged, by the broker's own account."""
    async with OpsClient(admin_url) as ops:
        while any(  # noqa: ASYNC110
            item["lag_messages"] for item in await lags(ops, subscriptions=subscriptions)
        ):
            await anyio.sleep(0.1)  # another process's state: there is no event to wait for


async def _topic_exists(url: str, topic: str) -> None:
    async with connect(url, retry=PATIENCE) as client, client.producer(topic, partitions=3):
        pass


SEEDS = [1]


@pytest.mark.anyio
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
async def test_ten_kills_under_load_lose_double_and_reorder_nothing(make_broker: Make, seed: int) -> None:
    await run(make_broker(face="broker", environment=ENVIRONMENT), seed, rounds=10, deadline_s=380)


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.timeout(3600)
async def test_a_hundred_kills_under_load_lose_double_and_reorder_nothing(make_broker: Make) -> None:
    seed = os.environ.get("CRASH_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"CRASH_SEED={seed}")
    await run(make_broker(face="broker", environment=ENVIRONMENT), seed, rounds=100, deadline_s=3500)
