"""Fifty workloads of ten honest kinds, each watched for ten minutes of the broker's clock: at most one alarm in all.

The broker, its client and their traffic are real; only the clock goes faster. Between two looks, five seconds of it, every
workload does what it does in that time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio
import pytest
from pydanube import Client, Message, connect
from pydanube_broker.broker import Broker
from pydanube_core.diagnosis.findings import Severity

from tests.broker.delivery.conftest import Opener, opened
from tests.diagnosis.quick_clock import Clock

__all__ = ["opened"]

pytestmark = pytest.mark.anyio

STEPS: Final = 120  # ten minutes
Kind = Callable[[Client, str, random.Random, Clock], Coroutine[Any, Any, None]]


async def published(client: Client, topic: str, count: int, key: str | None = None) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many([Message.new(b"x", key=key)] * count)


async def read(consumer: Any, most: int, *, skip: int = 0) -> None:
    """Take and acknowledge; `skip`: one in so many comes back once."""
    left = most
    while left:
        messages = await consumer.receive(max_messages=left, max_wait_s=5)
        for message in messages:
            again = skip and message.offset % skip == 0 and message.delivery_count == 1
            await (message.nack(delay_ms=1) if again else message.ack())
            left -= not again


async def steady(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    each = chance.randint(1, 20)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        while True:
            await producer.send_many([b"x"] * each)
            await read(consumer, each)
            await clock.step()


async def bursty(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Nothing for a while, then much, read at once."""
    pause, much = chance.randint(3, 12), chance.randint(100, 400)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        while True:
            await producer.send_many([b"x"] * much)
            await read(consumer, much)
            for _ in range(pause):
                await clock.step()


