"""Ways to break a broker from outside, with the injector's own counts of what it did.

A fault acts through clients, signals, a stopped store, a small disk, or policies; never through the broker's objects.
It yields what the diagnosis has to say: the rule, and numbers it counted itself, each exact or as a range where the
count was still moving while the broker was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydanube import Client, ClusterError, Message, connect
from pydanube_admin.remote import OpsClient

from tests.broker.official.raw_client import RawClient
from tests.support.broker_process import client_environment
from tests.support.waiting import until

__all__ = ["FAST", "Expected", "Fault", "Found", "World", "diagnosed"]

PROGRAM: Final = Path(__file__).with_name("client_program.py")
PATIENCE_S: Final = 60.0  # a bound for a busy machine: a fault is found as soon as it shows
#: settings under which a fault shows within seconds
FAST: Final = {
    "DANUBE_DIAGNOSIS__SAMPLE_INTERVAL": "200ms",
    "DANUBE_DIAGNOSIS__WINDOW": "4s",
    "DANUBE_DIAGNOSIS__STUCK_AFTER": "2s",
    "DANUBE_DELIVERY__ACK_TIMEOUT": "60s",
}

Number = float | tuple[float, float]


@dataclass
class World:
    """One broker, a client of it, its operations, and chance."""

    url: str
    client: Client
    ops: OpsClient
    random: random.Random
    name: str  # of topics, so that faults do not meet

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Call an operation; one that destroys is carried out as its plan says."""
        try:
            return await self.ops.call(operation, arguments)
        except ClusterError as error:
            if error.code != "PLAN_REQUIRED":
                raise
            token = error.details["plan"]["plan_token"]
            return await self.ops.call(operation, arguments, plan_token=token)

    async def publish(self, topic: str, count: int, key: str | None = None) -> None:
        async with self.client.producer(topic) as producer:
            await producer.send_many(
                [Message.new(b"x" * 64, key=key)] * count if key else [b"x" * 64] * count
            )

    def program(self, *arguments: str) -> Program:
        return Program(arguments)


@dataclass
class Expected:
    """The finding that a fault must lead to."""

    rule: str
    topic: str | None
    subscription: str | None = None
    # Field → number, (low, high) or text; asked after the finding
    evidence: Callable[[], dict[str, Any]] = dict
    untrusted: dict[str, Any] = field(default_factory=dict)


@dataclass
class Found:
    rule: str
    seconds: float
    finding: dict[str, Any]
    evidence_wrong: list[str]
    took_ms: float
    first_rule: str | None  # of the first finding of warning or worse that was shown at all

    @property
    def right(self) -> bool:
        return not self.evidence_wrong


