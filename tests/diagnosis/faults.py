"""The list of faults, and the newer of them: what one broker can have at once, and what weighs on all of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from pydanube import ClusterError, Message

from tests.broker.official.raw_client import RawClient
from tests.diagnosis.injector import (
    Expected,
    Fault,
    World,
    _flow,
    _lag_is,
    _running,
    consumer_dead,
    consumer_not_acking,
    consumer_slow,
    cursor_rewound,
    dead_letters_growing,
    hot_key,
    messages_dropped,
    no_consumers,
    poison_message,
    produce_burst,
    producer_stopped,
    publish_throttled,
    schema_rejections,
)
from tests.support.waiting import until

FEWEST_SLOW: Final = 3  # slow syncs, or late ones, that make a finding
LOOKING_S: Final = 10.0  # for a sync to stop the helper in
#: this system call's number in /proc/PID/syscall
FDATASYNC: Final = {"x86_64": b"75"}.get(platform.machine(), b"83")

# -- subscriptions -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def message_held(world: World) -> AsyncIterator[Expected]:
    """One message is never answered, all later ones are."""
    topic = f"{world.name}-held"
    count, odd = world.random.randint(20, 80), world.random.randrange(5)
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s", type="shared")

    async def work() -> None:
        async with world.client.consumer(topic, "s", type="shared", name="forgetful") as consumer:
            async for message in consumer:
                if message.offset != odd:
                    await message.ack()

    async with _running(work()):
        yield Expected(
            "message_held", topic, "s",
            lambda: {"offset": odd, "acknowledged_above": count - odd - 1, "in_flight": 1, "consumer": "forgetful",
                     "lag_messages": 1},
        )  # fmt: skip


@asynccontextmanager
async def crash_loop(world: World) -> AsyncIterator[Expected]:
    """A consumer is started again and again, and dies each time after a few messages."""
    topic = f"{world.name}-loop"
    each = world.random.randint(5, 30)
    for _ in range(3):
        await world.publish(topic, each)
        async with world.program("consume", world.url, topic, "s") as consumer:
            await consumer.until(1)
            consumer.signal(signal.SIGKILL)
    await world.publish(topic, each)
    yield Expected(
        "consumer_crash_loop", topic, "s",
        lambda: {"departures": 3, "broken_connections": 3, "lag_messages": (each, 4 * each), "consumer": "worker"},
    )  # fmt: skip


@asynccontextmanager
async def fruitless_loop(world: World) -> AsyncIterator[Expected]:
    """A consumer comes, takes a message, and goes without an answer, each time anew."""
    topic = f"{world.name}-fruitless"
    count, times = world.random.randint(30, 60), world.random.randint(3, 6)
    await world.publish(topic, count)
    for _ in range(times):
        async with world.client.consumer(topic, "s") as consumer:
            await consumer.receive(max_messages=1, max_wait_s=5)
    yield Expected(
        "consumer_crash_loop", topic, "s",
        lambda: {"departures": times, "broken_connections": 0, "without_progress": times, "lag_messages": count},
    )  # fmt: skip


@asynccontextmanager
async def hung_consumer(world: World) -> AsyncIterator[Expected]:
    """A consumer takes messages and lets every one of them expire."""
    topic = f"{world.name}-hung"
    await world.publish(topic, world.random.randint(5, 20))
    await world.call("subscriptions.create", topic=topic, subscription="s", type="shared")
    await world.call("subscriptions.set_failure_policy", topic=topic, subscription="s", ack_timeout_ms=300)
    async with world.client.consumer(topic, "s", type="shared", name="hung") as consumer:
        await consumer.receive(max_messages=1, max_wait_s=5)
        yield Expected("consumer_expiring", topic, "s", lambda: {"consumer": "hung", "expiring_consumers": 1})


@asynccontextmanager
async def rate_stepped(world: World) -> AsyncIterator[Expected]:
    """A hundred times as many messages come from a moment on, and the consumer gets slower at that moment."""
    topic = f"{world.name}-step"
    await world.call("topics.create", topic=topic)
    pace = {"each": 1, "work_s": 0.02}
    sent = 0

    async def produce() -> None:
        nonlocal sent
        async with world.client.producer(topic) as producer:
            while True:
                await producer.send_many([b"x"] * pace["each"])
                sent += pace["each"]
                await asyncio.sleep(0.05)

    async def consume() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                await asyncio.sleep(pace["work_s"])
                await message.ack()

    async with _running(produce(), consume()):
        await until(lambda: sent >= 50)
        pace |= {"each": 60, "work_s": 0.1}
        yield Expected(
            "rate_step", topic, "s", lambda: {"produced_before": (12, 25), "produced_since": (500, 1500)}
        )


@asynccontextmanager
async def sessions_growing(world: World) -> AsyncIterator[Expected]:
    """A program opens a producer for each message and closes none."""
    topic = f"/default/{world.name}-sessions"
    await world.call("topics.create", topic=topic)
    count = 0
    async with RawClient(world.url) as raw:

        async def leak() -> None:
            nonlocal count
            while count < 200:
                await raw.create_producer(topic, f"leaked-{count}")
                count += 1
                await asyncio.sleep(0.02)
            await asyncio.Event().wait()

        async with _running(leak()):
            yield Expected("sessions_growing", topic, None, lambda: {"producers": (50, 200)})


@asynccontextmanager
async def consumer_refused(world: World) -> AsyncIterator[Expected]:
    """A consumer holds an exclusive subscription and answers nothing; another one tries to attach."""
    topic = f"{world.name}-refused"
    count, times = world.random.randint(5, 50), world.random.randint(3, 6)
    await world.publish(topic, count)
    async with world.client.consumer(topic, "s", name="holder") as holder:
        await holder.receive(max_messages=1, max_wait_s=5)
        for _ in range(times):
            with contextlib.suppress(ClusterError):
                async with world.client.consumer(topic, "s", name="other") as other:
                    await other.receive(max_messages=1, max_wait_s=0.2)
        yield Expected(
            "consumer_refused", topic, "s",
            lambda: {"refused_of_consumer": times, "consumer": "other", "holder": "holder", "code": "CONSUMER_BUSY",
                     "lag_messages": count},
        )  # fmt: skip


@asynccontextmanager
async def everything_fails(world: World) -> AsyncIterator[Expected]:
    """An application cannot work on anything."""
    topic = f"{world.name}-broken"
    count = world.random.randint(15, 40)
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s", type="shared")
    await world.call(
        "subscriptions.set_failure_policy", topic=topic, subscription="s", base_redelivery_delay_ms=50,
        max_redelivery_delay_ms=50, backoff_strategy="fixed",
    )  # fmt: skip

    async def work() -> None:
        async with world.client.consumer(topic, "s", type="shared") as consumer:
            async for message in consumer:
                await message.nack(reason="no database")

    async with _running(work()):
        yield Expected(
            "everything_fails", topic, "s",
            lambda: {"failing": count, "acknowledged_in_window": 0, "lag_messages": count},
            {"reason": "no database"},
        )  # fmt: skip


@asynccontextmanager
async def ack_timeout_short(world: World) -> AsyncIterator[Expected]:
    """Every message takes longer than its ack timeout, and is acknowledged then."""
    topic = f"{world.name}-hasty"
    await world.publish(topic, 60)
    await world.call("subscriptions.create", topic=topic, subscription="s", type="shared")
    await world.call(
        "subscriptions.set_failure_policy", topic=topic, subscription="s", ack_timeout_ms=300, max_redelivery_count=50,
        base_redelivery_delay_ms=20, max_redelivery_delay_ms=20, backoff_strategy="fixed",
    )  # fmt: skip

    async def work() -> None:
        async with world.client.consumer(topic, "s", type="shared", name="thorough") as consumer:
            while True:
                for message in await consumer.receive(max_messages=1, max_wait_s=5):
                    await asyncio.sleep(0.45)
                    await message.ack()

    async with _running(work()):
        yield Expected(
            "ack_timeout_short", topic, "s", lambda: {"consumers": 1, "expired_in_window": (3, 400)}
        )


@asynccontextmanager
async def worker_slow(world: World) -> AsyncIterator[Expected]:
    """One of four workers takes twenty times as long as each of the others."""
    topic, odd = f"{world.name}-workers", f"w{world.random.randrange(4)}"
    await world.call("topics.create", topic=topic)
    await world.call("subscriptions.create", topic=topic, subscription="s", type="shared")

    async def produce() -> None:
        async with world.client.producer(topic) as producer:
            while True:
                await producer.send_many([b"x"] * 4)
                await asyncio.sleep(0.1)

    async def work(name: str) -> None:
        async with world.client.consumer(topic, "s", type="shared", name=name) as consumer:
            async for message in consumer:
                await asyncio.sleep(1.0 if name == odd else 0.05)
                await message.ack()

    async with _running(produce(), *(work(f"w{at}") for at in range(4))):
        yield Expected(
            "worker_slow", topic, "s",
            lambda: {"consumer": odd, "handling_p50_ms": (500, 2500), "others_handling_p50_ms": (30, 250), "consumers": 4},
        )  # fmt: skip


@asynccontextmanager
async def filter_matches_nothing(world: World) -> AsyncIterator[Expected]:
    """The filter of the only consumer fits no key there is."""
    topic = f"{world.name}-filter"
    count = world.random.randint(10, 90)
    await world.call("topics.create", topic=topic)
    options: dict[str, Any] = {"type": "key-shared", "key_filters": ["order-*"]}
    async with world.client.consumer(topic, "s", **options) as consumer:
        waiting = asyncio.create_task(consumer.receive(max_messages=1, max_wait_s=60))
        await world.publish(topic, count, key="Order-7")
        await _lag_is(world, topic, 0)
        try:
            yield Expected(
                "filter_matches_nothing", topic, "s", lambda: {"passed_over": count, "lag_messages": 0}
            )
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


RETENTION_S: Final = 5


@asynccontextmanager
async def retention_without_reader(world: World) -> AsyncIterator[Expected]:
    """Retention does not wait for a subscription that nobody reads."""
    topic = f"{world.name}-kept"
    count = world.random.randint(20, 60)
    await world.call(
        "topics.create", topic=topic, policies={"retention_age_s": RETENTION_S, "drop_unread": 1}
    )
    await world.call("subscriptions.create", topic=topic, subscription="s")
    await world.publish(topic, count)
    yield Expected("retention_risk", topic, "s", lambda: {"consumers": 0})


@asynccontextmanager
async def retention_with_reader(world: World) -> AsyncIterator[Expected]:
    """Retention does not wait, and the consumer reads too slowly."""
    topic = f"{world.name}-late"
    await world.call(
        "topics.create", topic=topic, policies={"retention_age_s": RETENTION_S, "drop_unread": 1}
    )
    async with _flow(world, topic, per_s=60, consume_per_s=4) as counts:
        await until(lambda: counts["sent"] >= 100)
        yield Expected("retention_risk", topic, "s", lambda: {"consumers": 1})


@asynccontextmanager
async def dead_letters_after_retries(world: World) -> AsyncIterator[Expected]:
    """Some messages fail until the policy takes them away."""
    topic = f"{world.name}-retries"
    count = world.random.randint(20, 60)
    bad = set(world.random.sample(range(count), world.random.randint(2, 6)))
    await world.publish(topic, count)
    await world.call("subscriptions.create", topic=topic, subscription="s")
    await world.call(
        "subscriptions.set_failure_policy", topic=topic, subscription="s", poison_policy="dead_letter",
        max_redelivery_count=1, base_redelivery_delay_ms=20, max_redelivery_delay_ms=20, backoff_strategy="fixed",
    )  # fmt: skip

    async def work() -> None:
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                await (message.nack(reason="not today") if message.offset in bad else message.ack())

    async with _running(work()):
        yield Expected("dead_letters_growing", topic, "s", lambda: {"dead_lettered": len(bad)})


@asynccontextmanager
async def dispatch_limited(world: World) -> AsyncIterator[Expected]:
    """Consumers could work, and a policy of the topic holds them back."""
    topic = f"{world.name}-limited"
    await world.call("topics.create", topic=topic, policies={"max_subscription_dispatch_rate": 10})
    async with _flow(world, topic, per_s=80, consume_per_s=1000) as counts:
        await until(lambda: counts["sent"] >= 240)
        yield Expected("consumer_slow", topic, "s", lambda: {"dispatch_rate_limit": 10})


@asynccontextmanager
async def rewound_without_reader(world: World) -> AsyncIterator[Expected]:
    """Somebody moved the cursor back, and nobody is there to read again."""
    topic = f"{world.name}-back"
    count = world.random.randint(50, 90)
    to = world.random.randrange(count // 2)
    await world.publish(topic, count)
    async with world.client.consumer(topic, "s") as consumer:
        left = count
        while left:
            for message in await consumer.receive(max_messages=left, max_wait_s=5):
                await message.ack()
                left -= 1
    await _lag_is(world, topic, 0)
    await world.call("subscriptions.seek", topic=topic, subscription="s", to=f"offset:{to}")
    yield Expected("cursor_rewound", topic, "s", lambda: {"from_offset": count, "to_offset": to})


# -- topics ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def publish_too_large(world: World) -> AsyncIterator[Expected]:
    """A producer sends messages beyond what the topic takes."""
    topic = f"/default/{world.name}-large"
    limit, count = 100 * world.random.randint(1, 9), world.random.randint(3, 20)
    await world.call("topics.create", topic=topic, policies={"max_message_size": limit})
    async with RawClient(world.url) as raw:
        producer = await raw.create_producer(topic)
        for _ in range(count):
            with contextlib.suppress(Exception):
                await raw.send(topic, producer, b"x" * (limit + 1))
        yield Expected(
            "publish_too_large", topic, None, lambda: {"refused_publishes": count, "max_message_size": limit}
        )


@asynccontextmanager
async def producer_limit(world: World) -> AsyncIterator[Expected]:
    """More producers come than the topic's quota allows."""
    topic = f"/default/{world.name}-quota"
    count = world.random.randint(2, 9)
    await world.call("topics.create", topic=topic, policies={"max_producers_per_topic": 1})
    async with world.client.producer(topic) as first:
        await first.send(b"x")
        for _ in range(count):
            with contextlib.suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(0.4), world.client.producer(topic) as another:
                    await another.send(b"x")
        yield Expected("producer_limit", topic, None, lambda: {"producers": 1, "max_producers_per_topic": 1})


