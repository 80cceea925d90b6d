"""A broker is killed under load and its disk deleted: its topic is taken over by a plan, from the chain that it wrote.

What was acknowledged before the chain ended is there once and in order, and nothing is there that was not sent. Producer
and consumer go on with the topic at its heir. A broker that comes back after many writes of others gives up only this topic.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow.parquet as parquet
import pytest
from anyio import to_thread
from pydanube import connect
from pydanube_core.errors import ClusterError

from tests.cluster.networks import STORE
from tests.cluster.real_cluster import BROKERS, RealCluster, real_cluster
from tests.cluster.test_moves_under_load import UNTIERED_ENVIRONMENT
from tests.support.load import NUMBER, PATIENCE, consume_numbers
from tests.support.s3_server import BUCKET
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(600)]

TOPIC: Final = "/default/precious"
OTHER: Final = "/default/patient"
JUMP: Final = 1 << 32
AFTER: Final = 100
COPIED_S: Final = 2.0  # more than the linger and a PUT take on the slowest machine
BULK: Final = 600  # messages of `BULK_BYTES` that others write meanwhile: several segments
BULK_BYTES: Final = 64 << 10
ONLY_THERE: Final = 200  # messages that only the disk of the lost broker has
COPYING_ENVIRONMENT: Final = {**UNTIERED_ENVIRONMENT, "DANUBE_JOURNAL__COPY": "true"}


class Told:
    """What clients were told, for the checker."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.durability = ""  # of the receipts, which have all the same
        self.sent = 0
        self.delivered: list[int] = []
        self.enough = anyio.Event()

    async def produce(self, urls: str) -> None:
        """Send one number after the other. Any error of a send ends the test."""
        async with connect(urls, retry=PATIENCE) as client, client.producer(TOPIC) as producer:
            while not self.enough.is_set():
                number, self.sent = self.sent, self.sent + 1
                receipt = await producer.send(NUMBER.pack(number) + bytes(500))
                self.durability = receipt.durability
                self.acknowledged.append(number)


