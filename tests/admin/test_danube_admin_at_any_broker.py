"""Calls of the original's tool about one broker or for the leader, at each of three brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from pydanube_admin.compat import topics
from pydanube_admin.compat.asking import Asking
from pydanube_admin.remote import OpsClient
from pydanube_broker.broker import Broker
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.names import TopicName

from tests.admin.test_any_broker_administers import administered, ask
from tests.admin.test_danube_admin_grpc import Tool
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
async def cluster(
    etcd: EtcdMembers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SeveralBrokers]:
    """Three brokers for all tests, which leave every broker active."""
    async with several_brokers(etcd, tmp_path_factory.mktemp("brokers"), administered) as cluster:
        await ask(cluster.brokers[1], "namespaces.create", namespace="billing")
        yield cluster


@asynccontextmanager
async def tool_at(broker: Broker) -> AsyncIterator[Tool]:
    async with grpc.aio.insecure_channel(broker.admin_url.removeprefix("http://")) as channel:
        yield Tool(channel)


async def create_at(cluster: SeveralBrokers, topic: str, at: Broker) -> None:
    """Create a topic, and have it served by this broker."""
    asked = cluster.brokers[1]
    await ask(asked, "topics.create", topic=topic)
    await until(lambda: cluster.serves_name(topic))
    if cluster.owner(topic) is not at:
        await ask(asked, "topics.move", topic=topic, to_broker=id_of(at))
        await until(lambda: at.registry.find(TopicName.parse(topic)) is not None)


async def audited(broker: Broker, operation: str) -> list[dict[str, Any]]:
    """Return the records that this broker has of an operation."""
    async with OpsClient(broker.admin_url) as client:
        found = await client.call("audit.query", {"operation": operation})
    return [each for each in found["items"] if each["broker_id"] == id_of(broker)]


def state_of(cluster: SeveralBrokers, broker: Broker) -> str:
    members = cluster.brokers[2].registry.ownership.coordinator.members
    return members[broker.data_dir.broker_id].state.value


async def test_a_dry_run_counts_what_would_leave_and_moves_nothing(cluster: SeveralBrokers) -> None:
    target, asked = cluster.brokers[1], cluster.brokers[3]
    for topic in ("/default/dry-1", "/default/dry-2", "/billing/dry-3"):
        await create_at(cluster, topic, target)
    topics = target.registry.count
    async with tool_at(asked) as tool:
        for include, exclude, expected in (
            ([], [], topics),
            (["billing"], [], 1),
            ([], ["billing"], topics - 1),
            (["billing", "default"], ["default"], 1),
            (["nowhere"], [], 0),
        ):
            said = await tool(
                "BrokerAdmin/UnloadBroker",
                pb.UnloadBrokerRequest(
                    broker_id=id_of(target),
                    dry_run=True,
                    namespaces_include=include,
                    namespaces_exclude=exclude,
                    max_parallel=1,
                    timeout_seconds=60,
                ),
            )
            assert (said.started, said.total, said.pending) == (False, expected, expected)
            assert (said.succeeded, said.failed, list(said.failed_topics)) == (0, 0, [])
    assert state_of(cluster, target) == "active"
    assert target.registry.count == topics
    assert (await ask(target, "tasks.list", filter="brokers.unload"))["items"] == []


async def test_an_unload_of_namespaces_moves_their_topics_and_leaves_the_broker_active(
    cluster: SeveralBrokers,
) -> None:
    target, asked = cluster.brokers[2], cluster.brokers[3]
    await create_at(cluster, "/default/stays", target)
    await create_at(cluster, "/billing/goes", target)
    async with tool_at(asked) as tool:
        for filters in ({"namespaces_include": ["a,billing"]}, {"namespaces_exclude": ["a,billing"]}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await tool(
                    "BrokerAdmin/UnloadBroker", pb.UnloadBrokerRequest(broker_id=id_of(target), **filters)
                )
            assert "'a,billing' is no namespace" in (refused.value.details() or "")
        said = await tool(
            "BrokerAdmin/UnloadBroker",
            pb.UnloadBrokerRequest(broker_id=id_of(target), namespaces_include=["billing"]),
        )
        assert (said.started, said.total, said.succeeded, said.failed, said.pending) == (True, 1, 1, 0, 0)
        await until(
            lambda: cluster.serves_name("/billing/goes") and cluster.owner("/billing/goes") is not target
        )
    assert cluster.owner("/default/stays") is target
    assert state_of(cluster, target) == "active"


async def test_any_broker_unloads_and_activates_another(cluster: SeveralBrokers) -> None:
    target, asked = cluster.brokers[3], cluster.brokers[1]
    await create_at(cluster, "/default/leaves", target)
    topics = target.registry.count
    async with tool_at(asked) as tool:
        said = await tool("BrokerAdmin/UnloadBroker", pb.UnloadBrokerRequest(broker_id=id_of(target)))
        assert (said.started, said.total, said.succeeded) == (True, topics, topics)
        await until(lambda: state_of(cluster, target) == "drained")
        assert (
            await tool(
                "BrokerAdmin/ActivateBroker",
                pb.ActivateBrokerRequest(broker_id=id_of(target), reason="the new disk is in"),
            )
        ).success
    await cluster.all_know_all()
    records = await audited(target, "brokers.activate")
    assert {each["face"] for each in records} == {"danube_admin"}
    assert {"why": "the new disk is in"} in [each["untrusted"] for each in records]


async def test_the_leader_judges_the_balance_whichever_broker_is_asked(cluster: SeveralBrokers) -> None:
    (leader,) = [each for each in cluster.brokers.values() if each.registry.ownership.coordinator.leads()]
    for broker in cluster.brokers.values():
        async with tool_at(broker) as tool:
            found = await tool("BrokerAdmin/GetClusterBalance", pb.ClusterBalanceRequest())
            assert found.broker_count == 3
    recorded = [broker for broker in cluster.brokers.values() if await audited(broker, "cluster.balance")]
    assert recorded == [leader]


async def test_a_list_waits_for_silent_owners_once() -> None:
    """`topics.list` has found that they do not answer. What it lacks is in the metadata."""

    class Ask:
        async def every_and_away(self, *_: Any) -> tuple[list[dict[str, Any]], set[str]]:
            item = {"dispatch_strategy": "reliable", "owner": "1"}
            items = [{**item, "topic": "/default/a", "partitions": 0}]
            return [*items, {**item, "topic": "/default/wide", "partitions": 2, "owner": None}], {
                "/default/b"
            }

        async def created(self, topic: str) -> Any:
            owners = (
                {topic: "9"} if topic != "/default/wide" else {f"{topic}-part-{n}": "9" for n in range(2)}
            )
            return SimpleNamespace(owners=owners, dispatch_strategy="non_reliable")

    found = await topics._topics(cast(Asking, Ask()), {})  # any other call would be an AttributeError
    assert [(each.name, each.broker_id, each.delivery) for each in found] == [
        ("/default/a", "1", "Reliable"),
        ("/default/b", "9", "NonReliable"),
        ("/default/wide-part-0", "9", "NonReliable"),
        ("/default/wide-part-1", "9", "NonReliable"),
    ]


def counts(cluster: SeveralBrokers) -> list[int]:
    return sorted(broker.registry.count for broker in cluster.brokers.values())


async def test_what_the_balance_shows_is_what_a_rebalance_acts_on(cluster: SeveralBrokers) -> None:
    """Nothing is published, so that both judge by the numbers of topics."""
    full, asked = cluster.brokers[2], cluster.brokers[3]
    for n in range(6):
        await create_at(cluster, f"/default/idle-{n}", full)
    async with tool_at(asked) as tool:
        shown = await tool("BrokerAdmin/GetClusterBalance", pb.ClusterBalanceRequest())
        assert shown.coefficient_of_variation > 0.3
        planned = await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest(dry_run=True))
        assert (planned.success, planned.moves_executed) == (True, 0)
        assert {each.from_broker for each in planned.proposed_moves} == {int(id_of(full))}
        before = counts(cluster)
        one = await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest(dry_run=True, max_moves=1))
        assert len(one.proposed_moves) == 1
        assert counts(cluster) == before
        done = await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest())
        assert done.moves_executed == len(planned.proposed_moves) > 1
        await until(
            lambda: counts(cluster)[-1] - counts(cluster)[0] < 2 and sum(counts(cluster)) == sum(before)
        )
        shown = await tool("BrokerAdmin/GetClusterBalance", pb.ClusterBalanceRequest())
        assert shown.coefficient_of_variation == 0
        assert not any(each.is_overloaded or each.is_underloaded for each in shown.brokers)
        again = await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest())
        assert (again.success, again.moves_executed) == (True, 0)
        assert "differ by at most one" in again.error_message


async def test_a_drained_broker_does_not_count_as_one_without_load(cluster: SeveralBrokers) -> None:
    """Nothing can be moved to it, so a balance that counted it would ask for a rebalance for ever."""
    empty, asked = cluster.brokers[1], cluster.brokers[3]
    for n in range(4):
        await create_at(cluster, f"/default/even-{n}", cluster.brokers[2 + n % 2])
    async with tool_at(asked) as tool:
        await tool("BrokerAdmin/UnloadBroker", pb.UnloadBrokerRequest(broker_id=id_of(empty)))
        await until(lambda: state_of(cluster, empty) == "drained")
        await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest(max_moves=1000))
        others = (cluster.brokers[2], cluster.brokers[3])
        await until(lambda: abs(others[0].registry.count - others[1].registry.count) < 2)
        shown = await tool("BrokerAdmin/GetClusterBalance", pb.ClusterBalanceRequest())
        assert shown.coefficient_of_variation == 0
        assert shown.min_load >= shown.max_load - 1 > 0
        assert not any(each.is_overloaded or each.is_underloaded for each in shown.brokers)
        assert shown.broker_count == 3
        again = await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest())
        assert (again.success, again.moves_executed) == (True, 0)
        await tool("BrokerAdmin/ActivateBroker", pb.ActivateBrokerRequest(broker_id=id_of(empty)))
        await until(lambda: state_of(cluster, empty) == "active")