@asynccontextmanager
async def publish_over_quota(world: World, too_large: int = 0) -> AsyncIterator[Expected]:
    """A topic refuses messages because its namespace may store no more, and some before that for their size."""
    namespace = f"{world.name}-ns"
    topic, count = f"/{namespace}/two", world.random.randint(3, 9)
    await world.call("namespaces.create", namespace=namespace)
    await world.call("topics.create", topic=topic, policies={"max_message_size": 100})
    async with RawClient(world.url) as raw:
        producer = await raw.create_producer(topic)
        await raw.send(topic, producer, b"x" * 50)
        for _ in range(too_large):
            with contextlib.suppress(Exception):
                await raw.send(topic, producer, b"x" * 101)
        await world.call("quotas.set", namespace=namespace, limits={"stored_bytes": 1})
        refused = 0
        while refused < count:  # its stored bytes are measured from time to time
            try:
                await raw.send(topic, producer, b"x" * 50)
            except Exception as error:
                if "QUOTA_EXCEEDED" not in str(error):
                    raise
                refused += 1
        yield Expected(
            "publish_over_quota", topic, None,
            lambda: {"quotas": [f"namespace {namespace}: stored_bytes"], "refused_publishes_in_window": count},
        )  # fmt: skip


@asynccontextmanager
async def repeated_publishes(world: World) -> AsyncIterator[Expected]:
    """A program publishes its batch again with a new producer, though it had been stored."""
    topic, before = f"{world.name}-again", world.random.randint(1, 30)
    count = world.random.randint(25, 60)
    await world.publish(topic, before)
    for _ in range(2):
        async with world.client.producer(topic) as producer:
            await producer.send_many([Message.new(b"order %d" % at, key=f"k{at % 7}") for at in range(count)])
    yield Expected(
        "repeated_publishes", topic, None,
        lambda: {"repeated_messages": count, "first_offset": before, "again_offset": before + count},
    )  # fmt: skip


