"""Plans that move topics do what they showed, on three brokers under traffic, whatever the next suggestion would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydanube import connect
from pydanube_admin.engine.balancer import Balancer
from pydanube_admin.engine.permission import Sight
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import Settings
from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName

from tests.admin.test_any_broker_administers import administered, ask, place
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    @asynccontextmanager
    async def make(settings: Settings) -> AsyncIterator[Broker]:
        async with administered(settings) as broker:
            yield broker

    async with several_brokers(etcd, tmp_path, make) as found:
        yield found


async def test_a_plan_moves_what_it_showed_though_clients_came_and_topics_were_made(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker with the fewest topics, the suggestion and the topics of a namespace were chosen again when applied."""
    brokers = cluster.brokers
    names = [f"/default/moved-{n}" for n in range(6)]
    for name in names:
        await ask(brokers[1], "topics.create", topic=name)
        await place(cluster, name, brokers[1])
    plans: dict[str, dict[str, Any]] = {}

    async def plan(operation: str, **arguments: Any) -> dict[str, Any]:
        plans[operation] = await ask(brokers[2], operation, **arguments, plan_only=True)
        return plans[operation]

    balance = await ask(brokers[3], "cluster.balance", by="topics")
    shown = {move["topic"]: move["target"] for move in balance["moves"]}
    assert len(shown) == 4, "two go to each of the other brokers"
    assert set(shown.values()) == {id_of(brokers[2]), id_of(brokers[3])}
    assert balance["rejected"] == {}
    with monkeypatch.context() as hidden:
        hidden.setattr(Sight, "topic", lambda self, name: name != min(shown))
        balance = await ask(brokers[3], "cluster.balance", by="topics")
        assert {move["topic"] for move in balance["moves"]} == shown.keys() - {min(shown)}
    rebalance = await plan("cluster.rebalance", by="topics")
    assert {topic: target for topic, _, target in rebalance["pinned"]["moves"]} == shown
    staying = [name for name in names if name not in shown]
    moved = await plan("topics.move", topic=staying[0])
    unloaded = await plan("topics.unload", topic=staying[1])
    # Topics are made where the plan would have put others
    for n in range(4):
        await ask(brokers[2], "topics.create", topic=f"/default/made-{n}")
        await place(cluster, f"/default/made-{n}", brokers[2 + n % 2])
    async with connect(brokers[1].broker_url) as client:
        for name in names:
            async with client.producer(name) as producer, client.consumer(name, "s") as consumer:
                await producer.send(b"x")
                await (await anext(consumer)).ack()

        async def none(self: Balancer) -> Any:
            raise AssertionError("a plan of before has its own moves")

        monkeypatch.setattr(Balancer, "suggestion", none)
        for each in (rebalance, moved, unloaded):
            done = await ask(brokers[3], "plans.apply", plan_token=each["plan_token"])
            assert done["call_id"]
        there = {**shown, **moved["pinned"]["moves"], **unloaded["pinned"]["moves"]}
        for topic, target in there.items():
            owner = next(broker for broker in brokers.values() if id_of(broker) == target)
            await until(lambda: owner.registry.find(TopicName.parse(topic)) is not None)  # noqa: B023


async def test_a_plan_of_a_move_is_stale_once_the_topic_was_moved_by_another_call(
    cluster: SeveralBrokers,
) -> None:
    brokers = cluster.brokers
    await ask(brokers[1], "topics.create", topic="orders")
    await place(cluster, "/default/orders", brokers[1])
    plan = await ask(brokers[1], "topics.move", topic="orders", to_broker=id_of(brokers[2]), plan_only=True)
    moved = await ask(brokers[2], "topics.move", topic="orders", to_broker=id_of(brokers[3]))
    await until(lambda: brokers[3].registry.find(TopicName.parse("orders")) is not None)
    with pytest.raises(ClusterError) as refused:
        await ask(brokers[3], "plans.apply", plan_token=plan["plan_token"])
    assert refused.value.code == "PLAN_STALE"
    assert refused.value.details["changed"] == [
        {
            "path": "topics/default/orders/owner",
            "planned": id_of(brokers[1]),
            "now": id_of(brokers[3]),
            "call_id": moved["call_id"],
        }
    ]


