"""Seek, skip, purge and delete, also under consumers, and what a restart finds."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import InvalidArgument, SubscriptionNotFound

from tests.broker.delivery.waiting import facts_of
from tests.support.messages import take

pytestmark = pytest.mark.anyio

TYPES = ("exclusive", "shared", "failover", "key-shared")


async def fill(client: Client, count: int = 10, **options: Any) -> None:
    async with client.producer("t", **options) as producer:
        for i in range(count):
            producer.send_nowait(b"%d" % i, key=f"k{i % 3}")
        await producer.flush()


def numbers(messages: list[Any]) -> list[int]:
    return [int(message.payload) for message in messages]


@pytest.mark.parametrize("type", TYPES)
async def test_an_administrator_moves_a_subscription_under_its_consumer(
    broker: Broker, client: Client, type: str
) -> None:
    await fill(client)
    async with client.consumer("t", "s", type=type) as consumer:
        for message in await take(consumer, 10):
            await message.ack()
        await consumer.flush_acks()
        await broker.port.seek_subscription("t", "s", "offset:7")
        again = await take(consumer, 3)
        assert numbers(again) == [7, 8, 9]
        assert {m.delivery_count for m in again} == {1}
        await broker.port.seek_subscription("t", "s", "earliest")
        assert numbers(await take(consumer, 10)) == list(range(10))
    assert (await facts_of(broker, "t", "s")).state.lag_messages == 10


async def test_a_position_in_time_is_the_first_message_from_then_on(broker: Broker, client: Client) -> None:
    await fill(client, 3)
    await anyio.sleep(0.005)
    async with client.producer("t") as producer:
        receipt = await producer.send(b"3")
    await broker.port.create_subscription("t", "s", type="exclusive", start="latest")
    await broker.port.seek_subscription("t", "s", f"time:{receipt.append_time.isoformat()}")
    assert (await facts_of(broker, "t", "s")).state.next_unacked == 3


async def test_late_acks_from_before_a_seek_do_not_count(broker: Broker, client: Client) -> None:
    await fill(client)
    async with client.consumer("t", "s") as consumer:
        before = await take(consumer, 10)
        await broker.port.seek_subscription("t", "s", "earliest")
        for message in before:
            await message.ack()
        assert numbers(await take(consumer, 10)) == list(range(10))
    assert (await facts_of(broker, "t", "s")).state.lag_messages == 10


async def test_skip_and_purge_count_what_is_not_acknowledged(broker: Broker, client: Client) -> None:
    await fill(client)
    await broker.port.create_subscription("t", "s", type="shared", start="earliest")
    assert await broker.port.skip_messages("t", "s", 4) == 4
    async with client.consumer("t", "s", type="shared") as consumer:
        assert numbers(await take(consumer, 6)) == [4, 5, 6, 7, 8, 9]
        assert await broker.port.skip_messages("t", "s", 100) == 6
        assert (await facts_of(broker, "t", "s")).state.lag_messages == 0
        await fill(client, 5)
        await take(consumer, 5)
        await broker.port.purge_subscription("t", "s")
        assert (await facts_of(broker, "t", "s")).state.lag_messages == 0


async def test_partitions_move_together(broker: Broker, client: Client) -> None:
    await fill(client, 30, partitions=3, routing="round-robin")
    await broker.port.create_subscription("t", "s", type="exclusive", start="latest")
    assert (await broker.port.resolve_position("t", "offset:4"))["/default/t-part-1"] == 4
    await broker.port.seek_subscription("t", "s", "offset:4")
    facts = await broker.port.subscriptions("t", "s")
    assert [(fact.partition, fact.state.next_unacked, fact.state.lag_messages) for fact in facts] == [
        (0, 4, 6),
        (1, 4, 6),
        (2, 4, 6),
    ]
    with pytest.raises(InvalidArgument):
        await broker.port.skip_messages("t", "s", 1)
    async with client.consumer("t", "s") as consumer:
        assert len(await take(consumer, 18)) == 18


async def test_a_deleted_subscription_ends_its_consumers_and_may_begin_anew(
    broker: Broker, client: Client
) -> None:
    await fill(client)
    async with client.consumer("t", "s") as consumer:
        await take(consumer, 10)
        await broker.port.delete_subscription("t", "s")
        with pytest.raises(SubscriptionNotFound):
            await consumer.receive(max_wait_s=60)
    with pytest.raises(SubscriptionNotFound):
        await facts_of(broker, "t", "s")
    async with client.consumer("t", "s", type="shared", start="latest"):
        pass
    facts = await facts_of(broker, "t", "s")
    assert (facts.type, facts.state.lag_messages) == ("shared", 0)


async def test_a_cursor_that_went_away_while_its_position_was_looked_for_is_not_said_to_be_moved(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its topic, to another broker, as well: there nobody hears of the seek."""
    await fill(client)
    await broker.port.create_subscription("t", "s", type="exclusive", start="earliest")
    prepare = Topic.prepare

    async def overtaken(*arguments: Any) -> None:
        await broker.port.delete_subscription("t", "s")
        await prepare(*arguments)

    monkeypatch.setattr(Topic, "prepare", overtaken)
    with pytest.raises(SubscriptionNotFound):
        await broker.port.seek_subscription("t", "s", "latest")


async def test_subscriptions_outlive_a_restart_in_every_state(opened: Any) -> None:
    """Never used, half acknowledged with holes, sought back, skipped, purged, with failures counted, deleted."""
    async with opened() as broker, connect(broker.broker_url) as client:
        await fill(client)
        for name in ("unused", "holes", "sought", "skipped", "purged", "failed", "deleted"):
            await broker.port.create_subscription("t", name, type="shared", start="earliest")
        async with client.consumer("t", "holes", type="shared") as consumer:
            for message in await take(consumer, 10):
                if message.offset in (0, 1, 5, 8):
                    await message.ack()
            await consumer.flush_acks()
        async with client.consumer("t", "sought", type="shared") as consumer:
            for message in await take(consumer, 10):
                await message.ack()
            await consumer.flush_acks()
        await broker.port.seek_subscription("t", "sought", "offset:3")
        await broker.port.skip_messages("t", "skipped", 2)
        await broker.port.purge_subscription("t", "purged")
        await broker.port.set_failure_policy("t", "failed", {"base_redelivery_delay_ms": 0})
        async with client.consumer("t", "failed", type="shared", credit_messages=1) as consumer:
            (message,) = await take(consumer, 1)
            await message.nack()
            (message,) = await take(consumer, 1)
            assert message.delivery_count == 2
            await message.nack()
            await consumer.flush_acks()
        await broker.port.delete_subscription("t", "deleted")
    for _ in range(2):
        async with opened() as broker:
            facts = {each.subscription: each for each in await broker.port.subscriptions("t", None)}
            assert {
                name: (each.state.next_unacked, each.state.lag_messages) for name, each in facts.items()
            } == {
                "unused": (0, 10),
                "holes": (2, 6),
                "sought": (3, 7),
                "skipped": (2, 8),
                "purged": (10, 0),
                "failed": (0, 10),
            }
    async with opened() as broker, connect(broker.broker_url) as client:
        async with client.consumer("t", "holes", type="shared") as consumer:
            assert sorted(numbers(await take(consumer, 6))) == [2, 3, 4, 6, 7, 9]
        async with client.consumer("t", "failed", type="shared") as consumer:
            counts = {m.offset: m.delivery_count for m in await take(consumer, 10)}
            assert counts[0] == 3
            assert {counts[offset] for offset in range(1, 10)} == {1}
