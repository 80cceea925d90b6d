"""Moves of a topic with 64 MB that the object store does not have, written at 5 MB/s, while clients of both protocols go on.

Every message is acknowledged once, stored once and delivered in order, and no client sees an error, whatever happens
meanwhile: brokers that are killed in the middle of a move, a clock that is hours ahead, an object store that is away.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio import to_thread
from pydanube import Client, connect

from tests.broker.official.raw_client import RawClient
from tests.cluster.real_cluster import BROKERS, RealCluster, real_cluster
from tests.support.faulty_proxy import Fault as StoreFault
from tests.support.load import PATIENCE
from tests.support.stepped_clock import Clock
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(1200)]

TOPIC: Final = "/default/heavy"
MESSAGE_BYTES: Final = 64 << 10
UNTIERED: Final = (64 << 20) // MESSAGE_BYTES
RATE: Final = 5_000_000 / MESSAGE_BYTES  # messages per second
HOURS_S: Final = 3 * 3600
NUMBER: Final = struct.Struct("<QQ")  # producer, number
SDK, OFFICIAL = 1, 2
UNTIERED_ENVIRONMENT: Final = {
    "DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB",
    "DANUBE_TIER__FLUSH_BYTES": "1GiB",
    "DANUBE_TIER__FLUSH_AGE": "1h",
}


class Event(StrEnum):
    NOTHING = "nothing"
    SOURCE_KILLED = "the source is killed"
    TARGET_KILLED = "the target is killed"
    LEADER_KILLED = "the leader is killed"
    CLOCK_AHEAD = "the clock of one broker is three hours ahead"
    STORE_AWAY = "the object store does not answer"


class Clients:
    """A producer at a steady rate, an official producer, and a consumer, with all that they were told."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {SDK: 0, OFFICIAL: 0}  # acknowledged
        self.delivered: dict[int, list[int]] = {SDK: [], OFFICIAL: []}
        self.pauses_s: list[float] = []
        self.enough = anyio.Event()

    async def produce(self, client: Client, begun: anyio.Event) -> None:
        async with client.producer(TOPIC, name="sdk") as producer:
            await producer.send_many([self._payload(SDK, n) for n in range(UNTIERED)])
            self.sent[SDK] = UNTIERED
            begun.set()
            due_s = last_s = time.monotonic()
            while not self.enough.is_set():
                await producer.send(self._payload(SDK, self.sent[SDK]))
                self.sent[SDK] += 1
                now_s = time.monotonic()
                self.pauses_s.append(now_s - last_s)
                last_s = now_s
                due_s = max(due_s + 1 / RATE, now_s - 1.0)
                await anyio.sleep(max(0.0, due_s - now_s))

    async def produce_officially(self, url: str) -> None:
        async with RawClient(url) as client:
            number = await client.create_producer(TOPIC, "official")
            while not self.enough.is_set():
                payload = NUMBER.pack(OFFICIAL, self.sent[OFFICIAL])
                await client.send(TOPIC, number, payload, name="official")
                self.sent[OFFICIAL] += 1
                await anyio.sleep(0.02)

    async def consume(self, client: Client, attached: anyio.Event) -> None:
        async with client.consumer(TOPIC, "s", start="earliest", ack_timeout_ms=3_600_000) as consumer:
            attached.set()
            async for message in consumer:
                producer, number = NUMBER.unpack_from(message.payload)
                self.delivered[producer].append(number)
                await message.ack()

    @staticmethod
    def _payload(producer: int, number: int) -> bytes:
        return NUMBER.pack(producer, number) + bytes(MESSAGE_BYTES - NUMBER.size)

    def all_arrived(self) -> bool:
        return all(len(set(self.delivered[each])) == self.sent[each] for each in self.sent)


