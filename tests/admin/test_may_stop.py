"""`brokers.may_stop` names the topics that a stop would leave waiting, and the messages that only one disk has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.settings.sections import Cluster, Settings
from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered
from tests.admin.test_any_broker_administers import administered as administered_broker
from tests.admin.test_any_broker_administers import ask
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lone(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(etcd, tmp_path, administered_broker) as cluster:
        yield cluster


async def test_lone_broker_may_stop_only_without_topics(lone: Administered) -> None:
    empty = await lone("brokers.may_stop")
    assert (empty["may_stop"], empty["because"]) == (True, "it serves no topics")
    assert (empty["would_wait"], empty["would_be_taken_over"], empty["would_lose"]) == ([], [], None)
    for name in ("quiet", "orders"):
        await lone("topics.create", topic=name)
    await lone("topics.create", topic="live", dispatch_strategy="non_reliable")
    await lone.publish("orders", b"1", b"2")
    found = await lone("brokers.may_stop", broker_id=lone.broker_id)
    assert not found["may_stop"]
    assert (
        found["because"]
        == "3 topics would end with its process, because it keeps them in memory: no other broker takes topics"
    )
    assert found["would_wait"] == ["/default/live", "/default/orders", "/default/quiet"]
    assert (found["would_lose"]["topics"], found["would_lose"]["messages"]) == (1, 2)
    assert 0 <= found["would_lose"]["ms"] < 60_000
    refused = await lone.refused("brokers.may_stop", broker_id="77")
    assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", "broker_id")


async def test_lists_name_the_first_hundred_topics(lone: Administered) -> None:
    await lone("topics.create", topic="wide", partitions=120)
    found = await lone("brokers.may_stop")
    assert (len(found["would_wait"]), found["not_named"]) == (100, 20)
    assert found["because"].startswith("120 topics would")


async def test_any_broker_says_whether_another_may_stop(cluster: SeveralBrokers) -> None:
    owner, asked = cluster.brokers[1], cluster.brokers[2]
    for name, strategy in (("stored", "reliable"), ("tiered", "reliable"), ("live", "non_reliable")):
        await owner.registry.create(
            TopicName.parse(name), partitions=0, dispatch_strategy=strategy, here=True
        )
    async with connect(owner.broker_url) as client:
        for name in ("stored", "tiered"):
            async with client.producer(name) as producer:
                await producer.send_many([b"1", b"2", b"3"])
    await owner.port.flush_objects("tiered")
    journals = {each["broker_id"]: each["journal"] for each in (await ask(asked, "brokers.list"))["items"]}
    assert journals.keys() == {id_of(each) for each in cluster.brokers.values()}
    assert len({each["id"] for each in journals.values()}) == 3
    assert {(each["term"], each["state"], each["copies"]) for each in journals.values()} == {
        (1, "open", False)
    }
    found = await ask(asked, "brokers.may_stop", broker_id=id_of(owner))
    assert (found["broker_id"], found["may_stop"]) == (id_of(owner), False)
    assert found["would_wait"] == ["/default/stored", "/default/tiered"]
    assert found["would_be_taken_over"] == ["/default/live"]
    assert (found["would_lose"]["topics"], found["would_lose"]["messages"]) == (1, 3), (
        "the store has the others"
    )
    assert (
        found["because"]
        == "2 topics would wait until it is back: brokers.unload hands them to other brokers first"
    )

    await owner.port.unload()
    await until(lambda: owner.registry.count == 0)
    drained = await ask(asked, "brokers.may_stop", broker_id=id_of(owner))
    assert (drained["may_stop"], drained["would_wait"], drained["would_lose"]) == (True, [], None)

    gone = id_of(owner)
    await cluster.stop(1)
    await until(lambda: int(gone) not in asked.registry.ownership.coordinator.members)
    with pytest.raises(ClusterError, match="gone: it is not registered"):
        await ask(asked, "brokers.may_stop", broker_id=gone)


async def test_broker_whose_topics_are_taken_over_may_stop(etcd: EtcdMembers, tmp_path: Path) -> None:
    def taken_over(settings: Settings) -> AbstractAsyncContextManager[Broker]:
        journal = settings.journal.model_copy(update={"copy": True})
        more = {"journal": journal, "cluster": Cluster(on_loss="take_over")}
        return administered_broker(settings.model_copy(update=more))

    async with several_brokers(etcd, tmp_path, taken_over) as cluster:
        owner, asked = cluster.brokers[1], cluster.brokers[2]
        name = TopicName.parse("copied")
        await owner.registry.create(name, partitions=0, dispatch_strategy="reliable", here=True)
        async with connect(owner.broker_url) as client, client.producer("copied") as producer:
            await producer.send(b"1")
        await until(lambda: owner.is_taken_over)
        found = await ask(asked, "brokers.may_stop", broker_id=id_of(owner))
        assert (found["may_stop"], found["would_wait"], found["would_lose"]) == (True, [], None)
        assert found["would_be_taken_over"] == ["/default/copied"]
        assert found["because"] == "another broker serves its 1 topic within seconds"


async def test_lone_broker_says_that_no_other_could_take_a_topic_over(lone: Administered) -> None:
    await lone("topics.create", topic="orders")
    refused = await lone.refused("topics.take_over", topic="orders")
    assert (refused.code, refused.message) == (
        "LAST_BROKER",
        "this broker is alone: no other broker could take its topics over",
    )
