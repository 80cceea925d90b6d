"""Owners of a stored topic are killed under load and their disks deleted, or stand still for longer than their lease.

An independent checker compares what clients were told with what the topic has: everything acknowledged is there once, in
order, and offsets have neither a gap nor a jump. No error reaches the caller of the SDK.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import to_thread
from pydanube import connect
from pydanube_core.errors import AlreadyExists, Conflict, NoOwner

from tests.cluster.networks import ETCD, STORE
from tests.cluster.real_cluster import RealCluster, real_cluster
from tests.cluster.test_moves_under_load import UNTIERED_ENVIRONMENT
from tests.conformance.official.conftest import Scenario
from tests.support.faulty_proxy import Fault as StoreFault
from tests.support.load import NUMBER, PATIENCE, consume_numbers
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(600)]

TOPIC: Final = "/default/payments"
BATCH: Final = 20
MORE: Final = 2_000
OTHER: Final = "/default/fsynced"
STORE_AWAY_S: Final = 5.0
SETTLED_S: Final = 3.0  # until what was under way to the store is answered
BEYOND_LEASE_S: Final = 13.0  # a lease is 10 s
FAR: Final = 300.0  # longer than any take-over on the slowest machine


class Told:
    """What clients were told, for the checker."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}  # number → its offset
        self.levels: set[str] = set()
        self.sent = 0
        self.delivered: list[int] = []
        self.enough = anyio.Event()

    async def produce(self, urls: str) -> None:
        async with connect(urls, retry=PATIENCE) as client, client.producer(TOPIC) as producer:
            while not self.enough.is_set():
                numbers = range(self.sent, self.sent + BATCH)
                self.sent += BATCH
                receipts = [producer.send_nowait(NUMBER.pack(number) + bytes(200)) for number in numbers]
                for number, waiting in zip(numbers, receipts, strict=True):
                    receipt = await waiting
                    self.acknowledged[number] = receipt.offset
                    self.levels.add(receipt.durability)

    async def more(self, count: int = MORE) -> None:
        """Wait until that many more messages are acknowledged."""
        goal = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= goal, FAR)


def check(told: Told, found: list[tuple[int, int]]) -> None:
    """Compare what was told with what the topic has: (offset, number) of all messages."""
    numbers = [number for _, number in found]
    assert [offset for offset, _ in found] == list(range(len(found))), "no gap, no jump"
    assert len(set(numbers)) == len(numbers), "each once"
    assert numbers == sorted(numbers), "in order"
    at = {number: offset for offset, number in found}
    lost = {number for number, offset in told.acknowledged.items() if at.get(number) != offset}
    assert not lost, f"{len(lost)} acknowledged messages are missing, or elsewhere: {sorted(lost)[:10]}"
    assert set(numbers) <= set(range(told.sent)), "nothing that was not sent"
    assert told.levels == {"stored"}
    first = list(dict.fromkeys(told.delivered))
    assert first == sorted(first), "first deliveries in order"
    assert set(first) == set(numbers), "all delivered"


async def created(cluster: RealCluster) -> bool:
    """Create the topic, once the leader has converted the metadata."""
    with suppress(Conflict):
        with suppress(AlreadyExists):  # by a call whose answer came too late
            await cluster.call("topics.create", {"topic": TOPIC, "durability": "stored"})
        return True
    return False


@asynccontextmanager
async def loaded(cluster: RealCluster, *, start: bool = True) -> AsyncIterator[Told]:
    """A stored topic under load; checked at the end. `start`: the brokers do not run yet."""
    if start:
        await cluster.start()
    await until(lambda: created(cluster), FAR)
    told = Told()
    async with anyio.create_task_group() as group:
        group.start_soon(told.produce, cluster.urls)
        group.start_soon(consume_numbers, cluster.urls, TOPIC, told.delivered)
        await told.more()
        yield told
        await told.more()
        told.enough.set()
        await until(lambda: len(told.acknowledged) == told.sent, FAR)
        async with (
            connect(cluster.urls, retry=PATIENCE) as client,
            client.reader(TOPIC, stop="head") as reader,
        ):
            found = [(each.offset, NUMBER.unpack_from(each.payload)[0]) async for each in reader]
        expected = {number for _, number in found}
        await until(lambda: set(told.delivered) >= expected, FAR)
        group.cancel_scope.cancel()
    check(told, found)


async def owner_of(cluster: RealCluster) -> int:
    found: list[int] = []

    async def is_known() -> bool:
        owner = await cluster.owner(TOPIC)
        found[:] = [] if owner is None else [owner]
        return bool(found)

    await until(is_known, FAR)
    return found[0]


@pytest.mark.parametrize("store", ["s3", "folder"])
async def test_disks_of_killed_owners_are_gone_and_nothing_is_lost(tmp_path: Path, store: str) -> None:
    environment = dict(UNTIERED_ENVIRONMENT)
    if store == "folder":
        environment["DANUBE_TIER__URL"] = str(tmp_path / "objects")
    with real_cluster(tmp_path, environment=environment, creates_only=store == "s3") as cluster:
        async with loaded(cluster) as told:
            for _ in range(2):  # the owner, then its heir, which is the last but one
                lost = cluster.brokers[await owner_of(cluster)]
                lost.kill()
                shutil.rmtree(lost.data_dir)
                await told.more()