@asynccontextmanager
async def clients(cluster: RealCluster, official: Callable[[], str] | None) -> AsyncIterator[Clients]:
    """Clients at work; in the end all that they were told is compared with the log. `official`: the broker to call."""
    told = Clients()
    await cluster.call("topics.create", {"topic": TOPIC})
    async with connect(cluster.urls, retry=PATIENCE) as client, anyio.create_task_group() as consuming:
        attached, begun = anyio.Event(), anyio.Event()
        consuming.start_soon(told.consume, client, attached)
        await attached.wait()
        async with anyio.create_task_group() as producing:
            producing.start_soon(told.produce, client, begun)
            await begun.wait()
            if official is not None:
                producing.start_soon(told.produce_officially, official())
            yield told
            told.enough.set()
        await until(told.all_arrived, 200)
        consuming.cancel_scope.cancel()
    stored: dict[int, list[int]] = {SDK: [], OFFICIAL: []}
    async with connect(cluster.urls, retry=PATIENCE) as client, client.reader(TOPIC, stop="head") as reader:
        async for message in reader:
            producer, number = NUMBER.unpack_from(message.payload)
            stored[producer].append(number)
    for producer, sent in told.sent.items():
        assert stored[producer] == list(range(sent)), "each once, in order"
        first = list(dict.fromkeys(told.delivered[producer]))
        assert first == sorted(first), "delivered in order"
    print(f"{told.sent} acknowledged; longest pause of the producer {max(told.pauses_s):.2f} s")


@pytest.mark.parametrize("event", list(Event), ids=lambda event: event.name.lower())
async def test_a_heavy_topic_moves_and_nothing_is_lost_or_doubled(tmp_path: Path, event: Event) -> None:
    seed = os.environ.get("CLUSTER_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"CLUSTER_SEED={seed}")
    rng = random.Random(f"{seed}/{event}")
    clock = Clock(tmp_path)
    clocks = {2: clock.environment} if event is Event.CLOCK_AHEAD else {}
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, environments=clocks) as cluster:
        if event is Event.CLOCK_AHEAD and not clock.set(HOURS_S):
            pytest.skip("NOT RUN: no C compiler for a clock that is ahead")
        await cluster.start()
        # A client that calls a broker which is killed sees that, so the official one is there where none is.
        killed = event in (Event.SOURCE_KILLED, Event.TARGET_KILLED, Event.LEADER_KILLED)
        async with clients(cluster, None if killed else lambda: cluster.brokers[3].url) as told:
            if event is Event.STORE_AWAY:
                cluster.store.fault = StoreFault.HANG
            for target in (1, 2, 3, 1):
                source = await cluster.owner(TOPIC)
                if source == target or source is None:
                    continue
                if killed:
                    await _killed_in_the_middle(cluster, event, source, target, rng)
                else:
                    task = await cluster.moved(TOPIC, target)
                    assert task["state"] == "done", task
                    assert await cluster.owner(TOPIC) == target
                before = told.sent[SDK]
                await until(lambda before=before: told.sent[SDK] > before + 20)
            cluster.store.fault = None
            if not killed:
                assert not await cancelled(cluster)


async def _killed_in_the_middle(
    cluster: RealCluster, event: Event, source: int, target: int, rng: random.Random
) -> None:
    """Begin a move, kill a broker somewhere within it, start it again, and wait until the topic is served."""
    asked = next(n for n in BROKERS if n not in (source, target))
    begun = await cluster.call("topics.move", {"topic": TOPIC, "to_broker": cluster.id_of(target)})
    assert begun["moves"]
    await anyio.sleep(rng.random() * 2.0)
    hit = {Event.SOURCE_KILLED: source, Event.TARGET_KILLED: target}.get(event)
    if hit is None:
        hit = await cluster.leader() or asked
    await to_thread.run_sync(cluster.brokers[hit].kill)
    await to_thread.run_sync(cluster.brokers[hit].start)

    async def served() -> bool:
        return await cluster.owner(TOPIC) is not None

    await until(served, 200)


async def test_a_broker_with_a_heavy_topic_is_drained_under_load(tmp_path: Path) -> None:
    """Each broker that has the topic is drained in turn, and is without any topic in the end."""
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT) as cluster:
        await cluster.start()
        for n in range(30):
            await cluster.call("topics.create", {"topic": f"beside-{n}"})
        async with clients(cluster, lambda: cluster.brokers[3].url) as told:
            for _ in range(3):
                source = await cluster.owner(TOPIC)
                assert source is not None
                drained = {"broker_id": cluster.id_of(source)}

                async def is_empty(drained: dict[str, str] = drained) -> bool:
                    listed = (await cluster.call("brokers.list"))["items"]
                    return [
                        each["topics"] for each in listed if each["broker_id"] == drained["broker_id"]
                    ] == [0]

                begun_s = time.monotonic()
                await cluster.call("brokers.unload", drained)
                await until(is_empty, 150)
                print(f"drained in {time.monotonic() - begun_s:.1f} s")
                await cluster.call("brokers.activate", drained)
                before = told.sent[SDK]
                await until(lambda before=before: told.sent[SDK] > before + 20)
            assert not await cancelled(cluster)


