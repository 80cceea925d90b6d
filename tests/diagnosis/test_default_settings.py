"""A broker with default settings: what is wrong is found within seconds, and one verdict holds at every moment.

The broker, its client and their traffic are real; only the clock goes faster (`quick_clock`).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.topics.topic import Topic
from pydanube_core.diagnosis import LagStatus
from pydanube_core.diagnosis.findings import Diagnosis, Finding, Verdict
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener, opened
from tests.diagnosis.quick_clock import Clock
from tests.diagnosis.test_healthy_hours import KINDS, read
from tests.support.waiting import until

__all__ = ["opened"]

pytestmark = pytest.mark.anyio

Step = Callable[[int], Awaitable[None]]
WORSE = (Verdict.HEALTHY, Verdict.UNKNOWN, Verdict.DEGRADED, Verdict.FAILING)


async def stepped(broker: Broker, clock: Clock, steps: int, work: Step) -> None:
    for step in range(steps):
        clock.begin(1)
        await work(step)
        await broker.observation.look_once()


async def acknowledged(broker: Broker, topic: str, count: int) -> None:
    """Wait until the broker has got so many acknowledgements of a subscription."""
    log = broker.registry.find(TopicName.parse(topic))
    assert log is not None
    await until(lambda: log.subscriptions["s"].cursor_state(0).acknowledged >= count)


async def found(broker: Broker, topic: str) -> Diagnosis:
    return await broker.port.diagnose_subscription(topic, "s")


def rule(diagnosis: Diagnosis, name: str) -> Finding | None:
    return next((one for one in diagnosis.findings if one.rule == name), None)


async def test_a_consumer_that_falls_behind_is_named_within_half_a_minute_and_opens_an_alert_later(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    clock.install(monkeypatch)
    async with (
        opened(data__dir=":memory:") as broker,
        connect(broker.broker_url) as client,
        client.producer("t") as producer,
        client.consumer("t", "s", name="slow") as consumer,
    ):
        verdicts: list[tuple[Verdict, Finding | None]] = []
        earlier: list[int] = []

        async def work(step: int) -> None:
            await producer.send_many([b"x"] * 30)
            await read(consumer, 10)
            await acknowledged(broker, "t", 10 * (step + 1 + len(earlier)))
            diagnosis = await found(broker, "t")
            verdicts.append((diagnosis.verdict, rule(diagnosis, "consumer_slow")))

        with anyio.fail_after(120):
            await stepped(broker, clock, 7, work)
            earlier += range(7)
            first = next(at for at, (_, slow) in enumerate(verdicts) if slow is not None)
            assert 5 * first <= 30, "seconds"
            _, slow = verdicts[first]
            assert slow is not None
            assert (slow.severity.word, slow.provisional) == ("warning", True)
            assert slow.confidence <= 0.7
            assert slow.settles_at_ms is not None
            assert slow.settles_at_ms > clock.now_ms
            late = [verdict for verdict, slow in verdicts[4:] if slow is None]
            assert Verdict.HEALTHY not in late, "until then it is not called healthy"
            await stepped(broker, clock, 18, work)
            earlier += range(18)
            assert (await broker.port.alerts())[0] == [], "a provisional finding opens no alert"
            await stepped(broker, clock, 12, work)
            [alert] = (await broker.port.alerts())[0]
            assert (alert.rule, alert.finding.provisional) == ("consumer_slow", False)


@pytest.mark.parametrize("seed", range(2))
async def test_one_verdict_holds_for_subscription_topic_and_cluster_at_every_moment(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Healthy workloads, and consumers that fall behind, leave, or never come; asked between the looks, too."""
    clock, chance = Clock(), random.Random(seed)
    clock.install(monkeypatch)

    async def slow(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
        async with client.producer(topic) as producer, client.consumer(topic, "s") as consumer:
            while True:
                await producer.send_many([b"x"] * 20)
                await read(consumer, chance.randint(1, 15))
                await clock.step()

    async def leaving(client: Client, topic: str, chance: random.Random, clock: Clock) -> None:
        async with client.producer(topic) as producer:
            for step in itertools.count():
                await producer.send_many([b"x"] * 9)
                if step % 9 < 4:
                    async with client.consumer(topic, "s") as consumer:
                        await read(consumer, 3)
                await clock.step()

    kinds = [*KINDS, slow, leaving]
    with anyio.fail_after(200):
        async with opened(data__dir=":memory:") as broker, connect(broker.broker_url) as client:
            clock.begin(len(kinds))
            tasks = [
                asyncio.create_task(kind(client, f"{kind.__name__}-{seed}", random.Random(seed), clock))
                for kind in kinds
            ]
            for _ in range(24):
                await clock.until_all_are_done()
                if chance.random() < 0.7:
                    await broker.observation.look_once()
                await one_verdict(broker)
                clock.begin(len(kinds))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def one_verdict(broker: Broker) -> None:
    while True:
        cluster = (await broker.port.diagnose_cluster()).verdict
        of_topics = [await verdict_of_topic(broker, topic) for topic in broker.registry.topics]
        if cluster is (await broker.port.diagnose_cluster()).verdict:
            break  # else acknowledgements have arrived in between
    assert cluster is worst(of_topics), (cluster, of_topics)


async def verdict_of_topic(broker: Broker, topic: Topic) -> Verdict:
    whole = (await broker.port.diagnose_topic(topic.name)).verdict
    parts: list[Verdict] = []
    for name in list(topic.subscriptions):
        one = await broker.port.diagnose_subscription(topic.name, name)
        parts.append(one.verdict)
        [key] = await broker.port.lag_index(topic.name, name)
        [lag] = await broker.port.lag_facts([key])
        if lag.status is LagStatus.UNKNOWN and lag.facts.state.lag_messages:
            assert one.verdict is not Verdict.HEALTHY, (topic.name, one)
    if parts:
        assert whole is worst(parts), (topic.name, whole, parts)
    return whole


def worst(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=WORSE.index)


async def test_a_status_does_not_span_a_seek_or_the_time_before_a_consumer_came(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that came before anybody read do not count as falling behind, nor do those that were skipped."""
    clock = Clock()
    clock.install(monkeypatch)
    async with (
        opened(data__dir=":memory:") as broker,
        connect(broker.broker_url) as client,
        AsyncExitStack() as stack,
    ):
        producer: Any = await stack.enter_async_context(client.producer("t"))
        consumers: list[Any] = []
        waiting = 0

        async def work(step: int) -> None:
            nonlocal waiting
            await producer.send_many([b"x"] * 20)
            waiting += 20
            if step == 0:
                async with client.consumer("t", "s"):
                    pass
            if step == 4:
                consumers.append(await stack.enter_async_context(client.consumer("t", "s")))
            if step >= 4:
                done = min(waiting, 25)
                await read(consumers[0], done)
                waiting -= done
                assert rule(await found(broker, "t"), "consumer_slow") is None

        with anyio.fail_after(120):
            await stepped(broker, clock, 12, work)


async def test_a_message_that_a_consumer_keeps_is_named_by_its_offset_within_a_minute(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All later messages are acknowledged, so that nothing else is late. It expires, and is not answered either."""
    clock = Clock()
    clock.install(monkeypatch)
    async with (
        opened(data__dir=":memory:", delivery__ack_timeout="1h") as broker,
        connect(broker.broker_url) as client,
        client.producer("t") as producer,
        client.consumer("t", "s", type="shared", name="keeper") as consumer,
    ):
        told: list[Finding | None] = []

        async def work(step: int) -> None:
            await producer.send_many([b"x"] * 4)
            left = 4
            while left:
                for message in await consumer.receive(max_messages=left, max_wait_s=5):
                    left -= 1
                    if message.offset != 6:
                        await message.ack()
            await acknowledged(broker, "t", 4 * (step + 1) - (step > 0))
            told.append(rule(await found(broker, "t"), "head_held"))

        with anyio.fail_after(120):
            await stepped(broker, clock, 16, work)
        first = next(at for at, held in enumerate(told) if held is not None)
        assert 5 * (first - 1) == 30, "seconds after it was sent"
        held = told[-1]
        assert held is not None
        assert (held.evidence["offset"], held.evidence["consumer"], held.severity.word) == (
            6,
            "keeper",
            "warning",
        )
        assert held.next[0].operation == "messages.peek"
        assert held.next[0].arguments["from"] == "offset:6"


async def test_the_last_points_of_a_chart_are_of_their_own_moments(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked a moment after a look, which then is not a point: the point before it does not have its numbers."""
    clock = Clock()
    clock.install(monkeypatch)
    async with (
        opened(data__dir=":memory:") as broker,
        connect(broker.broker_url) as client,
        client.producer("t") as producer,
    ):

        async def work(step: int) -> None:
            await producer.send_many([b"x"] * 10)

        with anyio.fail_after(60):
            await stepped(broker, clock, 8, work)
        clock.now_ms += 1000
        history = await broker.port.topic_history("t", None, most=1)
        times, published = history.times_ms[-4:], history.published[-4:]
        seconds = [(after - before) / 1000 for before, after in itertools.pairwise(times)]
        came = [after - before for before, after in itertools.pairwise(published)]
        assert seconds == [5.0, 5.0, 6.0]
        assert came == [10, 10, 10]