@pytest.mark.parametrize("fault", [StoreFault.BUSY, StoreFault.HANG], ids=str)
async def test_owner_that_starts_without_the_store_serves_its_other_topics(
    tmp_path: Path, fault: StoreFault
) -> None:
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, creates_only=True) as cluster:
        async with loaded(cluster) as told:
            n = await owner_of(cluster)
            owner = cluster.brokers[n]
            await cluster.call("topics.create", {"topic": OTHER})
            await cluster.placed(OTHER, n)
            async with connect(cluster.urls, retry=PATIENCE) as client, client.producer(OTHER) as producer:
                await producer.send(b"before")
                cluster.store.fault = fault
                await to_thread.run_sync(owner.kill)
                await to_thread.run_sync(owner.start)
                with anyio.fail_after(FAR):
                    receipt = await producer.send(b"without the store")
                assert receipt.durability == "fsynced"
            assert await cluster.owner(OTHER) == n
            acknowledged = len(told.acknowledged)
            await anyio.sleep(STORE_AWAY_S)  # the fault itself
            assert len(told.acknowledged) == acknowledged, "a stored topic waits for the store"
            cluster.store.fault = None
            await told.more()


async def test_official_python_client_goes_on_when_the_owner_and_its_disk_are_gone(tmp_path: Path) -> None:
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, creates_only=True) as cluster:
        await cluster.start()
        await until(lambda: created(cluster), FAR)
        owner = await owner_of(cluster)
        url = next(broker.url for n, broker in cluster.brokers.items() if n != owner)
        with Scenario("lost", url, TOPIC, deadline_s=FAR) as scenario:
            await to_thread.run_sync(scenario.wait_for, "kill")
            cluster.brokers[owner].kill()
            shutil.rmtree(cluster.brokers[owner].data_dir)
            scenario.go_on()
            await to_thread.run_sync(scenario.wait_for, "again")
            assert await owner_of(cluster) != owner
            await to_thread.run_sync(scenario.wait_for, "ok")


async def test_owner_that_stood_still_for_longer_than_its_lease_acknowledges_nothing(tmp_path: Path) -> None:
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, creates_only=True) as cluster:
        async with loaded(cluster) as told:
            still = cluster.brokers[await owner_of(cluster)]
            still.pause()
            await told.more()  # by its heir
            still.resume()
            await told.more()
            await to_thread.run_sync(still.wait, FAR)
            assert "FENCED" in still.log()


async def test_owner_that_is_cut_off_from_etcd_only_acknowledges_nothing_once_another_continues(
    tmp_path: Path,
) -> None:
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, creates_only=True) as cluster:
        async with loaded(cluster) as told:
            n = await owner_of(cluster)
            former = cluster.brokers[n]
            other = next(broker for each, broker in cluster.brokers.items() if each != n)

            async def is_taken_over() -> bool:
                with suppress(NoOwner):
                    described = await cluster.call("topics.describe", {"topic": TOPIC}, at=other)
                    return described["owner"] not in (None, cluster.id_of(n))
                return False

            cluster.networks.cut(n, ETCD)
            await told.more()  # stored, by the one or the other
            await until(is_taken_over, FAR)
            await told.more()  # by the heir
            await to_thread.run_sync(former.wait, FAR)
            assert "FENCED" in former.log()


@pytest.mark.parametrize("is_lost", [False, True], ids=["and is back", "and is lost with its disk"])
async def test_owner_that_is_cut_off_from_the_store_only_keeps_its_topics_and_acknowledges_nothing_stored(
    tmp_path: Path, is_lost: bool
) -> None:
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, creates_only=True) as cluster:
        async with loaded(cluster) as told:
            n = await owner_of(cluster)
            await cluster.call("topics.create", {"topic": OTHER})
            await cluster.placed(OTHER, n)
            async with connect(cluster.urls, retry=PATIENCE) as client, client.producer(OTHER) as producer:
                await producer.send(b"before")
                cluster.networks.cut(n, STORE)
                await anyio.sleep(SETTLED_S)
                acknowledged = len(told.acknowledged)
                await anyio.sleep(BEYOND_LEASE_S)  # the fault itself
                assert len(told.acknowledged) == acknowledged, "a stored topic waits for the store"
                with anyio.fail_after(FAR):
                    receipt = await producer.send(b"without the store")
                assert receipt.durability == "fsynced"
            for topic in (TOPIC, OTHER):
                assert await cluster.owner(topic) == n, "it keeps its lease"
            if is_lost:
                lost = cluster.brokers[n]
                lost.kill()
                shutil.rmtree(lost.data_dir)
            else:
                cluster.networks.heal()
            await told.more()
            assert (await owner_of(cluster) == n) is not is_lost


async def test_stored_topic_continues_while_etcd_is_away(tmp_path: Path) -> None:
    with real_cluster(tmp_path, environment=UNTIERED_ENVIRONMENT, creates_only=True) as cluster:
        async with loaded(cluster) as told:
            for member in range(3):
                cluster.etcd.stall(member)
            await anyio.sleep(BEYOND_LEASE_S)  # the fault itself
            await told.more()
            for member in range(3):
                cluster.etcd.resume(member)
            await told.more()
