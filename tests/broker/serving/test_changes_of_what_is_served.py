"""What is served follows the catalog: subscriptions that others changed, deletions that are taken back, kept policies."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydanube import Client
from pydanube_broker.broker import Broker
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.subscription_operations import MOST_KEPT
from pydanube_broker.serving.following import Following
from pydanube_broker.subscription.subscription_policy import policy_options
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import InvalidArgument, LimitReached, SubscriptionNotFound
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName

from tests.support.messages import take
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NAME = TopicName.parse("/default/t")


async def half_read(broker: Broker, client: Client) -> Topic:
    """A topic with four messages and a subscription that has acknowledged two."""
    async with client.producer("t") as producer, client.consumer("t", "s", start="earliest") as consumer:
        await producer.send_many([b"0", b"1", b"2", b"3"])
        for message in (await take(consumer, 4))[:2]:
            await message.ack()
        await consumer.flush_acks()
    topic = broker.registry.known(NAME)
    await until(lambda: topic.subscriptions["s"].floor == 2)
    return topic


def grace() -> Grace:
    return Grace(call_id="c1", until_ms=int(time.time() * 1000) + 3_600_000)


# -- subscriptions that another broker changed ----------------------------------------------------------------------


async def follow(broker: Broker, topic: Topic) -> None:
    """As after a change of the subscription's record that the watch brought."""
    await Following(broker.registry).follow(keys.subscription_key(TopicId(topic.topic_id), "s"))


async def test_a_subscription_that_another_broker_deleted_ends_here_with_its_cursor(
    broker: Broker, client: Client
) -> None:
    topic = await half_read(broker, client)
    pump = topic.subscriptions["s"]
    await broker.registry.catalog.subscriptions.delete(TopicId(topic.topic_id), "s")
    await follow(broker, topic)
    assert "s" not in topic.subscriptions
    assert isinstance(pump.closed, SubscriptionNotFound)
    assert pump.subscription_id not in topic.state.cursors
    await follow(broker, topic)


async def test_a_subscription_that_another_broker_deleted_and_made_again_is_a_new_one(
    broker: Broker, client: Client
) -> None:
    topic = await half_read(broker, client)
    pump, subscriptions = topic.subscriptions["s"], broker.registry.catalog.subscriptions
    await subscriptions.delete(TopicId(topic.topic_id), "s")
    record, _ = await subscriptions.ensure(TopicId(topic.topic_id), "s", type="shared", start_offset=1)
    await follow(broker, topic)
    now = topic.subscriptions["s"]
    assert isinstance(pump.closed, SubscriptionNotFound)
    assert (now.subscription_id, now.type.value, now.floor) == (record.subscription_id, "shared", 1)
    await follow(broker, topic)
    assert topic.subscriptions["s"] is now


async def test_a_failure_policy_that_another_broker_set_holds_here(broker: Broker, client: Client) -> None:
    topic = await half_read(broker, client)
    pump = topic.subscriptions["s"]
    assert pump.policy.failure.max_redelivery_count != 9
    await broker.registry.catalog.subscriptions.update(
        TopicId(topic.topic_id), "s", options=policy_options({"max_redelivery_count": 9})
    )
    await follow(broker, topic)
    assert topic.subscriptions["s"] is pump
    assert pump.policy.failure.max_redelivery_count == 9


# -- deletions that are taken back -----------------------------------------------------------------------------------


async def test_a_restored_subscription_is_served_at_once_from_its_cursor(
    broker: Broker, client: Client
) -> None:
    topic = await half_read(broker, client)
    await broker.port.delete_subscription("t", "s", grace=grace())
    assert "s" not in topic.subscriptions
    await broker.port.restore_subscription("c1")
    assert topic.subscriptions["s"].floor == 2
    async with client.consumer("t", "s") as consumer:
        assert [message.payload for message in await take(consumer, 2)] == [b"2", b"3"]


async def test_a_deleted_topic_is_held_for_a_move_with_its_messages_and_takes_no_new_ones(
    broker: Broker, client: Client
) -> None:
    topic = await half_read(broker, client)
    ownership, hub, topic_id = broker.registry.ownership, broker.hub, TopicId(topic.topic_id)
    place = ownership.coordinator.assignments[topic_id]
    await broker.registry.delete(NAME, grace=grace())
    await ownership.hold_restorable(place)
    held: Any = ownership.held[topic_id]
    assert (held.commit, held.state.cursors.keys()) == (4, topic.state.cursors.keys())
    assert broker.registry.find(NAME) is None
    assert topic_id not in hub.topics, "the hub would write its heads and count its bytes as of a served one"
    await ownership.hold_restorable(place)
    assert ownership.held[topic_id] is held


# -- failure policies of subscriptions that do not exist yet --------------------------------------------------------------


async def test_a_kept_failure_policy_is_merged_field_by_field_and_goes_when_it_is_empty(
    broker: Broker, client: Client
) -> None:
    async with client.producer("t"):
        pass

    async def keep(**fields: Any) -> dict[str, Any]:
        await broker.port.set_failure_policy("t", "s", fields, keep=True)
        return broker.port.kept_failure_policies("t")

    assert await keep(max_redelivery_count=9) == {"s": {"max_redelivery_count": 9}}
    both = {"max_redelivery_count": 9, "ack_timeout_ms": 5000}
    assert await keep(ack_timeout_ms=5000) == {"s": both}
    await broker.port.set_failure_policy("t", "other", {"max_redelivery_count": 3}, keep=True)
    assert broker.port.kept_failure_policies("t") == {"s": both, "other": {"max_redelivery_count": 3}}
    assert await keep(dead_letter_topic="") == {"s": both, "other": {"max_redelivery_count": 3}}
    async with client.consumer("t", "s"):
        policy = broker.registry.known(NAME).subscriptions["s"].policy.failure
        assert (policy.max_redelivery_count, policy.ack_timeout_ms) == (9, 5000)
    await broker.port.set_failure_policy("t", "other", {}, keep=True)
    assert "other" not in broker.port.kept_failure_policies("t")


async def test_a_failure_policy_that_cannot_hold_is_not_kept(broker: Broker, client: Client) -> None:
    async with client.producer("t"):
        pass
    for fields in ({"max_redelivery_count": -5}, {"dead_letter_topic": "/nowhere/graves"}):
        with pytest.raises(InvalidArgument):
            await broker.port.set_failure_policy("t", "s", fields, keep=True)
    assert broker.port.kept_failure_policies("t") == {}


async def test_a_topic_keeps_failure_policies_of_a_bounded_number_of_subscriptions(
    broker: Broker, client: Client
) -> None:
    async with client.producer("t"):
        pass
    for number in range(MOST_KEPT):
        await broker.port.set_failure_policy("t", f"s{number}", {"max_redelivery_count": 9}, keep=True)
    with pytest.raises(LimitReached):
        await broker.port.set_failure_policy("t", "one-more", {"max_redelivery_count": 9}, keep=True)
    await broker.port.set_failure_policy("t", "s0", {"max_redelivery_count": 8}, keep=True)
    kept = broker.port.kept_failure_policies("t")
    assert (len(kept), kept["s0"]) == (MOST_KEPT, {"max_redelivery_count": 8})


async def test_the_failure_policy_of_a_subscription_of_a_plain_topic_is_that_of_its_one_log(
    broker: Broker, client: Client
) -> None:
    await half_read(broker, client)
    await broker.port.set_failure_policy("t", "s", {"max_redelivery_count": 9})
    assert (await broker.port.failure_policy("t", "s"))["max_redelivery_count"] == 9