@asynccontextmanager
async def publish_time_off(world: World) -> AsyncIterator[Expected]:
    """The clock of one producer's machine is minutes ahead; that of another is right."""
    topic, ahead_s = f"/default/{world.name}-clock", world.random.randint(120, 900)
    await world.call("topics.create", topic=topic)
    async with RawClient(world.url) as raw:
        names = {name: await raw.create_producer(topic, name) for name in ("right", "wrong")}

        async def publish() -> None:
            for at in itertools.count():
                for name, producer in names.items():
                    time_ms = int(1000 * (time.time() + (ahead_s if name == "wrong" else 0)))
                    await raw.send(topic, producer, b"%d" % at, name, publish_time=time_ms)
                await asyncio.sleep(0.05)

        async with _running(publish()):
            yield Expected(
                "publish_time_off", topic, None,
                lambda: {"behind_s": (-ahead_s - 5, -ahead_s + 5), "other_producers": 1},
                {"producer": "wrong"},
            )  # fmt: skip


@asynccontextmanager
async def schema_warned(world: World) -> AsyncIterator[Expected]:
    """What does not fit the schema is let through and counted."""
    topic, subject = f"{world.name}-warned", f"{world.name}-value"
    text = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    await world.call("topics.create", topic=topic)
    await world.call("schemas.register", subject=subject, schema_type="json_schema", schema_definition=text)
    await world.call(
        "topics.configure_schema", topic=topic, schema_subject=subject, validation_policy="warn",
        enable_payload_validation=True,
    )  # fmt: skip
    count = world.random.randint(3, 30)
    async with world.client.producer(topic, schema=subject) as producer:
        for _ in range(count):
            await producer.send(b'{"m": 1}')
    yield Expected(
        "schema_rejections", topic, None, lambda: {"refused_publishes": 0, "schema_subject": subject}
    )


