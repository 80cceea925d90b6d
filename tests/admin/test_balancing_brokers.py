"""The load manager over three real brokers: it suggests by itself, and in the mode `act` it evens them out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_admin.engine.balancer import BalanceOptions, Balancer, Judged
from pydanube_admin.remote import OpsClient
from pydanube_broker.broker import Broker
from pydanube_broker.settings.sections import Balance, Diagnosis, Settings
from pydanube_cli.composition import administered
from pydanube_core.balance import Policy, Resource
from pydanube_core.names import TopicName

from tests.admin.test_any_broker_administers import ask, place
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
TOPICS = [TopicName.parse(f"t{n}") for n in range(9)]


@pytest.fixture(autouse=True)
def by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three brokers in one process have one processor time: judge them by their traffic alone."""
    policy = BalanceOptions.policy.fget  # type: ignore[attr-defined]

    def without_processors(options: BalanceOptions) -> Policy:
        found: Policy = policy(options)
        return replace(found, floors={**found.floors, Resource.CPU: 1e9})

    monkeypatch.setattr(BalanceOptions, "policy", property(without_processors))


@asynccontextmanager
async def balanced(etcd: EtcdMembers, folder: Path, mode: str) -> AsyncIterator[SeveralBrokers]:
    """Nine topics with equal traffic, seven at one broker and one at each of the others."""

    @asynccontextmanager
    async def make(settings: Settings) -> AsyncIterator[Broker]:
        fast = settings.model_copy(
            update={
                "balance": Balance(mode=mode, interval=1.0, cooldown=600.0, floor=50_000),
                "diagnosis": Diagnosis(sample_interval=0.2),
            }
        )
        async with administered(fast) as (broker, _):
            yield broker

    async with several_brokers(etcd, folder, make) as cluster:
        first = cluster.brokers[1]
        for n, topic in enumerate(TOPICS):
            await ask(first, "topics.create", topic=str(topic))
            await until(lambda topic=topic: cluster.serves(topic))
            target = cluster.brokers[1 if n < 7 else n - 5]
            if cluster.owner(str(topic)) is not target:
                await ask(first, "topics.move", topic=str(topic), to_broker=id_of(target))
                await until(lambda topic=topic, target=target: target.registry.find(topic) is not None)
        async with connect(first.broker_url) as client, anyio.create_task_group() as group:
            for topic in TOPICS:
                group.start_soon(publish, client, str(topic))
            yield cluster
            group.cancel_scope.cancel()


async def publish(client: Any, topic: str) -> None:
    """A hundred thousand bytes and more a second, steadily: making and moving the topics is little beside it.

    Else the first assessment has load at a broker that no topic carries, and gives most of its topics away.
    """
    async with client.producer(topic) as producer:
        while True:
            await producer.send(bytes(10_000))
            await anyio.sleep(0.05)


def owned(cluster: SeveralBrokers) -> list[int]:
    return sorted(
        sum(broker.registry.find(topic) is not None for topic in TOPICS)
        for broker in cluster.brokers.values()
    )


def epochs(cluster: SeveralBrokers) -> list[int]:
    """How often each topic was assigned: a move is one more."""
    coordinator = cluster.brokers[1].registry.ownership.coordinator
    index = cluster.brokers[1].registry.catalog.index
    return [coordinator.place(index.topic(topic).topic_id).epoch for topic in TOPICS]  # type: ignore[union-attr]


async def until_suggested(broker: Broker, *, source: Broker) -> dict[str, Any]:
    """Return the first proposal that takes from `source` alone: rates of a second are uneven on a busy machine."""
    with anyio.fail_after(90):
        while True:
            found = await ask(broker, "cluster.balance")
            if {move["source"] for move in found["moves"]} == {id_of(source)}:
                return found
            await anyio.sleep(0.2)


async def test_suggestion_is_shown_everywhere_and_carried_out_when_somebody_says_so(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with balanced(etcd, tmp_path, "suggest") as cluster:
        found = await until_suggested(cluster.brokers[2], source=cluster.brokers[1])
        assert (found["mode"], found["verdict"]) == ("suggest", "IMBALANCED")
        assert found["score"] < 100
        assert all(move["source_after"] < move["source_before"] for move in found["moves"])
        assert owned(cluster) == [1, 1, 7], "suggest moves nothing"
        plan = await ask(cluster.brokers[3], "cluster.rebalance", plan_only=True)
        wanted = {each["path"]: each["after"] for each in plan["diff"] if each["path"].endswith("/owner")}
        done = await ask(cluster.brokers[2], "cluster.rebalance", plan_token=plan["plan_token"])
        assert {f"topics{topic}/owner": to for topic, to in done["moves"].items()} == wanted
        assert done["not_begun"] == {}
        by_id = {id_of(broker): broker for broker in cluster.brokers.values()}
        await until(
            lambda: all(
                by_id[to].registry.find(TopicName.parse(topic)) is not None
                for topic, to in done["moves"].items()
            )
        )
        assert owned(cluster)[-1] < 7
        await ask(cluster.brokers[3], "changes.undo", call_id=done["call_id"])
        await until(lambda: owned(cluster) == [1, 1, 7])


async def test_act_evens_out_by_itself_is_in_the_audit_and_moves_no_topic_twice(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suggestion = Balancer.suggestion
    intervals = 0

    async def counted(balancer: Balancer) -> Judged:
        nonlocal intervals
        found = await suggestion(balancer)
        intervals += 1
        return found

    monkeypatch.setattr(Balancer, "suggestion", counted)
    async with balanced(etcd, tmp_path, "act") as cluster:
        began = epochs(cluster)
        await until(lambda: owned(cluster)[-1] <= 4 and all(cluster.serves(topic) for topic in TOPICS))
        records = []
        for broker in cluster.brokers.values():
            async with OpsClient(broker.admin_url) as ops:
                page = await ops.call("audit.query", {"operation": "cluster.rebalance", "limit": 100})
            records += [each for each in page["items"] if each["principal"] == "balance"]
        assert "allowed" in {each["decision"] for each in records if each["phase"] == "outcome"}
        so_far = intervals
        await until(lambda: intervals > so_far + 3)  # in each of which it may do too much
        await until(lambda: all(cluster.serves(topic) for topic in TOPICS))
        assert owned(cluster)[-1] <= 4
        assert all(now - then <= 1 for now, then in zip(epochs(cluster), began, strict=True))


async def test_spread_partitions_stay_apart_where_other_topics_can_even_out_the_numbers(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def make(settings: Settings) -> AsyncIterator[Broker]:
        async with administered(settings) as (broker, _):
            yield broker

    async with several_brokers(etcd, tmp_path, make) as cluster:
        brokers = cluster.brokers
        await ask(brokers[1], "topics.create", topic="/default/apart", partitions=3)
        for n in range(3):
            await place(cluster, f"/default/apart-part-{n}", brokers[1 + n])
        for n in range(4):
            await ask(brokers[1], "topics.create", topic=f"/default/whole-{n}")
            await place(cluster, f"/default/whole-{n}", brokers[1])
        plan = await ask(brokers[2], "cluster.rebalance", by="topics", plan_only=True)
        moved = [each["path"] for each in plan["diff"] if each["path"].endswith("/owner")]
        assert len(moved) == 2
        assert all(path.startswith("topics/default/whole-") for path in moved), moved