async def planned(
    cluster: RealCluster, operation: str, **arguments: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Carry out what its plan says; returns plan and result. Asked again while the lease of a killed broker lasts."""
    plan: dict[str, Any] = {}
    with anyio.fail_after(120):
        while True:
            try:
                return plan, await cluster.call(operation, arguments)
            except ClusterError as error:
                if error.code == "PLAN_REQUIRED":
                    plan = error.details["plan"]
                    arguments["plan_token"] = plan["plan_token"]
                else:
                    arguments.pop("plan_token", None)
                    await anyio.sleep(0.5)


async def stored(cluster: RealCluster, least: int) -> list[tuple[int, int]]:
    """Return (offset, number) of all messages, of which there are `least`."""
    async with (
        connect(cluster.urls, retry=PATIENCE) as client,
        client.reader(TOPIC, stop="head") as reader,
    ):
        found = [(each.offset, NUMBER.unpack_from(each.payload)[0]) async for each in reader]
    assert len(found) >= least
    return found


async def created(cluster: RealCluster, topic: str) -> bool:
    """Create a topic, once the leader has converted the metadata."""
    with suppress(ClusterError):
        await cluster.call("topics.create", {"topic": topic})
        return True
    return False


async def is_open(cluster: RealCluster, n: int) -> bool:
    """Return whether no other broker takes topics over from the journal of a broker."""
    listed = (await cluster.call("brokers.list"))["items"]
    (journal,) = (each["journal"] for each in listed if each["broker_id"] == cluster.id_of(n))
    return bool(journal["state"] == "open")


async def test_disk_of_a_killed_broker_is_gone_and_its_topic_goes_on(
    tmp_path: Path,
) -> None:
    # The S3 server of these tests replaces objects that exist, so that no chain can be kept there.
    environment = {**COPYING_ENVIRONMENT, "DANUBE_TIER__URL": str(tmp_path / "objects")}
    with real_cluster(tmp_path, environment=environment) as cluster:
        for broker in cluster.brokers.values():
            await to_thread.run_sync(broker.start)
        for topic in (TOPIC, OTHER):
            await cluster.call("topics.create", {"topic": topic})
        n = await cluster.owner(TOPIC)
        assert n is not None
        owner_id = int(cluster.id_of(n))
        await cluster.placed(OTHER, n)
        told = Told()
        async with anyio.create_task_group() as group:
            group.start_soon(told.produce, cluster.urls)
            group.start_soon(consume_numbers, cluster.urls, TOPIC, told.delivered)
            await until(lambda: len(told.acknowledged) >= 500, 60)
            safe, lost = len(told.acknowledged), cluster.brokers[n]
            await anyio.sleep(COPIED_S)
            lost.kill()
            acknowledged = list(told.acknowledged)
            shutil.rmtree(lost.data_dir)
            plan, result = await planned(cluster, "topics.take_over", topic=TOPIC)
            (entry,) = plan["diff"]
            assert entry["before"]["owner"] == str(owner_id)
            assert entry["before"]["copied_until"] >= safe
            assert result["topics"] == 1
            await until(lambda: len(told.acknowledged) >= len(acknowledged) + AFTER, 120)
            told.enough.set()
            found = await stored(cluster, safe)
            numbers = [number for _, number in found]
            expected = set(numbers)
            await until(lambda: set(told.delivered) >= expected, 60)
            group.cancel_scope.cancel()
        # the checker
        assert len(set(numbers)) == len(numbers), "each once"
        assert numbers == sorted(numbers), "in order"
        missing = sorted(set(acknowledged) - set(numbers))
        assert not [number for number in missing if number < safe], "what the chain had is there"
        assert missing == list(range(missing[0], missing[0] + len(missing))) if missing else True, "one gap"
        after = [number for number in told.acknowledged if number > acknowledged[-1]]
        assert set(after) <= set(numbers), "what the heir acknowledged is there"
        assert set(numbers) <= set(range(told.sent)), "nothing that was not sent"
        assert found[-1][0] >= JUMP, "no offset means two messages"
        listed = (await cluster.call("topics.list"))["items"]
        owners = {item["topic"]: item["owner"] for item in listed}
        assert owners[TOPIC] in {cluster.id_of(each) for each in BROKERS if each != n}
        assert owners.get(OTHER) in (None, str(owner_id)), "no plan names it"
        print(
            f"{len(acknowledged)} acknowledged before the kill, {safe} of them {COPIED_S:.0f} s before, {len(missing)} missing"
        )


def kept_of(objects: Path, broker_id: str) -> list[int]:
    """Return the numbers of the messages that a broker has written to lost+found."""
    return [
        NUMBER.unpack_from(payload)[0]
        for each in sorted(objects.glob(f"*/lost+found/{broker_id}/**/*.parquet"))
        for payload in parquet.read_table(each, columns=["payload"]).column("payload").to_pylist()
    ]


def levels_of(objects: Path, broker_id: str) -> set[str]:
    """Return the durabilities at which the messages in lost+found were acknowledged."""
    return {
        parquet.read_metadata(each).metadata[b"danube.durability"].decode()
        for each in objects.glob(f"*/lost+found/{broker_id}/**/*.parquet")
    }


async def test_broker_that_is_back_after_many_writes_gives_up_only_what_others_took_over(
    tmp_path: Path,
) -> None:
    with real_cluster(tmp_path, environment=COPYING_ENVIRONMENT, creates_only=True) as cluster:
        await cluster.start()
        for topic in (TOPIC, OTHER):
            await until(lambda topic=topic: created(cluster, topic), 300)
        n = await cluster.owner(TOPIC)
        assert n is not None
        await cluster.placed(OTHER, n)
        told, waits = Told(), [b"waits-%d" % each for each in range(50)]
        async with anyio.create_task_group() as group:
            group.start_soon(told.produce, cluster.urls)
            group.start_soon(consume_numbers, cluster.urls, TOPIC, told.delivered)
            async with connect(cluster.urls, retry=PATIENCE) as client, client.producer(OTHER) as producer:
                await producer.send_many(waits)
            await until(lambda: len(told.acknowledged) >= 300, 60)
            await anyio.sleep(COPIED_S)
            safe, away = len(told.acknowledged), cluster.brokers[n]
            cluster.networks.cut(n, STORE)
            await until(lambda: len(told.acknowledged) >= safe + ONLY_THERE, 60)
            away.kill()
            acknowledged = list(told.acknowledged)
            cluster.networks.heal()
            await planned(cluster, "topics.take_over", topic=TOPIC)
            await until(lambda: len(told.acknowledged) >= len(acknowledged) + AFTER, 120)
            told.enough.set()

            async with connect(cluster.urls, retry=PATIENCE) as client, client.producer(TOPIC) as producer:
                for number in range(told.sent, told.sent + BULK):
                    await producer.send(NUMBER.pack(number) + bytes(BULK_BYTES))
                    told.acknowledged.append(number)
                told.sent += BULK
            heir = await cluster.owner(TOPIC)
            assert heir not in (None, n)

            await to_thread.run_sync(away.start)
            objects = tmp_path / "s3" / BUCKET / "cluster"
            await until(lambda: len(kept_of(objects, cluster.id_of(n))) >= ONLY_THERE, 120)
            await until(lambda: is_open(cluster, n), 120)
            numbers = [number for _, number in await stored(cluster, safe)]
            await until(lambda: set(told.delivered) >= set(numbers), 120)
            group.cancel_scope.cancel()
        # the checker
        found = kept_of(objects, cluster.id_of(n))
        assert levels_of(objects, cluster.id_of(n)) == {told.durability}, "the level of the receipts"
        assert len(set(found)) == len(found), "each once"
        assert len(set(numbers)) == len(numbers), "each once"
        assert numbers == sorted(numbers), "in order"
        assert set(told.acknowledged) <= set(numbers) | set(found), "nothing acknowledged is lost"
        assert set(acknowledged[safe:]) - set(numbers) <= set(found), "what only its disk had"
        assert set(numbers) | set(found) <= set(range(told.sent)), "nothing that was not sent"
        assert (await cluster.owner(TOPIC), await cluster.owner(OTHER)) == (heir, n)
        async with connect(cluster.urls, retry=PATIENCE) as client:
            async with client.producer(OTHER) as producer:
                await producer.send(b"and goes on")
            async with client.reader(OTHER, stop="head") as reader:
                assert [each.payload async for each in reader] == [*waits, b"and goes on"]
