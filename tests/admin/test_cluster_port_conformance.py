"""What the admin core relies on in a `ClusterPort`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import (
    AlreadyExists,
    InvalidArgument,
    NamespaceNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import emptied

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def untouched(anyio_backend: str) -> AsyncIterator[Administered]:
    """A broker whose admin core nobody asks: it has no audit among its topics."""
    async with administered() as cluster:
        yield cluster


@pytest.fixture
async def port(untouched: Administered) -> ClusterPort:
    await emptied(untouched)
    return untouched.broker.port


async def create(port: ClusterPort, topic: str, partitions: int = 0) -> None:
    await port.create_topic(
        topic, partitions=partitions, dispatch_strategy="reliable", durability="fsynced", options={}
    )


async def test_a_topic_is_its_own_facts_alone(port: ClusterPort) -> None:
    await create(port, "/default/one")
    (own,) = await port.topic("/default/one")
    assert (own.topic, own.parent, own.partition, own.partitions) == ("/default/one", None, None, 0)
    assert (own.messages, own.start_offset, own.next_offset) == (0, 0, 0)
    assert own.owner is not None
    assert own.owner.isdecimal()
    assert [key.topic for key in await port.topic_index()] == ["/default/one"]


async def test_a_partitioned_topic_comes_first_and_its_partitions_behind_it(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    own, *parts = await port.topic("/default/many")
    assert (own.topic, own.parent, own.partitions) == ("/default/many", None, 2)
    assert sorted((part.topic, part.partition, part.parent, part.partitions) for part in parts) == [
        (f"/default/many-part-{index}", index, "/default/many", 0) for index in range(2)
    ]
    (part,) = await port.topic("/default/many-part-1")
    assert part.parent == "/default/many"
    assert [key.topic for key in await port.topic_index()] == ["/default/many"]
    assert await port.log_count() == 2


async def test_a_page_of_topics_is_chosen_by_the_index_and_has_the_facts_of_each(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    await create(port, "/default/one")
    index = {key.topic: key.owners for key in await port.topic_index() if key.topic.startswith("/default/")}
    assert set(index) == {"/default/many", "/default/one"}
    (one,) = await port.topic("/default/one")
    assert list(index["/default/one"]) == [one.owner]
    assert set(index["/default/many"]) == {one.owner}
    names = ["/default/one", "/default/gone", "/default/many"]
    assert [list(facts) for facts in await port.topic_facts(names)] == [
        list(await port.topic(name)) for name in (names[0], names[2])
    ]


async def test_a_name_is_taken_once_and_free_again_after_deletion(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    with pytest.raises(AlreadyExists):
        await create(port, "/default/many")
    await port.delete_topic("/default/many")
    assert list(await port.topic_index()) == []
    await create(port, "/default/many")
    assert len(await port.topic("/default/many")) == 1


async def test_what_is_not_there_is_said_by_kind(port: ClusterPort) -> None:
    for call in (
        port.topic("/default/none"),
        port.delete_topic("/default/none"),
        port.subscriptions("/default/none", None),
    ):
        with pytest.raises(TopicNotFound):
            await call
    await create(port, "/default/one")
    assert list(await port.subscriptions("/default/one", None)) == []
    assert list(await port.subscriptions(None, None)) == []
    for topic in ("/default/one", None):
        with pytest.raises(SubscriptionNotFound):
            await port.subscriptions(topic, "none")


async def test_the_broker_has_a_status(port: ClusterPort) -> None:
    status = await port.status()
    assert status.broker_id.isdecimal()
    assert status.ready
    assert status.data_dir is None


async def test_policies_are_set_one_by_one_and_the_nearest_layer_counts(port: ClusterPort) -> None:
    await create(port, "/default/one")
    await port.set_topic_policies("/default/one", {"max_publish_rate": 10, "max_consumers_per_topic": 2})
    await port.set_topic_policies("/default/one", {"max_publish_rate": 20})
    facts = await port.topic_policies("/default/one")
    assert facts.own == {"max_publish_rate": 20, "max_consumers_per_topic": 2}
    assert facts.effective["max_publish_rate"] == 20
    await port.set_namespace_policies("default", {"max_publish_rate": 5, "max_producers_per_topic": 7})
    effective = (await port.topic_policies("/default/one")).effective
    assert (effective["max_publish_rate"], effective["max_producers_per_topic"]) == (20, 7)
    await port.set_topic_policies("/default/one", {"max_publish_rate": None})
    facts = await port.topic_policies("/default/one")
    assert facts.own == {"max_consumers_per_topic": 2}
    assert facts.effective["max_publish_rate"] == 5
    await port.set_topic_policies("/default/one", {"max_publish_rate": 0})
    assert (await port.topic_policies("/default/one")).effective["max_publish_rate"] == 0
    with pytest.raises(TopicNotFound):
        await port.topic_policies("/default/none")


async def test_a_partition_has_its_topics_policies(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    await port.set_topic_policies("/default/many", {"max_publish_rate": 3})
    assert (await port.topic_policies("/default/many")).own == {"max_publish_rate": 3}
    with pytest.raises(InvalidArgument):
        await port.set_topic_policies("/default/many-part-0", {"max_publish_rate": 4})


async def test_a_topic_may_be_created_with_policies(port: ClusterPort) -> None:
    await port.create_topic(
        "/default/one",
        partitions=0,
        dispatch_strategy="non_reliable",
        durability="memory",
        options={"policies": {"max_publish_rate": 9}},
    )
    (own,) = await port.topic("/default/one")
    assert (own.dispatch_strategy, own.durability) == ("non_reliable", "memory")
    assert (await port.topic_policies("/default/one")).own == {"max_publish_rate": 9}


async def test_namespaces_are_made_listed_and_have_policies(port: ClusterPort) -> None:
    await port.create_namespace("shop", {"max_message_size": 1000})
    with pytest.raises(AlreadyExists):
        await port.create_namespace("shop", {})
    await create(port, "/shop/many", partitions=2)
    found = {facts.namespace: facts for facts in await port.namespaces()}
    assert set(found) == {"default", "shop", "system"}
    assert (found["shop"].topics, found["shop"].policies) == (1, {"max_message_size": 1000})
    assert (await port.namespace_policies("shop")).effective["max_message_size"] == 1000
    for call in (port.namespace_policies("none"), port.set_namespace_policies("none", {})):
        with pytest.raises(NamespaceNotFound):
            await call


async def test_a_subscription_is_made_on_every_partition_once(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    await port.create_subscription("/default/many", "s", type="shared", start="latest")
    with pytest.raises(AlreadyExists):
        await port.create_subscription("/default/many", "s", type="shared", start="latest")
    facts = [
        fact for index in range(2) for fact in await port.subscriptions(f"/default/many-part-{index}", "s")
    ]
    assert [(fact.partition, fact.type, fact.state.lag_messages, fact.state.dropped) for fact in facts] == [
        (0, "shared", 0, 0),
        (1, "shared", 0, 0),
    ]
    assert await port.resolve_position("/default/many", "earliest") == {
        "/default/many-part-0": 0,
        "/default/many-part-1": 0,
    }
    await port.delete_subscription("/default/many", "s")
    with pytest.raises(SubscriptionNotFound):
        await port.subscriptions("/default/many-part-1", "s")


async def test_moving_what_does_not_exist_is_refused(port: ClusterPort) -> None:
    await create(port, "/default/one")
    for call in (
        port.seek_subscription("/default/one", "none", "earliest"),
        port.skip_messages("/default/one", "none", 1),
        port.purge_subscription("/default/one", "none"),
        port.delete_subscription("/default/one", "none"),
        port.failure_policy("/default/one", "none"),
        port.set_failure_policy("/default/one", "none", {"poison_policy": "drop"}),
    ):
        with pytest.raises(SubscriptionNotFound):
            await call
    await port.create_subscription("/default/one", "s", type="exclusive", start="earliest")
    with pytest.raises(InvalidArgument):
        await port.seek_subscription("/default/one", "s", "offset:1")
    await port.seek_subscription("/default/one", "s", "latest")
    await port.purge_subscription("/default/one", "s")
    assert await port.skip_messages("/default/one", "s", 3) == 0


async def test_a_failure_policy_is_changed_field_by_field(port: ClusterPort) -> None:
    await create(port, "/default/one")
    await port.create_subscription("/default/one", "s", type="exclusive", start="earliest")
    assert await port.failure_policy("/default/one", "s") == {
        "max_redelivery_count": 5,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 1_000,
        "max_redelivery_delay_ms": 60_000,
        "backoff_strategy": "exponential",
        "poison_policy": "block",
        "dead_letter_topic": None,
        "max_unacked_messages": 1_000,
    }
    with pytest.raises(InvalidArgument, match=r"max_unacked_messages: 0 is not a count\. Give 1 to"):
        await port.set_failure_policy("/default/one", "s", {"max_unacked_messages": 0})
    await port.set_failure_policy("/default/one", "s", {"poison_policy": "dead_letter"})
    await port.set_failure_policy("/default/one", "s", {"max_redelivery_count": 2})
    policy = await port.failure_policy("/default/one", "s")
    assert (policy["max_redelivery_count"], policy["dead_letter_topic"]) == (2, "/default/one-dlq-s")
    await port.set_failure_policy("/default/one", "s", {"dead_letter_topic": "/default/graves"})
    assert (await port.failure_policy("/default/one", "s"))["dead_letter_topic"] == "/default/graves"
    await port.set_failure_policy("/default/one", "s", {"dead_letter_topic": ""})
    assert (await port.failure_policy("/default/one", "s"))["dead_letter_topic"] == "/default/one-dlq-s"