class Program:
    """A client process and what it printed last."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._arguments = arguments
        self.count = 0
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Program:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), *self._arguments,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=client_environment(),
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):
                self.count = int(line)

    async def until(self, count: int) -> None:
        await until(lambda: self.count >= count)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def __aexit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading


async def diagnosed(world: World, expected: Expected, *, patience_s: float = PATIENCE_S) -> Found:
    """Ask until the top finding is the one expected, or patience ends; then compare its numbers."""
    begun = time.monotonic()
    first: str | None = None
    answer: dict[str, Any] = {}
    while time.monotonic() - begun < patience_s:
        if expected.subscription is not None:
            answer = await world.call(
                "diagnose.subscription", topic=expected.topic, subscription=expected.subscription
            )
        elif expected.topic is not None:
            answer = await world.call("diagnose.topic", topic=expected.topic)
        else:
            answer = await world.call("diagnose.cluster")
        shown = [one for one in answer["findings"] if one["severity"] != "info"]
        if shown and first is None:
            first = shown[0]["rule"]
        if answer["findings"] and answer["findings"][0]["rule"] == expected.rule:
            top = answer["findings"][0]
            wrong = _compare(top["evidence"], expected.evidence()) + _compare(
                top["untrusted"], expected.untrusted
            )
            if not wrong:
                return Found(expected.rule, time.monotonic() - begun, top, [], answer["took_ms"], first)
        else:
            top, wrong = {}, []
        await asyncio.sleep(0.25)
    rules = [(one["rule"], one["severity"]) for one in answer.get("findings", [])]
    return Found(
        rules[0][0] if rules else "-", time.monotonic() - begun, top,
        wrong or [f"top is {rules}"], answer.get("took_ms", 0.0), first,
    )  # fmt: skip


def _compare(evidence: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    wrong = []
    for name, value in wanted.items():
        seen = evidence.get(name)
        if isinstance(value, tuple):
            if seen is None or not value[0] <= seen <= value[1]:
                wrong.append(f"{name} is {seen}, counted {value[0]} to {value[1]}")
        elif seen != value:
            wrong.append(f"{name} is {seen}, counted {value}")
    return wrong


Fault = Callable[[World], AbstractAsyncContextManager[Expected]]


# -- subscriptions -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def no_consumers(world: World, read: int = 0) -> AsyncIterator[Expected]:
    """Mail, and nobody who ever came, or somebody who left in the middle."""
    topic = f"{world.name}-unread"
    count = world.random.randint(5, 200)
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s")
    if read:
        async with world.client.consumer(topic, "s") as consumer:
            for message in (await consumer.receive(max_messages=read, max_wait_s=5))[:read]:
                await message.ack()
    yield Expected("no_consumers", topic, "s", lambda: {"lag_messages": count - read, "consumers": 0})


@asynccontextmanager
async def consumer_dead(world: World, how: signal.Signals = signal.SIGKILL) -> AsyncIterator[Expected]:
    """A consumer that was working is killed, or stopped."""
    topic = f"{world.name}-dead"
    before, after = world.random.randint(5, 50), world.random.randint(5, 50)
    await world.publish(topic, before)
    async with world.program("consume", world.url, topic, "s") as consumer:
        await consumer.until(before)
        await _lag_is(world, topic, 0)
        consumer.signal(how)
        await asyncio.sleep(0.3)
        await world.publish(topic, after)
        yield Expected(
            "consumer_dead", topic, "s",
            lambda: {"lag_messages": after, "consumer": "worker",
                     "connection": "broken" if how == signal.SIGKILL else "open"},
        )  # fmt: skip


async def _lag_is(world: World, topic: str, lag: int) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await world.call("subscriptions.lag", topic=topic))["items"][0]["lag_messages"] == lag:
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def consumer_not_acking(world: World) -> AsyncIterator[Expected]:
    """A consumer takes messages and forgets to acknowledge."""
    topic = f"{world.name}-hold"
    count = world.random.randint(5, 100)
    await world.publish(topic, count)
    async with world.client.consumer(topic, "s", name="forgetful") as consumer:
        held: list[Any] = []
        while len(held) < count:
            held += await consumer.receive(max_messages=count, max_wait_s=1)
        yield Expected(
            "consumer_not_acking", topic, "s",
            lambda: {"in_flight": count, "lag_messages": count, "consumer": "forgetful", "acknowledged_in_window": 0},
        )  # fmt: skip


@asynccontextmanager
async def poison_message(world: World) -> AsyncIterator[Expected]:
    """One message cannot be worked on, all others can."""
    topic = f"{world.name}-poison"
    count, retries = world.random.randint(10, 40), world.random.choice([2, 3, 4])
    bad = world.random.randrange(count)
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s")
    await world.call(
        "subscriptions.set_failure_policy", topic=topic, subscription="s", max_redelivery_count=retries,
        base_redelivery_delay_ms=20, max_redelivery_delay_ms=20, backoff_strategy="fixed", poison_policy="block",
    )  # fmt: skip
    failures = 0

    async def work() -> None:
        nonlocal failures
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                if message.offset == bad:
                    failures += 1
                    await message.nack(reason="cannot read it")
                else:
                    await message.ack()

    async with _running(work()):
        yield Expected(
            "poison_message", topic, "s",
            lambda: {"offset": bad, "failures": failures, "deliveries": failures, "blocked": True},
            {"reason": "cannot read it"},
        )  # fmt: skip


@asynccontextmanager
async def _running(*works: Any) -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


@asynccontextmanager
async def dead_letters_growing(world: World) -> AsyncIterator[Expected]:
    """A consumer refuses some messages for good."""
    topic = f"{world.name}-refuse"
    count = world.random.randint(20, 60)
    refused = set(world.random.sample(range(count), world.random.randint(2, 9)))
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s")
    await world.call(
        "subscriptions.set_failure_policy", topic=topic, subscription="s", poison_policy="dead_letter"
    )

    async def work() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                await (message.terminate("unreadable") if message.offset in refused else message.ack())

    async with _running(work()):
        yield Expected("dead_letters_growing", topic, "s", lambda: {"dead_lettered": len(refused)})


@asynccontextmanager
async def messages_dropped(world: World) -> AsyncIterator[Expected]:
    """A consumer refuses some messages for good, and the policy is to drop them."""
    topic = f"{world.name}-drop"
    count = world.random.randint(20, 60)
    refused = set(world.random.sample(range(count), world.random.randint(2, 9)))
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s")
    await world.call("subscriptions.set_failure_policy", topic=topic, subscription="s", poison_policy="drop")

    async def work() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                await (message.terminate("unreadable") if message.offset in refused else message.ack())

    async with _running(work()):
        yield Expected("messages_dropped", topic, "s", lambda: {"dropped": len(refused)})


@asynccontextmanager
async def hot_key(world: World) -> AsyncIterator[Expected]:
    """One customer has most of the orders, and every order takes its time."""
    topic = f"{world.name}-keys"
    count, hot = 240, f"customer-{world.random.randrange(1000)}"
    await world.call("topics.create", topic=topic)
    await world.call("subscriptions.create", topic=topic, subscription="s", type="key-shared")
    keys = [hot if world.random.random() < 0.85 else f"other-{i % 12}" for i in range(count)]
    sent = keys.count(hot)
    acked = 0
    async with world.client.producer(topic) as producer:
        await producer.send_many([Message.new(b"o", key=key) for key in keys])

    async def work(name: str) -> None:
        nonlocal acked
        async with world.client.consumer(topic, "s", type="key-shared", name=name) as consumer:
            async for message in consumer:
                await asyncio.sleep(0.1)
                await message.ack()
                acked += message.key == hot

    async with _running(work("one"), work("two")):
        # Acks may be some tenths of a second on their way.
        yield Expected(
            "hot_key", topic, "s", lambda: {"key_messages": (sent - acked - 5, sent - acked + 15), "consumers": 2},
            {"key": hot},
        )  # fmt: skip


@asynccontextmanager
async def cursor_rewound(world: World) -> AsyncIterator[Expected]:
    """Somebody moved a cursor back, and the consumer works on it again, or there is none any more."""
    topic = f"{world.name}-rewound"
    count = world.random.randint(200, 400)
    to = world.random.randrange(count // 2)
    await world.publish(topic, count)

    async def work() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                if read >= count:
                    await asyncio.sleep(0.05)
                await message.ack()
                progress()

    read = 0

    def progress() -> None:
        nonlocal read
        read += 1

    async with _running(work()):
        await until(lambda: read >= count)
        await _lag_is(world, topic, 0)
        await world.call("subscriptions.seek", topic=topic, subscription="s", to=f"offset:{to}")
        yield Expected(
            "cursor_rewound", topic, "s",
            lambda: {"from_offset": count, "to_offset": to, "rewound_messages": count - to, "cause": "seek"},
        )  # fmt: skip


@asynccontextmanager
async def _flow(
    world: World, topic: str, *, per_s: float, consume_per_s: float
) -> AsyncIterator[dict[str, int]]:
    """Steady production and consumption; counts of both."""
    counts = {"sent": 0, "acked": 0}

    async def produce() -> None:
        async with world.client.producer(topic) as producer:
            begun = time.monotonic()
            while True:
                due = int((time.monotonic() - begun) * per_s) - counts["sent"] + counts.get("extra", 0)
                if due > 0:
                    await producer.send_many([b"x" * 32] * due)
                    counts["sent"] += due
                await asyncio.sleep(0.05)

    async def consume() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            begun = time.monotonic()
            async for message in consumer:
                await message.ack()
                counts["acked"] += 1
                early_s = begun + counts["acked"] / consume_per_s - time.monotonic()
                if early_s > 0:
                    await asyncio.sleep(early_s)
                elif early_s < -0.3:
                    begun = time.monotonic() - counts["acked"] / consume_per_s

    async with _running(produce(), consume()):
        yield counts


@asynccontextmanager
async def consumer_slow(world: World) -> AsyncIterator[Expected]:
    """A consumer works, at a third of the rate at which messages come."""
    topic = f"{world.name}-slow"
    rate = world.random.choice([60, 90, 120])
    await world.call("topics.create", topic=topic)
    async with _flow(world, topic, per_s=rate, consume_per_s=rate / 3) as counts:
        await until(lambda: counts["sent"] >= 3 * rate)

        def evidence() -> dict[str, Any]:
            behind = counts["sent"] - counts["acked"]
            return {
                "lag_messages": (behind - rate, behind + rate / 2),
                "produce_rate": (0.6 * rate, 1.4 * rate),
            }

        yield Expected("consumer_slow", topic, "s", evidence)


@asynccontextmanager
async def produce_burst(world: World) -> AsyncIterator[Expected]:
    """Production is even and consumption keeps pace; then much comes at once."""
    topic = f"{world.name}-burst"
    burst = world.random.choice([1500, 2500])
    await world.call("topics.create", topic=topic)
    async with _flow(world, topic, per_s=30, consume_per_s=100) as counts:
        await until(lambda: counts["sent"] >= 120)
        await world.publish(topic, burst)
        yield Expected("produce_burst", topic, "s", lambda: {"burst_messages": (0.95 * burst, 1.1 * burst)})


# -- topics ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def producer_stopped(world: World, how: signal.Signals = signal.SIGKILL) -> AsyncIterator[Expected]:
    """A producer that sent all the time is killed, or stopped."""
    topic = f"{world.name}-silent"
    await world.call("topics.create", topic=topic)
    async with world.program("produce", world.url, topic, "0.05") as producer:
        await producer.until(1)
        await asyncio.sleep(3.5)
        producer.signal(how)
        await asyncio.sleep(0.5)
        sent = (await world.call("topics.describe", topic=topic))["next_offset"]
        assert producer.count <= sent <= producer.count + 1
        yield Expected("producer_stopped", topic, None, lambda: {"steady_messages": sent})


@asynccontextmanager
async def publish_throttled(world: World) -> AsyncIterator[Expected]:
    """A producer sends more than the policy allows, and is told so."""
    topic = f"/default/{world.name}-throttled"
    await world.call("topics.create", topic=topic, policies={"max_publish_rate": 5})
    refused = 0
    async with RawClient(world.url) as raw:
        producer = await raw.create_producer(topic)
        for _ in range(world.random.randint(15, 40)):
            try:
                await raw.send(topic, producer, b"x")
            except Exception as error:
                if "RATE_LIMITED" not in str(error):
                    raise
                refused += 1
        yield Expected(
            "publish_throttled", topic, None,
            lambda: {"refused_publishes": refused, "refused_messages_in_window": refused, "max_publish_rate": 5},
        )  # fmt: skip


@asynccontextmanager
async def schema_rejections(world: World) -> AsyncIterator[Expected]:
    """A producer writes what the schema does not allow."""
    topic, subject = f"{world.name}-schema", f"{world.name}-value"
    text = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    await world.call("topics.create", topic=topic)
    await world.call("schemas.register", subject=subject, schema_type="json_schema", schema_definition=text)
    await world.call(
        "topics.configure_schema", topic=topic, schema_subject=subject, validation_policy="enforce",
        enable_payload_validation=True,
    )  # fmt: skip
    refused = 0
    async with world.client.producer(topic, schema=subject) as producer:
        for i in range(world.random.randint(10, 30)):
            try:
                await producer.send(b'{"n": %d}' % i if world.random.random() < 0.5 else b'{"m": 1}')
            except ClusterError as error:
                if error.code != "PAYLOAD_INVALID":
                    raise
                refused += 1
    yield Expected(
        "schema_rejections", topic, None,
        lambda: {"refused_publishes": refused, "refused_messages_in_window": refused, "schema_subject": subject},
    )  # fmt: skip


@asynccontextmanager
async def world_of(url: str, admin: str, seed: int, name: str) -> AsyncIterator[World]:
    async with connect(url) as client, OpsClient(admin, timeout_s=30.0) as ops:
        yield World(url, client, ops, random.Random(f"{name} {seed}"), f"{name}-{seed}".replace("_", "-"))


async def injected(url: str, admin: str, name: str, fault: Fault, seed: int) -> Found:
    """Break it in one way, and see what is found."""
    async with world_of(url, admin, seed, name) as world, fault(world) as expected:
        found = await diagnosed(world, expected)
        if found.right:
            found.evidence_wrong += await followed(world, found.finding)
        return found


#: what changes something is called after what only looks
READS: Final = (
    "list",
    "describe",
    "lag",
    "peek",
    "get_",
    "status",
    "versions",
    "query",
    "chart",
    "logs",
    "diagnose",
)


async def followed(world: World, finding: dict[str, Any]) -> list[str]:
    """Make the calls that a finding proposes; return those that fail or do not show its subject."""
    wrong = []
    for call in sorted(
        finding["next"], key=lambda call: not any(word in call["operation"] for word in READS)
    ):
        try:
            answer = await world.call(call["operation"], **call["arguments"])
        except ClusterError as error:
            wrong.append(f"{call['command']}: {error}")
            continue
        nobody = call["operation"] in (
            "producers.list",
            "consumers.list",
        )  # that nobody is there is an answer
        if "items" in answer and not answer["items"] and not nobody:
            wrong.append(f"{call['command']}: empty")
        if call["operation"] == "messages.peek" and "offset" in finding["evidence"]:
            wrong += _compare(answer["items"][0], {"offset": finding["evidence"]["offset"]})
    return wrong


def kill_helper(pid: int) -> None:
    """The process that syncs the journal dies: the broker cannot know what is on the disk."""
    os.kill(pid, signal.SIGKILL)
