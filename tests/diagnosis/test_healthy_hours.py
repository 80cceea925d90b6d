"""Fifty workloads of ten honest kinds, each watched for ten minutes of the broker's clock: at most one alarm in all.

The broker, its client and their traffic are real; only the clock goes faster. Between two looks, five seconds of it, every
workload does what it does in that time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from math import cos, pi
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
NIGHT: Final = (62, 66)  # steps between two visits of a job of each night
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


async def created(client: Client, topic: str) -> None:
    async with client.producer(topic):
        pass


async def drained(consumers: Sequence[Any], waiting: int) -> None:
    """Acknowledge as many messages as wait, whichever consumer has them."""
    while waiting:
        for consumer in consumers:
            messages = await consumer.receive(max_messages=waiting, max_wait_s=0.02) if waiting else []
            for message in messages:
                await message.ack()
            waiting -= len(messages)


async def left(consumer: Any) -> None:
    """Stop in good order, as `async with` does."""
    await consumer.flush_acks()
    await consumer.aclose()


async def by_timer(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A timer starts a program each minute or less often: it connects, publishes a message or two, and ends."""
    await created(client, topic)
    every, first = chance.randint(12, 40), chance.randint(0, 11)
    async with client.consumer(topic, "s") as consumer:
        for step in itertools.count():
            if step % every == first:
                count = chance.randint(1, 2)
                await published(client, topic, count)
                await read(consumer, count)
            await clock.step()