async def cancelled(cluster: RealCluster) -> list[dict[str, Any]]:
    """Return the findings about cancelled moves."""
    findings = (await cluster.call("diagnose.cluster"))["findings"]
    return [each for each in findings if each["rule"] == "move_cancelled"]


async def test_a_move_that_does_not_get_on_is_a_finding_and_its_task_begins_it_again(tmp_path: Path) -> None:
    """Owner and target do not reach each other for longer than a step may take."""
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT) as cluster:
        await cluster.start()
        async with clients(cluster, None):
            source = await cluster.owner(TOPIC)
            assert source is not None
            target, asked = (n for n in BROKERS if n != source)
            at = cluster.brokers[asked]
            cluster.networks.cut(source, target)
            cluster.networks.cut(target, source)
            move = {"topic": TOPIC, "to_broker": cluster.id_of(target)}
            task_id = {"task_id": (await cluster.call("topics.move", move, at=at))["task_id"]}

            async def is_told() -> bool:
                return bool(await cancelled(cluster))

            await until(is_told, 150)
            [finding] = await cancelled(cluster)
            assert (finding["evidence"]["target"], [*finding["evidence"]["topics"]]) == (
                move["to_broker"],
                [TOPIC],
            )
            assert await cluster.owner(TOPIC) == source, "which serves it meanwhile"
            task = await cluster.call("tasks.get", task_id, at=at)
            assert task["state"] == "running"
            cluster.networks.heal()

            async def is_done() -> bool:
                return (await cluster.call("tasks.get", task_id, at=at))["state"] != "running"

            await until(is_done, 150)
            task = await cluster.call("tasks.get", task_id, at=at)
            assert task["state"] == "done", task
            assert await cluster.owner(TOPIC) == target
            assert not await cancelled(cluster)


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_consumer_that_is_away_for_longer_than_ten_seconds_keeps_its_place(
    tmp_path: Path, loaded: bool
) -> None:
    """The owner has stopped, and the target does not reach it for 13 s: what the consumer holds is not delivered again.

    `loaded`: while the heavy topic is written.
    """
    quiet = "/default/quiet"
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT if loaded else {}) as cluster:
        await cluster.start()
        await cluster.call("topics.create", {"topic": quiet})
        seen: list[int] = []
        async with (
            clients(cluster, None) if loaded else nullcontext(),
            connect(cluster.urls, retry=PATIENCE) as client,
            client.producer(quiet) as producer,
            client.consumer(quiet, "s", start="earliest", ack_timeout_ms=3_600_000) as consumer,
        ):
            for n in range(40):
                await producer.send(b"%d" % n)
            held = await consumer.receive(max_messages=20)
            seen += [message.offset for message in held]
            owner = await cluster.owner(quiet)
            assert owner is not None
            for other in BROKERS:
                if other != owner:
                    cluster.networks.cut(owner, other)
                    cluster.networks.cut(other, owner)
            away_s, sent = 0.0, 40
            async with anyio.create_task_group() as group:

                async def heal() -> None:
                    await anyio.sleep(13.0)
                    cluster.networks.heal()

                group.start_soon(heal)
                admin = cluster.brokers[owner]
                await cluster.call("brokers.unload", {"broker_id": cluster.id_of(owner)}, at=admin)
                with anyio.fail_after(100):
                    while away_s < 10.0:  # one send meets the time in which no broker serves the topic
                        begun_s = time.monotonic()
                        await producer.send(b"%d" % sent)
                        sent, away_s = sent + 1, time.monotonic() - begun_s
            for message in held:
                await message.ack()
            await consumer.flush_acks()
            while len(seen) < sent:
                for message in await consumer.receive(max_messages=sent, max_wait_s=5):
                    seen.append(message.offset)
                    await message.ack()
            await consumer.flush_acks()
        assert seen == list(range(sent)), "nothing was delivered again"