@asynccontextmanager
async def topic_burst(world: World) -> AsyncIterator[Expected]:
    """Much comes at once, and its consumer keeps pace."""
    topic = f"{world.name}-much"
    burst = world.random.choice([600, 900])
    await world.call("topics.create", topic=topic)
    async with _flow(world, topic, per_s=20, consume_per_s=100_000) as counts:
        await until(lambda: counts["sent"] >= 60)
        await world.publish(topic, burst)
        yield Expected("topic_burst", topic, None, lambda: {"burst_messages": (0.9 * burst, 1.1 * burst)})


# -- the broker ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reconnect_storm(world: World) -> AsyncIterator[Expected]:
    """A client connects and goes again, for as long as the fault lasts."""
    host, _, port = world.url.removeprefix("http://").partition(":")
    count, opened = world.random.randint(150, 300), 0

    async def storm() -> None:
        nonlocal opened
        while True:
            with contextlib.suppress(OSError):  # one connection is refused, or reset while it closes
                _, writer = await asyncio.open_connection(host, int(port))
                opened += 1
                writer.close()
                await writer.wait_closed()
            if opened >= count:  # then slowly enough to leave the processor to the broker
                await asyncio.sleep(0.005)

    async with _running(storm()) as [task]:
        await until(lambda: opened >= count or task.done())
        assert not task.done(), task.exception()
        yield Expected("reconnect_storm", None, None, lambda: {"opened_in_window": (100, opened + 20)})