async def in_the_night(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Written all day by programs that come and go, read by one that comes every six minutes or so."""
    each, every, waiting = chance.randint(1, 4), chance.randint(*NIGHT), 0
    for step in itertools.count():
        await published(client, topic, each)
        waiting += each
        if step % every == 5:
            async with client.consumer(topic, "s") as consumer:
                await read(consumer, waiting)
            waiting = 0
        await clock.step()


async def in_batches(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A batch job writes a thousand messages at once, and the consumer works them off within a minute."""
    await created(client, topic)
    much, pause = chance.randint(600, 1200), chance.randint(25, 45)
    async with client.consumer(topic, "s") as consumer:
        for _ in range(chance.randint(0, 10)):
            await clock.step()
        while True:
            await published(client, topic, much)
            waiting = much
            for _ in range(pause):
                done = min(waiting, 1 + much // 9)
                await read(consumer, done)
                waiting -= done
                await clock.step()


async def slow_tenant(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Three subscriptions of one topic: two read at once, one commits its work every half minute or more."""
    each, pause = chance.randint(1, 6), chance.randint(6, 9)
    async with (
        client.producer(topic) as producer,
        client.consumer(topic, "quick") as quick,
        client.consumer(topic, "other") as other,
        client.consumer(topic, "slow") as slow,
    ):
        for step in itertools.count(1):
            await producer.send_many([b"x"] * each)
            await read(quick, each)
            await read(other, each)
            if step % pause == 0:
                await read(slow, each * pause)
            await clock.step()


async def regrouped(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Three consumers share keys, and one of them is replaced every minute or two."""
    each, every = chance.randint(6, 20), chance.randint(12, 25)
    async with AsyncExitStack() as stack, client.producer(topic) as producer:
        named = [client.consumer(topic, "s", type="key-shared", name=f"c{n}") for n in range(3)]
        consumers = [await stack.enter_async_context(one) for one in named]
        for step in itertools.count(1):
            await producer.send_many([Message.new(b"x", key=f"k{n}") for n in range(each)])
            await drained(consumers, each)
            if step % every == 0:
                await left(named[0])
                named = [*named[1:], client.consumer(topic, "s", type="key-shared", name=f"c{step}")]
                consumers = [*consumers[1:], await stack.enter_async_context(named[-1])]
            await clock.step()


async def backfilled(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A second subscription begins at the first message after some minutes, and catches up while the first goes on."""
    each, late = chance.randint(4, 12), chance.randint(30, 60)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        for _ in range(late):
            await producer.send_many([b"x"] * each)
            await read(consumer, each)
            await clock.step()
        waiting = late * each
        async with client.consumer(topic, "again", start="earliest") as again:
            while True:
                await producer.send_many([b"x"] * each)
                await read(consumer, each)
                waiting += each
                done = min(waiting, 4 * each)
                await read(again, done)
                waiting -= done
                await clock.step()


async def by_daylight(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A rate that rises to twenty times the least one and falls again within some minutes."""
    period, most = chance.randint(40, 80), chance.randint(20, 60)
    async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
        for step in itertools.count():
            each = max(1, round(most * (1 - cos(2 * pi * step / period)) / 2))
            await producer.send_many([b"x"] * each)
            await read(consumer, each)
            await clock.step()


async def partitioned(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Messages of three keys, over as many partitions as they hash to. Others stay empty."""
    each = chance.randint(3, 9)
    async with (
        client.producer(topic, partitions=4) as producer,
        client.consumer(topic, "s", type="shared") as consumer,
    ):
        while True:
            await producer.send_many([Message.new(b"x", key=f"k{n % 3}") for n in range(each)])
            await read(consumer, each)
            await clock.step()


async def begun_late(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """A consumer waits for minutes before anything is published, and messages are large when they come."""
    await created(client, topic)
    async with client.consumer(topic, "s") as consumer:
        for _ in range(chance.randint(30, 50)):
            await clock.step()
        while True:
            async with client.producer(topic) as producer:
                await producer.send(b"x" * 100_000)
            await read(consumer, 1)
            for _ in range(chance.randint(1, 6)):
                await clock.step()


async def restarted(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
    """Two workers of one queue, each started anew every few minutes and back within seconds."""
    each, every = chance.randint(2, 9), chance.randint(30, 60)
    async with AsyncExitStack() as stack, client.producer(topic) as producer:
        named = [client.consumer(topic, "s", type="shared", name=f"w{n}") for n in range(2)]
        working = [await stack.enter_async_context(one) for one in named]
        waiting = 0
        for step in itertools.count(1):
            await producer.send_many([b"x"] * each)
            waiting += each
            if step % every == 0:
                for one in named:
                    await left(one)
            elif step > every and step % every == 1:
                named = [client.consumer(topic, "s", type="shared", name=f"w{n}") for n in range(2)]
                working = [await stack.enter_async_context(one) for one in named]
            if step % every:
                await drained(working, waiting)
                waiting = 0
            await clock.step()


KINDS: Final[tuple[Kind, ...]] = (
    steady, bursty, job, finished, pausing, behind, deployed, failing_once, by_key, standby, seldom, flooded, warming,
)  # fmt: skip
ODD: Final[tuple[Kind, ...]] = (  # no rule was tuned on these
    by_timer, in_batches, slow_tenant, regrouped, backfilled, by_daylight, partitioned, begun_late, restarted,
)  # fmt: skip


@pytest.mark.parametrize("kinds", [KINDS, ODD], ids=["known", "odd"])
@pytest.mark.parametrize(
    ("seeds", "steps"),
    [(1, STEPS // 2), pytest.param(5, STEPS, marks=pytest.mark.long)],
    ids=["ten", "fifty"],
)
async def test_healthy_workloads_for_ten_minutes_raise_at_most_one_alarm(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, kinds: tuple[Kind, ...], seeds: int, steps: int
) -> None:
    time = Clock()
    time.install(monkeypatch)
    alarms: set[tuple[str, str]] = set()
    with anyio.fail_after(240):
        async with opened(data__dir=":memory:") as broker, connect(broker.broker_url) as client:
            works = [(kind, seed) for kind in kinds for seed in range(seeds)]
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


async def test_a_job_of_each_night_is_an_alarm_in_its_first_two_nights_at_most(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night has five minutes or a little more here, longer than any patience. Two visits show no habit yet."""
    time = Clock()
    time.install(monkeypatch)
    alarms: set[tuple[str, str]] = set()
    with anyio.fail_after(120):
        async with opened(data__dir=":memory:") as broker, connect(broker.broker_url) as client:
            time.begin(1)
            task = asyncio.create_task(in_the_night(client, "night", random.Random(1), time))
            for step in range(215):
                await time.until_all_are_done()
                await looked(broker, alarms)
                if step == 5 + 2 * NIGHT[1] + 6:  # the third visit, and the looks that close alerts
                    assert {rule for rule, _ in alarms} <= {"no_consumers", "alert no_consumers"}
                    alarms.clear()
                time.begin(1)
            task.cancel()
            await asyncio.wait([task])
    assert not alarms


async def looked(broker: Broker, alarms: set[tuple[str, str]]) -> None:
    """One look, and what is wrong by it: findings as the cluster tells them, and alerts."""
    await broker.observation.look_once()
    found = await broker.port.diagnose_cluster()
    for one in found.findings:
        if one.severity >= Severity.WARNING and one.rule != "disk_sync_slow":  # the machine's own disk
            alarms.add((one.rule, str(one.subject)))
    for alert in (await broker.port.alerts())[0]:
        alarms.add((f"alert {alert.rule}", str(alert.subject)))
