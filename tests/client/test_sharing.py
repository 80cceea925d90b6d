"""Shared work over a real broker: nobody waits beside a full buffer, and fair shares of what is there."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pydanube
import pytest
from pydanube import Client, Consumer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("sharing")
    found: str = start_broker(folder, 0).url
    return found


class Workers:
    """Consumers that take some time for each message; who handled what, and how often."""

    def __init__(self, client: Client, topic: str, seconds: float, **options: Any) -> None:
        self.client, self.topic, self.seconds, self.options = client, topic, seconds, options
        self.handled: Counter[bytes] = Counter()
        self.by: Counter[str] = Counter()
        self.order: dict[str | None, list[int]] = {}
        self.changed = asyncio.Event()
        self.began: dict[str, float] = {}

    async def work(self, name: str) -> None:
        async with self.client.consumer(self.topic, "work", name=name, **self.options) as consumer:
            async for message in consumer:
                self.began.setdefault(name, asyncio.get_running_loop().time())
                await asyncio.sleep(self.seconds)
                self.handled[message.payload] += 1
                self.by[name] += 1
                self.order.setdefault(message.key, []).append(message.offset)
                await message.ack()
                self.changed.set()

    async def until(self, count: int) -> None:
        while len(self.handled) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60)


async def test_workers_that_join_late_share_what_one_has_in_its_buffer(url: str) -> None:
    async with pydanube.connect(url) as client, asyncio.TaskGroup() as tasks:
        async with client.producer("late") as producer:
            await producer.send_many([b"%d" % number for number in range(400)])
        workers = Workers(client, "late", 0.05, type="shared", credit_messages=1000)
        running = [tasks.create_task(workers.work("early"))]
        await workers.until(2)  # it has all the rest in its buffer
        joined_at = asyncio.get_running_loop().time()
        running += [tasks.create_task(workers.work(f"late-{number}")) for number in range(10)]
        await workers.until(400)
        assert set(workers.handled.values()) == {1}
        assert len(workers.by) == 11
        # a lone worker would take 20 s; a minute is a guard for busy machines
        assert max(workers.began.values()) - joined_at < 10
        for task in running:
            task.cancel()


async def test_keys_move_with_what_waits_for_their_new_owner_in_order(url: str) -> None:
    async with pydanube.connect(url) as client, asyncio.TaskGroup() as tasks:
        async with client.producer("keys") as producer:
            for number in range(300):
                producer.send_nowait(b"%d" % number, key=f"k{number % 30}")
            await producer.flush()
        workers = Workers(client, "keys", 0.02, type="key-shared", credit_messages=1000)
        running = [tasks.create_task(workers.work("early"))]
        await workers.until(2)
        running += [tasks.create_task(workers.work(f"late-{number}")) for number in range(2)]
        await workers.until(300)
        assert set(workers.handled.values()) == {1}
        assert len(workers.by) == 3
        assert all(found == sorted(found) for found in workers.order.values())
        for task in running:
            task.cancel()


async def test_what_is_there_goes_in_fair_shares_to_those_who_wait(url: str) -> None:
    async with pydanube.connect(url) as client:
        async with client.producer("fair") as producer:
            await producer.flush()
            consumers: list[Consumer] = [
                client.consumer("fair", "work", type="shared", name=f"c{number}", credit_messages=10_000)
                for number in range(3)
            ]
            for consumer in consumers:
                await consumer.__aenter__()
            await producer.send_many([b"x" * 10 for _ in range(3000)])
        while sum(got := [one.statistics().received_messages for one in consumers]) < 3000:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert min(got) > 600, got
        for consumer in consumers:
            await consumer.aclose()