async def job(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A consumer comes every minute or two, reads everything, and goes; production does not wait for it."""
    every, each = chance.randint(6, 30), chance.randint(1, 5)
    async with client.producer(topic) as producer:
        await producer.send(b"first")
        waiting = 1
        while True:
            async with client.consumer(topic, "s") as consumer:
                await read(consumer, waiting)
            waiting = 0
            for _ in range(every):
                await producer.send_many([b"x"] * each)
                waiting += each
                await clock.step()


async def finished(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A run that wrote, was read, and is over."""
    for _ in range(chance.randint(1, 40)):
        await published(client, topic, 3)
        async with client.consumer(topic, "s") as consumer:
            await read(consumer, 3)
        await clock.step()
    while True:
        await clock.step()


async def pausing(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A producer that sends in each step for a while, then is silent for half a minute or less."""
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        while True:
            for _ in range(chance.randint(5, 30)):
                await producer.send_many([b"x"] * 4)
                await read(consumer, 4)
                await clock.step()
            for _ in range(chance.randint(1, 5)):
                await clock.step()


async def behind(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A consumer that is a step or two behind, always."""
    each, late = chance.randint(1, 9), chance.randint(1, 2)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        for _ in range(late):
            await producer.send_many([b"x"] * each)
            await clock.step()
        while True:
            await producer.send_many([b"x"] * each)
            await read(consumer, each)
            await clock.step()


async def deployed(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A consumer that is started anew once in a while, and away for up to twenty seconds."""
    each = chance.randint(1, 9)
    async with client.producer(topic) as producer:
        waiting = 0
        while True:
            async with client.consumer(topic, "s", name="deployed") as consumer:
                for _ in range(chance.randint(20, 60)):
                    await producer.send_many([b"x"] * each)
                    await read(consumer, each + waiting)
                    waiting = 0
                    await clock.step()
            for _ in range(chance.randint(1, 4)):
                await producer.send_many([b"x"] * each)
                waiting += each
                await clock.step()


async def failing_once(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A message fails once in a while, and works the second time, a real second later."""
    each, first = chance.randint(3, 9), chance.randint(0, 20)
    async with client.producer(topic) as producer, client.consumer(topic, "s", type="shared") as consumer:
        for step in itertools.count():
            await producer.send_many([b"x"] * each)
            await read(consumer, each, skip=2 if step % 30 == first else 0)
            await clock.step()


async def by_key(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Many keys; a filter takes what it is meant to take and leaves the rest."""
    each = chance.randint(2, 9)
    options: dict[str, Any] = {"type": "key-shared", "key_filters": ["mine-*"]}
    async with client.producer(topic) as producer, client.consumer(topic, "s", **options) as consumer:
        while True:
            mine = [Message.new(b"x", key=f"mine-{i}") for i in range(each)]
            await producer.send_many([*mine, *(Message.new(b"x", key=f"other-{i}") for i in range(each))])
            await read(consumer, each)
            await clock.step()


async def standby(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A failover subscription: one works, the other waits."""
    each = chance.randint(1, 9)
    async with client.producer(topic) as producer, client.consumer(topic, "s", type="failover") as active:
        await producer.send_many([b"x"] * each)
        await read(active, each)
        async with client.consumer(topic, "s", type="failover") as other:
            waiting = asyncio.create_task(other.receive(max_messages=1, max_wait_s=600))
            try:
                while True:
                    await clock.step()
                    await producer.send_many([b"x"] * each)
                    await read(active, each)
            finally:
                waiting.cancel()


async def seldom(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A consumer that works for a quarter of a minute or a little more, and acknowledges then."""
    each = chance.randint(1, 9)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        while True:
            pause = chance.choice([2, 3, 3, 4])
            for _ in range(pause):
                await producer.send_many([b"x"] * each)
                await clock.step()
            await read(consumer, each * pause)


async def flooded(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Ten times the usual comes for twenty seconds, now and then, and is gained on."""
    each = chance.randint(10, 20)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        while True:
            waiting = 0
            for at in range(40):
                came = 10 * each if 10 <= at < 14 else each
                await producer.send_many([b"x"] * came)
                waiting += came
                done = min(waiting, 4 * each)
                await read(consumer, done)
                waiting -= done
                await clock.step()
            await read(consumer, waiting)


async def warming(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A consumer that needs twenty seconds before it reads anything, then catches up."""
    each = chance.randint(2, 9)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        for _ in range(4):
            await producer.send_many([b"x"] * each)
            await clock.step()
        waiting = 4 * each
        while True:
            await producer.send_many([b"x"] * each)
            waiting += each
            done = min(waiting, 2 * each)
            await read(consumer, done)
            waiting -= done
            await clock.step()


KINDS: Final[tuple[Kind, ...]] = (
    steady, bursty, job, finished, pausing, behind, deployed, failing_once, by_key, standby, seldom, flooded, warming,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seeds", "steps"),
    [(1, STEPS // 2), pytest.param(5, STEPS, marks=pytest.mark.long)],
    ids=["ten", "fifty"],
)
async def test_healthy_workloads_for_ten_minutes_raise_at_most_one_alarm(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, seeds: int, steps: int
) -> None:
    time = Clock()
    time.install(monkeypatch)
    alarms: set[tuple[str, str]] = set()
    with anyio.fail_after(240):
        async with opened(data__dir=":memory:") as broker, connect(broker.broker_url) as client:
            works = [(kind, seed) for kind in KINDS for seed in range(seeds)]
            time.begin(len(works))
            tasks = [
                asyncio.create_task(kind(client, f"{kind.__name__}-{seed}", random.Random(seed), time))
                for kind, seed in works
            ]
            for _ in range(steps):
                await time.until_all_are_done()
                await looked(broker, alarms)
                time.begin(len(works))
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
    assert len(alarms) <= 1, sorted(alarms)


async def looked(broker: Broker, alarms: set[tuple[str, str]]) -> None:
    """One look, and what is wrong by it: findings as the cluster tells them, and alerts."""
    await broker.observation.look_once()
    found = await broker.port.diagnose_cluster()
    for one in found.findings:
        if one.severity >= Severity.WARNING and one.rule != "disk_sync_slow":  # the machine's own disk
            alarms.add((one.rule, str(one.subject)))
    for alert in (await broker.port.alerts())[0]:
        alarms.add((f"alert {alert.rule}", str(alert.subject)))
