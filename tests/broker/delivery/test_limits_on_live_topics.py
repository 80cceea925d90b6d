"""The limits of docs/research/behaviours.md#17-namespaces-and-policies, enforced on topics that are in use."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube import Client, Retry, connect
from pydanube_broker.broker import Broker
from pydanube_core.errors import LimitReached, MessageTooLarge

from tests.broker.delivery.waiting import facts_of
from tests.support.messages import take

pytestmark = pytest.mark.anyio


async def create(broker: Broker, topic: str = "t", strategy: str = "reliable", **policies: int) -> None:
    await broker.port.create_topic(
        topic,
        partitions=0,
        dispatch_strategy=strategy,
        durability="fsynced" if strategy == "reliable" else "memory",
        options={"policies": policies},
    )


@pytest.fixture
async def hasty(broker: Broker) -> Any:
    """A client that reports a refusal instead of waiting for it to pass."""
    async with connect(broker.broker_url, retry=Retry(max_elapsed_s=0)) as client:
        yield client


async def test_no_more_producers_than_the_policy_says_and_a_place_is_free_again(
    broker: Broker, hasty: Client
) -> None:
    await create(broker, max_producers_per_topic=1)
    async with hasty.producer("t") as first:
        with pytest.raises(LimitReached) as caught:
            await hasty.producer("t").__aenter__()
        assert caught.value.details["field"] == "max_producers_per_topic"
        await first.send(b"x")
    async with connect(broker.broker_url) as patient, patient.producer("t") as second:
        await second.send(b"y")


@pytest.mark.parametrize("strategy", ["reliable", "non_reliable"])
async def test_no_more_consumers_than_the_policies_say(broker: Broker, hasty: Client, strategy: str) -> None:
    await create(broker, strategy=strategy, max_consumers_per_subscription=1, max_consumers_per_topic=2)
    async with hasty.consumer("t", "a", type="shared", name="one"):
        with pytest.raises(LimitReached) as caught:
            await hasty.consumer("t", "a", type="shared").__aenter__()
        assert caught.value.details["field"] == "max_consumers_per_subscription"
        async with hasty.consumer("t", "b", type="shared"):
            for third in (hasty.consumer("t", "c", type="shared"), hasty.reader("t")):
                with pytest.raises(LimitReached) as caught:
                    await third.__aenter__()
                assert caught.value.details["field"] == "max_consumers_per_topic"
            # the same consumer from another connection takes its own place
            async with (
                connect(broker.broker_url) as elsewhere,
                elsewhere.consumer("t", "a", type="shared", name="one"),
            ):
                pass


async def test_no_more_subscriptions_than_the_policy_says(broker: Broker, hasty: Client) -> None:
    await create(broker, max_subscriptions_per_topic=1)
    async with hasty.consumer("t", "a"):
        pass
    with pytest.raises(LimitReached):
        await hasty.consumer("t", "b").__aenter__()
    with pytest.raises(LimitReached):
        await broker.port.create_subscription("t", "b", type="exclusive", start="earliest")
    async with hasty.consumer("t", "a"):
        pass
    await broker.port.set_topic_policies("t", {"max_subscriptions_per_topic": 2})
    async with hasty.consumer("t", "b"):
        pass


async def test_a_message_size_counts_at_once_for_a_producer_that_is_connected(
    broker: Broker, client: Client
) -> None:
    await create(broker)
    async with client.producer("t") as producer:
        await producer.send(b"x" * 1000)
        await broker.port.set_namespace_policies("default", {"max_message_size": 100})
        with pytest.raises(MessageTooLarge):
            await producer.send(b"x" * 101)
        await producer.send(b"x" * 100)
    (facts,) = await broker.port.topic("t")
    assert facts.messages == 2


async def test_a_publish_rate_refuses_and_the_sdk_waits_and_loses_nothing(
    broker: Broker, client: Client
) -> None:
    """docs/research/behaviours.md#row-17: the reference only logs it."""
    await create(broker, max_publish_rate=2)  # so low that a slow disk is still faster
    async with client.producer("t") as producer:
        began = anyio.current_time()
        for i in range(4):
            await producer.send(b"%d" % i)
        took_s = anyio.current_time() - began
    assert took_s >= 0.9  # two at once, and half a second for each of the others
    assert broker.metrics.rejected["/default/t", "RATE_LIMITED"] > 0
    async with client.reader("t", stop="head") as reader:
        assert [m.payload async for m in reader] == [b"0", b"1", b"2", b"3"]