@asynccontextmanager
async def noisy_neighbour(world: World) -> AsyncIterator[Expected]:
    """One topic is flooded by processes, others get little."""
    loud, low = f"{world.name}-loud", f"{world.name}-low"
    await world.call("topics.create", topic=loud)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(world.program("flood", world.url, loud, "0"))

        async def little() -> None:
            async with world.client.producer(low) as producer:
                while True:
                    await producer.send(b"x")
                    await asyncio.sleep(0.1)

        async with _running(little()):
            yield Expected("noisy_neighbour", None, None, lambda: {"share": (0.7, 1.0)})


@asynccontextmanager
async def slow_sync(world: World, helper: int) -> AsyncIterator[Expected]:
    """The process that syncs the journal stands still within its syncs, as on a disk that does."""
    try:
        _is_within_sync(helper)
    except OSError as error:
        pytest.skip(f"NOT RUN: the system calls of another process cannot be read here: {error}")
    over = threading.Event()

    def stutter() -> (
        None
    ):  # in one thread, which is waited for: it alone stops the helper, and lets it go on last
        try:
            while _stopped_within_sync(helper, over):
                over.wait(0.7)
                os.kill(helper, signal.SIGCONT)
        finally:
            os.kill(helper, signal.SIGCONT)

    async def publish() -> None:
        async with world.client.producer(f"{world.name}-disk") as producer:
            while True:
                await producer.send(bytes(512 << 10))  # whose syncs take long enough to meet one

    stuttering = asyncio.get_running_loop().run_in_executor(None, stutter)
    try:
        async with _running(publish()):
            yield Expected("disk_sync_slow", None, None, lambda: {"slow_syncs": (3, 10)})
    finally:
        over.set()
        with anyio.CancelScope(shield=True):
            await stuttering


def _stopped_within_sync(helper: int, over: threading.Event) -> bool:
    """Stop the helper within a sync, and return False if the fault is over first.

    A helper that is stopped elsewhere runs on: its next sync would count as begun late. The thread looks without pause
    because a sync takes about a millisecond. Where it takes next to nothing, the helper is stopped anywhere in the end.
    """
    end = time.monotonic() + LOOKING_S
    while not over.is_set():
        late = time.monotonic() > end
        if not late and not _is_within_sync(helper):
            continue
        os.kill(helper, signal.SIGSTOP)
        while _state_of(helper) != "T" and not over.is_set():  # its sync ends first
            pass
        if late or _is_within_sync(helper):
            return True
        os.kill(helper, signal.SIGCONT)
    return False


