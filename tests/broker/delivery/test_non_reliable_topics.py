"""Non-reliable topics on a broker: from memory, to whoever is connected, drops counted."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.subscription.live_queue import QUEUE_MESSAGES
from pydanube_core.errors import ConsumerBusy, DispatchMismatch

from tests.broker.delivery.waiting import facts_of
from tests.support.messages import take
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def producer(client: Client, topic: str = "live", **options: Any) -> Any:
    return client.producer(topic, dispatch_strategy="non_reliable", **options)


def dropped(broker: Broker, reason: str) -> int:
    return broker.engine.dropped["/default/live", reason]


async def test_a_receipt_says_memory_and_nothing_is_stored(broker: Broker, client: Client) -> None:
    async with producer(client) as sender:
        receipt = await sender.send(b"x")
        await sender.send_many([b"y"] * 100)
        assert (receipt.durability, receipt.offset) == ("memory", 0)
    (facts,) = await broker.port.topic("/default/live")
    assert (facts.dispatch_strategy, facts.durability) == ("non_reliable", "memory")
    assert (facts.messages, facts.bytes, facts.next_offset) == (0, 0, 101)


async def test_what_it_takes_in_changes_the_topic_in_lists(broker: Broker, client: Client) -> None:
    async with producer(client) as sender:
        await sender.send(b"first")
        changes = broker.registry.list_changes
        mark = changes.mark()
        await sender.send(b"second")
        assert "/default/live" in (changes.since(mark) or ())


async def test_what_a_producer_asks_for_must_be_what_the_topic_is(client: Client) -> None:
    async with producer(client):
        pass
    with pytest.raises(DispatchMismatch):
        await client.producer("live").__aenter__()


async def test_a_consumer_gets_what_is_published_while_it_is_there(broker: Broker, client: Client) -> None:
    async with producer(client) as sender:
        await sender.send(b"before")
        async with client.consumer("live", "s") as consumer:
            await sender.send_many([b"%d" % i for i in range(2000)])
            messages = await take(consumer, 2000)
            assert [m.payload for m in messages] == [b"%d" % i for i in range(2000)]
            assert {m.delivery_count for m in messages} == {1}
            for message in messages:
                await message.ack()  # taken without complaint, so that one program serves both kinds
            await consumer.flush_acks()
        while any(facts.consumers for facts in await broker.port.subscriptions("live", "s")):  # noqa: ASYNC110
            await anyio.sleep(0.01)  # the broker hears of the closed stream a moment after its client
        await sender.send(b"after")
    assert dropped(broker, "no_consumer") == 1  # `before` was published when there was no subscription yet


async def test_an_exclusive_place_is_free_when_its_consumer_leaves(client: Client) -> None:
    async with producer(client):
        async with client.consumer("live", "s", name="a"):
            with pytest.raises(ConsumerBusy):
                await client.consumer("live", "s", name="b").__aenter__()
        async with client.consumer("live", "s", name="b"):
            pass


async def test_a_slow_consumer_loses_messages_and_a_fast_one_none(broker: Broker, client: Client) -> None:
    count = 3 * QUEUE_MESSAGES
    async with (
        producer(client) as sender,
        client.consumer("live", "fast") as fast,
        client.consumer("live", "slow", credit_messages=10) as slow,
    ):
        received = 0

        async def read_all() -> None:
            nonlocal received
            while received < count:
                received += len(await fast.receive(max_messages=5000, max_wait_s=60))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_all)
            for start in range(0, count, 1000):
                await sender.send_many([b"%d" % i for i in range(start, start + 1000)])
        slow_facts, fast_facts = [await facts_of(broker, "/default/live", name) for name in ("slow", "fast")]
        assert fast_facts.state.dropped == 0
        assert slow_facts.state.dropped == count - QUEUE_MESSAGES - 10
        assert slow_facts.consumers[0].dropped == slow_facts.state.dropped
        assert slow_facts.state.in_flight == QUEUE_MESSAGES  # what waits in its queue
        assert dropped(broker, "queue_full") == slow_facts.state.dropped
        text = (await broker.port.metrics()).decode()
        assert (
            f'danube_dropped_messages_total{{reason="queue_full",topic="/default/live"}} {slow_facts.state.dropped}.0'
            in text
        )
        first = await take(slow, 20)
        assert [m.payload for m in first] == [b"%d" % i for i in range(20)]


async def test_shared_consumers_get_each_message_once(broker: Broker, client: Client) -> None:
    got: defaultdict[str, list[bytes]] = defaultdict(list)
    async with (
        producer(client) as sender,
        client.consumer("live", "s", type="shared", name="a") as a,
        client.consumer("live", "s", type="shared", name="b") as b,
    ):
        for start in range(0, 400, 20):
            await sender.send_many([b"%d" % i for i in range(start, start + 20)])
        while sum(map(len, got.values())) < 400:
            for name, consumer in (("a", a), ("b", b)):
                got[name] += [m.payload for m in await consumer.receive(max_messages=500, max_wait_s=0.05)]
    assert sorted(got["a"] + got["b"], key=int) == [b"%d" % i for i in range(400)]
    assert min(len(got["a"]), len(got["b"])) >= 100  # in turn


async def test_a_standby_takes_over_with_what_the_active_one_was_not_sent(client: Client) -> None:
    async with (
        producer(client) as sender,
        client.consumer("live", "s", type="failover", name="a", credit_messages=5) as active,
        client.consumer("live", "s", type="failover", name="b") as standby,
    ):
        assert (active.active, standby.active) == (True, False)
        await sender.send_many([b"%d" % i for i in range(50)])
        await until(lambda: active.statistics().received_messages == 5)
        await active.aclose()
        assert [m.payload for m in await take(standby, 45)] == [b"%d" % i for i in range(5, 50)]
        assert standby.active


async def test_a_key_stays_with_its_consumer_and_in_order(client: Client) -> None:
    got: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    async with (
        producer(client) as sender,
        client.consumer("live", "s", type="key-shared", name="a") as a,
        client.consumer("live", "s", type="key-shared", name="b") as b,
    ):
        for i in range(1000):
            sender.send_nowait(b"%d" % i, key=f"k{i % 50}")
        await sender.flush()
        while sum(map(len, got.values())) < 1000:
            for name, consumer in (("a", a), ("b", b)):
                for message in await consumer.receive(max_messages=500, max_wait_s=0.05):
                    got[name].append((message.key or "", int(message.payload)))
    keys = {name: {key for key, _ in found} for name, found in got.items()}
    assert not keys["a"] & keys["b"]
    assert keys["a"]
    assert keys["b"]
    for found in got.values():
        for key in {key for key, _ in found}:
            numbers = [number for other, number in found if other == key]
            assert numbers == sorted(numbers)


async def test_a_key_that_no_consumer_accepts_is_dropped_and_counted(broker: Broker, client: Client) -> None:
    async with (
        producer(client) as sender,
        client.consumer("live", "s", type="key-shared", key_filters=["eu-*"]) as consumer,
    ):
        await sender.send(b"us", key="us-1")
        await sender.send(b"eu", key="eu-1")
        assert [m.payload for m in await take(consumer, 1)] == [b"eu"]
    assert dropped(broker, "key_refused") == 1


async def test_a_plain_reader_sees_what_comes_and_a_bounded_one_ends_at_once(client: Client) -> None:
    async with producer(client) as sender:
        await sender.send(b"gone")
        async with client.reader("live", stop="head") as bounded:
            assert [m async for m in bounded] == []
        async with client.reader("live") as reader:
            await sender.send_many([b"1", b"2", b"3"])
            assert [m.payload for m in await take(reader, 3)] == [b"1", b"2", b"3"]


async def test_a_topic_and_its_subscriptions_are_there_after_a_restart_and_empty(opened: Any) -> None:
    for _ in range(2):
        async with opened() as broker, connect(broker.broker_url) as client:
            async with producer(client) as sender, client.consumer("live", "s", type="shared") as consumer:
                assert (await sender.send(b"x")).offset == 0
                assert len(await take(consumer, 1)) == 1
            facts = await facts_of(broker, "/default/live", "s")
            assert (facts.type, facts.state.lag_messages) == ("shared", 0)


async def test_partitions_pass_on_each_for_itself(client: Client) -> None:
    async with (
        producer(client, partitions=3, routing="round-robin") as sender,
        client.consumer("live", "s", type="failover") as consumer,
    ):
        for i in range(30):
            sender.send_nowait(b"%d" % i)
        await sender.flush()
        messages = await take(consumer, 30)
        assert {m.partition for m in messages} == {0, 1, 2}
        for partition in range(3):
            offsets = [m.offset for m in messages if m.partition == partition]
            assert offsets == list(range(10))