async def test_a_broker_hands_over_the_topics_of_a_namespace_that_its_plan_named(
    cluster: SeveralBrokers,
) -> None:
    brokers = cluster.brokers
    await ask(brokers[1], "namespaces.create", namespace="shop")
    for name in ("/shop/a", "/shop/b"):
        await ask(brokers[1], "topics.create", topic=name)
        await place(cluster, name, brokers[1])
    await ask(brokers[1], "subscriptions.create", topic="/shop/a", subscription="s")
    for namespaces in ({}, {"namespaces": "shop"}):
        plan = await ask(
            brokers[2], "brokers.unload", broker_id=id_of(brokers[1]), **namespaces, plan_only=True
        )
        assert (plan["blast_radius"]["topics"], plan["blast_radius"]["subscriptions"]) == (2, 1)
    assert plan["pinned"]["topics"].keys() == {"/shop/a", "/shop/b"}
    await ask(brokers[1], "topics.create", topic="/shop/later")
    await place(cluster, "/shop/later", brokers[1])
    done = await ask(brokers[3], "plans.apply", plan_token=plan["plan_token"])
    assert done["result"]["topics"] == 2
    for name in ("/shop/a", "/shop/b"):
        await until(lambda: brokers[1].registry.find(TopicName.parse(name)) is None)  # noqa: B023
    assert brokers[1].registry.find(TopicName.parse("/shop/later")) is not None


async def test_a_rebalance_that_is_stale_says_which_topics_moved_though_no_other_move_is_suggested(
    cluster: SeveralBrokers,
) -> None:
    """It was a conflict of the new suggestion: that the numbers of topics differ by at most one."""
    brokers = cluster.brokers
    for n in range(3):
        await ask(brokers[1], "topics.create", topic=f"/default/even-{n}")
        await place(cluster, f"/default/even-{n}", brokers[1])
    plan = await ask(brokers[2], "cluster.rebalance", by="topics", plan_only=True)
    moves = plan["pinned"]["moves"]
    assert len(moves) == 2
    for topic, _, target in moves:
        await ask(brokers[2], "topics.move", topic=topic, to_broker=target)
        owner = next(broker for broker in brokers.values() if id_of(broker) == target)
        await until(lambda: owner.registry.find(TopicName.parse(topic)) is not None)  # noqa: B023
    with pytest.raises(ClusterError) as refused:
        await ask(brokers[3], "plans.apply", plan_token=plan["plan_token"])
    assert refused.value.code == "PLAN_STALE"
    assert "differ by at most one" in refused.value.message
    assert [(each["path"], each["planned"], each["now"]) for each in refused.value.details["changed"]] == [
        (f"topics{topic}/owner", source, target) for topic, source, target in moves
    ]


async def test_a_topic_made_again_under_a_plan_is_not_moved_and_is_named(cluster: SeveralBrokers) -> None:
    """Plans of moves pinned names, so another topic of that name was moved."""
    brokers = cluster.brokers
    await ask(brokers[1], "namespaces.create", namespace="shop")
    names = [f"/shop/t{n}" for n in range(3)]
    for name in names:
        await ask(brokers[1], "topics.create", topic=name)
        await place(cluster, name, brokers[1])
    unload = {"broker_id": id_of(brokers[1]), "namespaces": "shop"}
    rebalance = await ask(brokers[2], "cluster.rebalance", by="topics", plan_only=True)
    drain = await ask(brokers[2], "brokers.unload", **unload, plan_only=True)
    again = rebalance["pinned"]["moves"][0][0]
    move = await ask(brokers[2], "topics.move", topic=again, to_broker=id_of(brokers[3]), plan_only=True)
    before = drain["pinned"]["topics"]
    plan = await ask(brokers[1], "topics.delete", topic=again, plan_only=True)
    await ask(brokers[1], "topics.delete", topic=again, plan_token=plan["plan_token"])
    await ask(brokers[1], "topics.create", topic=again)
    await place(cluster, again, brokers[1])
    for each in (rebalance, drain, move):
        with pytest.raises(ClusterError) as refused:
            await ask(brokers[3], "plans.apply", plan_token=each["plan_token"])
        assert refused.value.code == "PLAN_STALE", each["operation"]
        [changed] = refused.value.details["changed"]
        assert (changed["path"], changed["planned"]) == (f"topics{again}/topic_id", before[again])
        assert changed["now"] not in (None, before[again])
    for name in names:
        assert brokers[1].registry.find(TopicName.parse(name)) is not None, "nothing was moved"
    drain = await ask(brokers[2], "brokers.unload", **unload, plan_only=True)
    plan = await ask(brokers[1], "topics.delete", topic=again, plan_only=True)
    await ask(brokers[1], "topics.delete", topic=again, plan_token=plan["plan_token"])
    with pytest.raises(ClusterError) as refused:
        await ask(brokers[3], "plans.apply", plan_token=drain["plan_token"])
    [changed] = refused.value.details["changed"]
    assert (changed["path"], changed["now"]) == (f"topics{again}/owner", None), "the topic is named"