def _is_within_sync(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_bytes().split()[0] == FDATASYNC


@asynccontextmanager
async def sync_helper_slow(world: World, helper: int) -> AsyncIterator[Expected]:
    """The process that syncs the journal gets no processor at requests, and its syncs are as fast as ever."""
    stalls = 0

    async def stall() -> None:
        nonlocal stalls
        async with world.client.producer(f"{world.name}-queue") as producer:
            await producer.send(b"x")
            while True:
                await until(lambda: _state_of(helper) == "S")  # it has answered, and waits for a request
                os.kill(helper, signal.SIGSTOP)
                try:
                    waiting = asyncio.create_task(producer.send(b"x"))
                    await asyncio.sleep(0.7)
                finally:
                    os.kill(helper, signal.SIGCONT)
                await waiting
                stalls += 1

    async with _running(stall()):
        await until(lambda: stalls >= FEWEST_SLOW)
        yield Expected(
            "sync_helper_slow", None, None,
            lambda: {"slow_waits": (FEWEST_SLOW, stalls + 1), "wait_p99_ms": (500.0, 1000.0)},
        )  # fmt: skip


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@asynccontextmanager
async def threshold_exceeded(world: World) -> AsyncIterator[Expected]:
    """A consumer keeps up, and holds more than its operator wants to wait."""
    topic = f"{world.name}-threshold"
    threshold = world.random.randint(3, 9)
    await world.call("topics.create", topic=topic, policies={"alert_unread_messages": threshold})
    rate = world.random.choice([60, 90, 120])
    sent = 0

    async def produce() -> None:
        nonlocal sent
        async with world.client.producer(topic) as producer:
            while True:
                await producer.send_many([b"x"] * (rate // 10))
                sent += rate // 10
                await asyncio.sleep(0.1)

    async def consume() -> None:
        held: deque[Any] = deque()
        async with world.client.consumer(topic, "s") as consumer:
            async for message in consumer:
                held.append(message)
                if len(held) > rate // 3:
                    await held.popleft().ack()

    async with _running(produce(), consume()):
        await until(lambda: sent > rate)
        yield Expected(
            "threshold_exceeded", topic, "s",
            lambda: {"lag_messages": (threshold + 1, rate), "alert_unread_messages": threshold},
        )  # fmt: skip


#: those that one broker can have at once
FAULTS: Final[dict[str, Fault]] = {
    "no_consumers": no_consumers,
    "consumer_left": partial(no_consumers, read=3),
    "consumer_dead": consumer_dead,
    "consumer_stopped": partial(consumer_dead, how=signal.SIGSTOP),
    "consumer_not_acking": consumer_not_acking,
    "message_held": message_held,
    "crash_loop": crash_loop,
    "fruitless_loop": fruitless_loop,
    "hung_consumer": hung_consumer,
    "rate_stepped": rate_stepped,
    "sessions_growing": sessions_growing,
    "consumer_refused": consumer_refused,
    "everything_fails": everything_fails,
    "ack_timeout_short": ack_timeout_short,
    "worker_slow": worker_slow,
    "poison_message": poison_message,
    "dead_letters_growing": dead_letters_growing,
    "dead_letters_after_retries": dead_letters_after_retries,
    "messages_dropped": messages_dropped,
    "hot_key": hot_key,
    "cursor_rewound": cursor_rewound,
    "rewound_without_reader": rewound_without_reader,
    "consumer_slow": consumer_slow,
    "dispatch_limited": dispatch_limited,
    "produce_burst": produce_burst,
    "topic_burst": topic_burst,
    "filter_matches_nothing": filter_matches_nothing,
    "retention_without_reader": retention_without_reader,
    "retention_with_reader": retention_with_reader,
    "producer_killed": producer_stopped,
    "producer_stopped": partial(producer_stopped, how=signal.SIGSTOP),
    "publish_throttled": publish_throttled,
    "publish_too_large": publish_too_large,
    "publish_over_quota": publish_over_quota,
    "producer_limit": producer_limit,
    "repeated_publishes": repeated_publishes,
    "publish_time_off": publish_time_off,
    "schema_rejections": schema_rejections,
    "schema_warned": schema_warned,
    "threshold_exceeded": threshold_exceeded,
}
