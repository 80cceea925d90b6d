"""Brokers of the release before are replaced one by one under load: topics move from old to new, and never back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_core.errors import ClusterError

from tests.cluster.old_release import old_program
from tests.cluster.real_cluster import BROKERS, real_cluster
from tests.cluster.test_faults_under_load import KEYS, ORDERS, under_load
from tests.support.broker_process import BrokerDied, BrokerProcess

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
