"""Brokers whose topics are taken over by themselves (`cluster.on_loss`) fail under load; a checker looks at the outcome.

Missing may be only messages that were acknowledged just before their broker failed, because its copy had not sent them.
Everything else that was acknowledged is there once and in order, nothing is there that was not sent, every message is
delivered, and no error reaches the caller of the SDK.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import anyio
import pytest
from anyio import to_thread
from pydanube import connect
from pydanube_core.errors import ClusterError

from tests.cluster import killed_at_a_step
from tests.cluster.real_cluster import BROKERS, RealCluster, real_cluster
from tests.cluster.test_moves_under_load import UNTIERED_ENVIRONMENT
from tests.support.broker_process import BrokerDied
from tests.support.faulty_proxy import Fault as StoreFault
from tests.support.load import NUMBER, PATIENCE, consume_numbers
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(900)]

TOPICS: Final = ("/default/one", "/default/two")
MORE: Final = 100
FAR: Final = 400.0  # longer than any take-over on the slowest machine
SENT_S: Final = 3.0  # more than the linger and a PUT take on the slowest machine
STORE_AWAY_S: Final = 8.0
ENVIRONMENT: Final = {
    **UNTIERED_ENVIRONMENT,
    "DANUBE_JOURNAL__COPY": "true",
    "DANUBE_CLUSTER__ON_LOSS": "take_over",
}


class Told:
    """What the clients of one topic were told."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acknowledged: dict[int, float] = {}  # number → when
        self.sent = 0
        self.delivered: list[int] = []
        self.enough = anyio.Event()

    async def produce(self, urls: str) -> None:
        """Send one number after the other. Any error of a send ends the test."""
        async with connect(urls, retry=PATIENCE) as client, client.producer(self.topic) as producer:
            while not self.enough.is_set():
                number, self.sent = self.sent, self.sent + 1
                await producer.send(NUMBER.pack(number) + bytes(200))
                self.acknowledged[number] = time.monotonic()
                await anyio.sleep(0.005)

    async def stored(self, urls: str) -> list[int]:
        """Return the numbers of all messages of the topic, in order of offsets."""
        async with (
            connect(urls, retry=PATIENCE) as client,
            client.reader(self.topic, stop="head") as reader,
        ):
            return [NUMBER.unpack_from(each.payload)[0] async for each in reader]

    def check(self, found: list[int], failures: list[float]) -> int:
        """Compare with what the topic has. Return how many acknowledged messages are missing."""
        assert len(set(found)) == len(found), "each once"
        assert found == sorted(found), "in order"
        assert set(found) <= set(range(self.sent)), "nothing that was not sent"
        missing = sorted(self.acknowledged.keys() - set(found))
        late = [
            number
            for number in missing
            if not any(at - SENT_S <= self.acknowledged[number] <= at for at in failures)
        ]
        assert not late, f"{len(late)} of {len(self.acknowledged)} acknowledged are missing: {late[:10]}"
        assert set(found) <= set(self.delivered), "all delivered"
        return len(missing)


class Scene:
    """A cluster under load, and when its brokers failed."""

    def __init__(self, cluster: RealCluster, told: list[Told]) -> None:
        self.cluster = cluster
        self.told = told
        self.failures: list[float] = []

    async def more(self, count: int = MORE) -> None:
        """Wait until each topic has so many more acknowledgements."""
        goals = [len(each.acknowledged) + count for each in self.told]
        await until(
            lambda: all(len(each.acknowledged) >= goal for each, goal in zip(self.told, goals, strict=True)),
            FAR,
        )

    async def owner(self, *, other_than: int = 0) -> int:
        """Return the owner of the first topic, once it is another than that one."""
        found: list[int] = []

        async def is_known() -> bool:
            owner = None
            with suppress(ClusterError, AssertionError):
                owner = await self.cluster.owner(TOPICS[0])
            found[:] = [owner] if owner not in (None, other_than) else []
            return bool(found)

        await until(is_known, FAR)
        return found[0]

    async def leader(self) -> int:
        found: list[int] = []

        async def is_known() -> bool:
            leader = None
            with suppress(ClusterError, AssertionError):
                leader = await self.cluster.leader()
            found[:] = [] if leader is None else [leader]
            return bool(found)

        await until(is_known, FAR)
        return found[0]

    async def kill(self, n: int, *, disk: bool = False) -> None:
        """Kill a broker, and delete its disk."""
        broker = self.cluster.brokers[n]
        await to_thread.run_sync(broker.kill)
        self.failures.append(time.monotonic())
        if disk:
            await to_thread.run_sync(shutil.rmtree, broker.data_dir)

    async def moved_to(self, n: int) -> None:
        """Have a broker own all topics."""
        for topic in TOPICS:
            await self.cluster.placed(topic, n)

    async def leader_has_said(self, n: int, event: str) -> None:
        """Wait until a broker's log has an event."""
        await until(lambda: event in self.cluster.brokers[n].log(), FAR)


async def created(cluster: RealCluster, topic: str) -> bool:
    """Create a topic, once the leader has converted the metadata."""
    with suppress(ClusterError):
        await cluster.call("topics.create", {"topic": topic})
        return True
    return False