async def test_a_publish_rate_is_an_even_pace(broker: Broker, client: Client) -> None:
    """Batches that grow while they wait would come in bursts and leave debts; they are kept small instead."""
    await create(broker, max_publish_rate=50)
    async with client.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(120)])
    async with client.reader("t", stop="head") as reader:
        times = [m.append_time.timestamp() async for m in reader]
    assert len(times) == 120
    after_burst = [at for at in times if at > times[0] + 1.0]  # a second's worth may go at once
    assert len(after_burst) >= 10
    for at in after_burst:
        assert sum(at <= other < at + 0.5 for other in times) <= 50 * 0.5 + 50 // 10 + 1


async def test_a_dispatch_rate_holds_back_and_loses_nothing(broker: Broker, client: Client) -> None:
    """docs/research/behaviours.md#row-16: the reference throws away what it polled while the bucket was empty."""
    await create(broker, max_subscription_dispatch_rate=200)
    async with client.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(300)])
    for type in ("exclusive", "shared", "key-shared"):
        async with client.consumer("t", f"s-{type}", type=type) as consumer:
            began = anyio.current_time()
            messages = await take(consumer, 300)
            took_s = anyio.current_time() - began
            assert [int(m.payload) for m in messages] == list(range(300))
            assert took_s >= 0.45
            for message in messages:
                await message.ack()
            await consumer.flush_acks()
        facts = await facts_of(broker, "t", f"s-{type}")
        assert (facts.state.lag_messages, facts.state.redelivered) == (0, 0)


async def test_lifting_a_dispatch_rate_lets_the_backlog_go(broker: Broker, client: Client) -> None:
    await create(broker, max_subscription_dispatch_rate=1)
    async with client.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(5000)])
    async with client.consumer("t", "s") as consumer:
        assert len(await take(consumer, 1)) == 1
        await broker.port.set_topic_policies("t", {"max_subscription_dispatch_rate": 0})
        assert len(await take(consumer, 4999)) == 4999


async def test_settings_are_the_last_layer_and_policies_survive_a_restart(opened: Any) -> None:
    async with opened(policies__max_consumers_per_topic=7) as broker:
        await create(broker, max_publish_rate=3)
        await broker.port.create_namespace("shop", {"max_producers_per_topic": 2})
    async with opened(policies__max_consumers_per_topic=8) as broker:
        effective = (await broker.port.topic_policies("t")).effective
        assert (effective["max_publish_rate"], effective["max_consumers_per_topic"]) == (3, 8)
        await create(broker, "/shop/t")
        assert (await broker.port.topic_policies("/shop/t")).effective["max_producers_per_topic"] == 2


async def test_dead_letters_are_not_held_up_by_a_publish_rate(broker: Broker, client: Client) -> None:
    await create(broker)
    await create(broker, "graves", max_publish_rate=1)
    async with client.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(20)])
    await broker.port.create_subscription("t", "s", type="shared", start="earliest")
    await broker.port.set_failure_policy(
        "t", "s", {"max_redelivery_count": 0, "poison_policy": "dead_letter", "dead_letter_topic": "graves"}
    )
    async with client.consumer("t", "s", type="shared") as consumer:
        for message in await take(consumer, 20):
            await message.nack()
        async with client.reader("graves") as reader:
            assert len(await take(reader, 20)) == 20
