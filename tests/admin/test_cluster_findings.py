"""What goes wrong between three real brokers is found by `diagnose.cluster`, with its evidence and the next call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.membership import BrokerState
from pydanube_broker.observation.cluster_viewing import ClusterViewing
from pydanube_broker.settings.sections import Balance, Diagnosis, Settings
from pydanube_cli.composition import administered
from pydanube_core.errors import MetadataUnavailable
from pydanube_core.names import TopicName
from pydanube_storage.metadata.etcd import EtcdStore

from tests.admin.test_any_broker_administers import ask
from tests.storage.metadata.test_etcd_faults import at, write_on
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, no_brokers, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@asynccontextmanager
async def watched(settings: Settings) -> AsyncIterator[Broker]:
    fast = settings.model_copy(
        update={"balance": Balance(interval=1.0), "diagnosis": Diagnosis(sample_interval=0.2)}
    )
    async with administered(fast) as (broker, _):
        yield broker


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(etcd, tmp_path, watched) as cluster:
        yield cluster


async def finding(broker: Broker, rule: str, *, of: Broker | None = None) -> dict[str, Any]:
    """What `broker` answers of the rule, or of it and the broker `of`."""
    with anyio.fail_after(60):
        while True:
            answer = await ask(broker, "diagnose.cluster")
            for found in answer["findings"]:
                if found["rule"] == rule and (of is None or found["subject"]["broker_id"] == id_of(of)):
                    return dict(found)
            await anyio.sleep(0.1)


async def test_owner_that_is_down_and_drain_that_cannot_end(cluster: SeveralBrokers) -> None:
    for n in range(6):
        await ask(cluster.brokers[1], "topics.create", topic=f"t{n}")
        await until(lambda n=n: cluster.serves(TopicName.parse(f"t{n}")))
    name = TopicName.parse("t0")
    down = next(n for n, broker in cluster.brokers.items() if broker.registry.find(name) is not None)
    down_id = id_of(cluster.brokers[down])
    await cluster.stop(down)
    one, other = cluster.brokers.values()
    for broker in (one, other):
        found = await finding(broker, "owner_down")
        assert found["severity"] == "critical"
        assert found["evidence"]["brokers"][down_id] >= 1
        assert [each["operation"] for each in found["next"]] == ["brokers.list", "brokers.remove"]
        broker.balance.silent = {down_id: "it did not answer a moment before its lease was over"}
        view = ClusterViewing(broker.registry, broker.health, broker.tier, broker.chain, broker.balance).view(
            0
        )
        assert view is not None
        assert down_id in view.absent
        assert down_id not in view.silent, "it is said once what is wrong with a broker"

    full, last = (one, other) if one.registry.count else (other, one)
    await ask(one, "brokers.unload", broker_id=id_of(last))
    await until(lambda: full.moves.takers() == [full.data_dir.broker_id])
    await until(lambda: last.registry.count == 0)  # its topics have arrived
    # As a second unload does that was let through a moment before the first.
    await full.registry.ownership.coordinator.membership.set_state(BrokerState.DRAINING, reason="unload")
    stuck = await finding(full, "drain_stuck", of=full)
    while stuck["evidence"]["left"] != full.registry.count:  # as of a look before the last topic came
        stuck = await finding(full, "drain_stuck", of=full)
    assert stuck["evidence"]["takers"] == 0
    assert stuck["next"][-1]["operation"] == "brokers.activate"


async def test_broker_that_is_registered_and_does_not_answer(cluster: SeveralBrokers) -> None:
    leader = next(b for b in cluster.brokers.values() if b.registry.ownership.coordinator.leads())
    mute = next(b for b in cluster.brokers.values() if b is not leader)
    coordinator = leader.registry.ownership.coordinator
    record = coordinator.members[mute.data_dir.broker_id]
    coordinator.members[mute.data_dir.broker_id] = replace(
        record, admin_url="http://127.0.0.1:9"
    )  # nobody is there
    with anyio.fail_after(60):
        while True:  # others, or an earlier call to this one, may have been late on a busy machine
            found = await finding(leader, "broker_unreachable")
            if "127.0.0.1:9" in found["evidence"]["brokers"].get(id_of(mute), {}).get("why", ""):
                break
            await anyio.sleep(0.2)


async def test_metadata_that_does_not_answer(tmp_path: Path) -> None:
    with EtcdMembers(tmp_path / "own") as own:
        async with several_brokers(own, tmp_path, watched) as cluster:
            broker = cluster.brokers[1]
            own.stall(0)
            try:
                found = await finding(broker, "metadata_unreachable")
                assert found["severity"] == "critical"
                assert found["evidence"]["since_s"] is not None
                for operation in (
                    "brokers.list",
                    "topics.list",
                    "diagnose.cluster",
                    "alerts.list",
                    "audit.query",
                ):
                    with anyio.fail_after(5):
                        await ask(broker, operation)  # of what the brokers know themselves
            finally:
                own.resume(0)
            await until(lambda: broker.health.metadata_away is None)


async def test_lone_broker_whose_etcd_is_full_says_so(tmp_path: Path) -> None:
    with EtcdMembers(tmp_path / "own", options=[f"--quota-backend-bytes={8 << 20}"]) as own:
        async with no_brokers(own, tmp_path, watched) as cluster:
            await cluster.start(1)
            broker = cluster.brokers[1]
            async with EtcdStore(at(*own.ports)) as store:
                with pytest.raises(MetadataUnavailable):
                    await write_on(store)
                found = await finding(broker, "metadata_full")
                assert found["severity"] == "critical"
                assert "etcdctl alarm disarm" in found["evidence"]["error"]
                status = await ask(broker, "brokers.status")
                assert "METADATA_UNAVAILABLE" in {each["code"] for each in status["reasons"]}
                item = await store.get("/same")
                assert item is not None
                await store.forget_history(item.mod_revision)
                own.control("defrag")
                own.control("alarm", "disarm")
                await until(lambda: broker.health.metadata_away is None)