@asynccontextmanager
async def loaded(tmp_path: Path, more: Mapping[str, str] = MappingProxyType({})) -> AsyncIterator[Scene]:
    """Three brokers under load; checked at the end. `more`: variables of the brokers."""
    with real_cluster(tmp_path, environment={**ENVIRONMENT, **more}, creates_only=True) as cluster:
        await cluster.start()
        for topic in TOPICS:
            await until(lambda topic=topic: created(cluster, topic), FAR)
        scene = Scene(cluster, [Told(topic) for topic in TOPICS])
        leader = await scene.leader()
        await scene.moved_to(next(n for n in BROKERS if n != leader))
        async with anyio.create_task_group() as group:
            for told in scene.told:
                group.start_soon(told.produce, cluster.urls)
                group.start_soon(consume_numbers, cluster.urls, told.topic, told.delivered)
            await scene.more(300)
            yield scene
            await scene.more()
            for told in scene.told:
                told.enough.set()
                await until(lambda told=told: len(told.acknowledged) == told.sent, FAR)
            for told in scene.told:
                found = await told.stored(cluster.urls)
                await until(lambda told=told, found=found: set(told.delivered) >= set(found), FAR)
                missing = told.check(found, scene.failures)
                print(f"{told.topic}: {len(told.acknowledged)} acknowledged, {missing} missing")
            group.cancel_scope.cancel()


async def test_disk_of_a_killed_owner_is_gone(tmp_path: Path) -> None:
    async with loaded(tmp_path) as scene:
        await scene.kill(await scene.owner(), disk=True)
        await scene.more()


async def test_heir_is_killed_amid_a_take_over(tmp_path: Path) -> None:
    async with loaded(tmp_path) as scene:
        owner, leader = await scene.owner(), await scene.leader()
        await scene.kill(owner, disk=True)
        heir = next(n for n in BROKERS if n not in (owner, leader))
        await scene.leader_has_said(leader, "topic_taken_away")
        await scene.kill(heir)
        await scene.more()
        await to_thread.run_sync(scene.cluster.brokers[heir].start)
        await scene.more()


async def test_leader_is_killed_amid_a_take_over(tmp_path: Path) -> None:
    async with loaded(tmp_path) as scene:
        owner, leader = await scene.owner(), await scene.leader()
        await scene.kill(owner)
        await scene.leader_has_said(leader, "topics_taken_over")
        await scene.kill(leader)
        await scene.more()
        for n in (owner, leader):
            await to_thread.run_sync(scene.cluster.brokers[n].start)
        await scene.more()


@pytest.mark.parametrize("step", killed_at_a_step.STEPS)
async def test_leader_or_heir_is_killed_at_each_step_of_a_take_over(tmp_path: Path, step: str) -> None:
    async with loaded(tmp_path, killed_at_a_step.environment(tmp_path)) as scene:
        owner, brokers = await scene.owner(), scene.cluster.brokers
        killed_at_a_step.name(tmp_path, step)
        await scene.kill(owner, disk=True)
        others = [n for n in BROKERS if n != owner]
        await until(lambda: any(not brokers[n].running for n in others), FAR)
        assert killed_at_a_step.is_reached(tmp_path, step)
        scene.failures.append(time.monotonic())
        await scene.more()
        (killed,) = (n for n in others if not brokers[n].running)
        assert await to_thread.run_sync(brokers[killed].wait) == -signal.SIGKILL
        await to_thread.run_sync(brokers[killed].start)
        await scene.more()


@pytest.mark.parametrize("fault", [StoreFault.BUSY, StoreFault.HANG], ids=str)
async def test_store_fails_amid_a_take_over(tmp_path: Path, fault: StoreFault) -> None:
    async with loaded(tmp_path) as scene:
        owner, leader = await scene.owner(), await scene.leader()
        await scene.kill(owner, disk=True)
        await scene.leader_has_said(leader, "member_gone")
        scene.cluster.store.fault = fault
        await anyio.sleep(STORE_AWAY_S)  # the fault itself
        scene.cluster.store.fault = None
        await scene.more()


async def test_owner_stands_still_for_longer_than_its_lease(tmp_path: Path) -> None:
    async with loaded(tmp_path) as scene:
        owner = await scene.owner()
        broker = scene.cluster.brokers[owner]
        scene.failures.append(time.monotonic() + 1)
        broker.pause()
        await scene.more()  # at its heir
        broker.resume()
        await scene.more()
        assert await scene.owner() != owner


async def test_all_brokers_are_killed_at_once_and_started(tmp_path: Path) -> None:
    async with loaded(tmp_path) as scene:
        for broker in scene.cluster.brokers.values():
            await to_thread.run_sync(broker.kill)
        await scene.cluster.start()
        await scene.more()
        assert not scene.failures, "nothing at all may be missing"


async def test_old_id_with_an_empty_journal_serves_none_of_its_topics(tmp_path: Path) -> None:
    async with loaded(tmp_path) as scene:
        owner = await scene.owner()
        await scene.kill(owner)
        broker = scene.cluster.brokers[owner]
        await to_thread.run_sync(shutil.rmtree, broker.data_dir / "journal")
        with suppress(BrokerDied):  # it may refuse to start
            await to_thread.run_sync(broker.start)
        await scene.more()
        assert await scene.owner() != owner
