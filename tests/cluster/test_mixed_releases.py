"""Brokers of the release before are replaced one by one under load: topics move from old to new, and never back.

One of the new brokers is lost with its disk while old ones run. Only new ones take its topics over.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from pydanube_admin.remote import OpsClient
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation
from pydanube_broker.cluster.move_record import ChainRange
from pydanube_broker.moves.move import assign, take_away
from pydanube_core.errors import ClusterError
from pydanube_storage.metadata import Put, Revision, read_all
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from tests.cluster import test_losses_under_load as losses
from tests.cluster import test_stored_topics as stored_topics
from tests.cluster.old_release import old_program
from tests.cluster.real_cluster import BROKERS, RealCluster, real_cluster
from tests.cluster.test_faults_under_load import KEYS, ORDERS, under_load
from tests.cluster.test_moves_under_load import UNTIERED_ENVIRONMENT
from tests.cluster.test_take_over import planned
from tests.support.broker_process import BrokerDied, BrokerProcess
from tests.support.etcd import EtcdMembers
from tests.support.load import consume_numbers
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(1800)]


async def test_brokers_of_the_release_before_are_replaced_under_load(tmp_path: Path) -> None:
    with real_cluster(tmp_path, program=old_program(tmp_path)) as cluster:
        async with under_load(cluster, "mixed") as progress:
            for n in BROKERS:
                await cluster.replace(n, again=True)
                await progress.more(20)
                if n == BROKERS[-1]:
                    break
                stored = {"topic": "/default/payments", "durability": "stored"}
                with pytest.raises(ClusterError, match="needs all brokers to run this build"):
                    await cluster.call("topics.create", stored, at=cluster.brokers[n])
                old = cluster.id_of(BROKERS[-1])
                for topic in (ORDERS, KEYS):
                    if await cluster.owner(topic) != n:
                        continue
                    with pytest.raises(ClusterError, match="older release"):
                        await cluster.call("topics.move", {"topic": topic, "to_broker": old})
            # Among new brokers topics go anywhere.
            for topic in (ORDERS, KEYS):
                owner = await cluster.owner(topic)
                target = next(each for each in BROKERS if each != owner)
                task = await cluster.moved(topic, target)
                assert task["state"] == "done", task
            await progress.more(20)


async def leads(cluster: RealCluster, new: tuple[int, ...]) -> int:
    """Return the leader, once it is one of these. An old one is killed and started."""
    with anyio.fail_after(losses.FAR):
        while True:
            leader = None
            with suppress(ClusterError, AssertionError):
                leader = await cluster.leader()
            if leader in new:
                return leader
            if leader is not None:
                await to_thread.run_sync(cluster.brokers[leader].kill)
                await to_thread.run_sync(cluster.brokers[leader].start)
            await anyio.sleep(1)


async def test_only_new_brokers_take_over_from_one_that_is_lost_beside_an_old_one(tmp_path: Path) -> None:
    copying = {"DANUBE_JOURNAL__COPY": "true", "DANUBE_CLUSTER__ON_LOSS": "take_over"}
    given = {"environment": UNTIERED_ENVIRONMENT, "later": copying, "creates_only": True}
    with real_cluster(tmp_path, program=old_program(tmp_path), **given) as cluster:
        await cluster.start()
        told = [losses.Told(topic) for topic in losses.TOPICS]
        for each in told:
            await cluster.call("topics.create", {"topic": each.topic})
        scene = losses.Scene(cluster, told)
        async with anyio.create_task_group() as group:
            for each in told:
                group.start_soon(each.produce, cluster.urls)
                group.start_soon(consume_numbers, cluster.urls, each.topic, each.delivered)
            new, (old,) = BROKERS[:2], BROKERS[2:]
            for n in new:
                await cluster.replace(n, again=True)
            leader = await leads(cluster, new)
            lost = next(n for n in new if n != leader)
            await scene.moved_to(lost)
            await scene.more()
            await scene.kill(lost, disk=True)
            await scene.more()
            for each in told:
                assert await cluster.owner(each.topic) == leader, "an old broker reads no chain"
            stored = {"topic": stored_topics.TOPIC, "durability": "stored"}
            with pytest.raises(ClusterError, match="needs all brokers to run this build"):
                await cluster.call("topics.create", stored, at=cluster.brokers[leader])
            await cluster.replace(old, again=True)
            await scene.more()
            for each in told:
                each.enough.set()
                await until(lambda each=each: len(each.acknowledged) == each.sent, losses.FAR)
                found = await each.stored(cluster.urls)
                await until(lambda each=each, found=found: set(each.delivered) >= set(found), losses.FAR)
                each.check(found, scene.failures)
            group.cancel_scope.cancel()
        await planned(
            cluster, "brokers.remove", broker_id=cluster.id_of(lost)
        )  # it may never announce this build
        async with stored_topics.loaded(cluster, start=False) as precious:
            owner = cluster.brokers[await stored_topics.owner_of(cluster)]
            owner.kill()
            shutil.rmtree(owner.data_dir)
            await precious.more()


def test_directory_of_a_lone_broker_with_stored_topics_refuses_the_release_before(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(tmp_path / "new", data_dir=data_dir) as broker:
        broker.command("topics", "create", "payments", "--durability", "stored")
        broker.publish("payments", [b"1", b"2"])
    old = BrokerProcess(tmp_path / "old-broker", data_dir=data_dir, program=old_program(tmp_path))
    with pytest.raises(BrokerDied) as refused:
        old.start()
    assert "FORMAT_TOO_NEW" in refused.value.log
    with BrokerProcess(tmp_path / "again", data_dir=data_dir) as broker:
        found = broker.json_command("topics", "describe", "payments")
        assert (found["durability"], found["messages"]) == ("stored", 2)


async def test_leader_of_the_release_before_leaves_a_topic_that_waits_for_its_heir_with_the_chain(
    tmp_path: Path,
) -> None:
    shared = {"DANUBE_TIER__URL": str(tmp_path / "objects")}
    with (
        EtcdMembers(tmp_path / "etcd") as etcd,
        BrokerProcess(
            tmp_path / "old-broker",
            arguments=["--metadata", etcd.url("/cluster")],
            environment=shared,
            face="broker",
            program=old_program(tmp_path),
        ) as old,
    ):
        address = EtcdAddress.parse(etcd.url("/cluster"))
        async with OpsClient(old.admin) as ops, EtcdStore(EtcdOptions(address=address)) as store:
            for topic in losses.TOPICS:
                await ops.call("topics.create", {"topic": topic})
            items, _ = await read_all(store, keys.ASSIGNMENTS)
            owned = {str(each.topic): each for each in (Assignment.of(i.key, i.value) for i in items)}
            with_chain, without = (owned[topic] for topic in losses.TOPICS)
            gone = BrokerId(with_chain.broker_id + 1)  # the heir, which was lost before it opened the topics
            chain = ChainRange(journal=7, from_piece=1, until=9)
            written = {}
            for topic, part in ((with_chain, chain), (without, None)):
                lost = take_away(topic, Revision(1), gone, at_ms=1, chain=part).after
                given = assign(
                    lost, Revision(1), gone, incarnation=Incarnation(1), epoch=Epoch(topic.epoch + 1)
                )
                written[topic.topic_id] = given.after.to_json()
                await store.transact([Put(keys.assignment_key(topic.topic_id), written[topic.topic_id])])

            async def found(topic: Assignment) -> bytes:
                item = await store.get(keys.assignment_key(topic.topic_id))
                assert item is not None
                return item.value

            async def is_reassigned() -> bool:
                return await found(without) != written[without.topic_id]

            await until(is_reassigned, losses.FAR)
            await until(lambda: "metadata_set_aside" in old.log(), losses.FAR)
            await ops.call("topics.create", {"topic": "/default/three"})  # it goes on with its work
            assert await found(with_chain) == written[with_chain.topic_id]
