"""Failed deliveries on a broker: dead letters, drops, blocks, and policies that change under way."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.delivery import pump
from pydanube_core.batch import MAX_BATCH_BYTES, encode_batch
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import DispatchMismatch, InvalidArgument
from pydanube_core.facts import Redelivery
from pydanube_core.names import TopicName

from tests.broker.delivery.waiting import facts_of
from tests.support.messages import take
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

QUICK = {"max_redelivery_count": 1, "base_redelivery_delay_ms": 1}


async def prepare(broker: Broker, client: Client, payloads: list[bytes], **policy: Any) -> None:
    """A shared subscription `s` of the topic `t`, with messages."""
    async with client.producer("t", name="maker") as producer:
        for payload in payloads:
            producer.send_nowait(payload, key="k-" + payload.decode(), attributes={"own": "1"})
        await producer.flush()
    await broker.port.create_subscription("t", "s", type="shared", start="earliest")
    await broker.port.set_failure_policy("t", "s", {**QUICK, **policy})


async def fail(
    client: Client, poison: set[bytes], deliveries: int, *, last_delay_ms: int | None = None
) -> None:
    """Take that many deliveries; nack what is poison, acknowledge the rest.

    Without `last_delay_ms` the last one may come once more before this consumer leaves, and that counts.
    """
    async with client.consumer("t", "s", type="shared") as consumer:
        for number in range(1, deliveries + 1):
            (message,) = await take(consumer, 1)
            if message.payload in poison:
                delay_ms = last_delay_ms if number == deliveries else None
                await message.nack(delay_ms, reason="cannot be read")
            else:
                await message.ack()
        await consumer.flush_acks()


def pump_of(broker: Broker) -> Any:
    topic = broker.registry.find(TopicName.parse("t"))
    assert topic is not None
    return topic.subscriptions["s"]


async def counted(broker: Broker, name: str, value: int) -> None:
    pump = pump_of(broker)
    await until(lambda: getattr(pump.statistics(), name) == value)


async def test_an_exhausted_message_is_copied_with_its_story_and_only_then_done(
    broker: Broker, client: Client
) -> None:
    await prepare(broker, client, [b"good", b"bad", b"fine"], poison_policy="dead_letter")
    await fail(client, {b"bad"}, deliveries=4)
    await counted(broker, "dead_lettered", 1)
    facts = await facts_of(broker, "t", "s")
    assert (facts.state.lag_messages, facts.state.dead_lettered, facts.blocked_reason) == (0, 1, None)
    async with client.reader("t-dlq-s") as reader:
        (copy,) = await take(reader, 1)
    async with client.reader("t", start="offset:1") as reader:
        (original,) = await take(reader, 1)
    assert (copy.payload, copy.key, copy.producer) == (b"bad", "k-bad", "maker")
    assert copy.publish_time == original.publish_time
    assert dict(copy.attributes) == {
        "own": "1",
        "x-original-topic": "/default/t",
        "x-original-subscription": "s",
        "x-original-topic-offset": "1",
        "x-original-producer-id": copy.attributes["x-original-producer-id"],
        "x-original-broker-addr": broker.broker_url,
        "x-poison-policy": "dead_letter",
        "x-delivery-attempt": "2",
        "x-failure-reason": "cannot be read",
    }
    (topic,) = await broker.port.topic("t-dlq-s")
    assert topic.durability == "fsynced"


async def test_a_named_dead_letter_topic_may_have_partitions_and_offsets_say_which(
    broker: Broker, client: Client
) -> None:
    """Not how they are put together: asked for again, each comes where its copy is known."""
    async with client.producer("graves", partitions=2):
        pass
    payloads = [b"%d" % i for i in range(280)]
    await prepare(
        broker,
        client,
        payloads,
        poison_policy="dead_letter",
        max_redelivery_count=0,
        dead_letter_topic="graves",
    )
    await fail(client, set(payloads), deliveries=280)
    await counted(broker, "dead_lettered", 280)
    for part, offsets in enumerate((range(256), range(256, 280))):
        async with client.reader(f"graves-part-{part}") as reader:
            assert [int(m.payload) for m in await take(reader, len(offsets))] == list(offsets)


async def test_dead_letters_wait_while_their_topic_cannot_take_them(broker: Broker, client: Client) -> None:
    async with client.producer("live", dispatch_strategy="non_reliable"):
        pass
    await prepare(
        broker,
        client,
        [b"bad"],
        poison_policy="dead_letter",
        max_redelivery_count=0,
        dead_letter_topic="live",
    )
    await fail(client, {b"bad"}, deliveries=1)
    facts = await facts_of(broker, "t", "s")
    assert (facts.state.lag_messages, facts.state.dead_lettered) == (1, 0)
    await broker.port.set_failure_policy("t", "s", {"dead_letter_topic": "graves"})
    await counted(broker, "dead_lettered", 1)
    (graves,) = await broker.port.topic("graves")
    assert graves.messages == 1


async def test_drop_acknowledges_and_counts(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"bad", b"good"], poison_policy="drop", max_redelivery_count=0)
    await fail(client, {b"bad"}, deliveries=2)
    facts = await facts_of(broker, "t", "s")
    assert (facts.state.lag_messages, facts.state.dropped) == (0, 1)
    assert broker.engine.dropped["/default/t", "poison"] == 1


async def test_block_stops_what_is_behind_and_says_why_until_the_policy_changes(
    broker: Broker, client: Client
) -> None:
    await prepare(broker, client, [b"bad"], poison_policy="block", max_redelivery_count=0)
    await fail(client, {b"bad"}, deliveries=1)
    async with client.producer("t") as producer:
        await producer.send(b"behind")
    facts = await facts_of(broker, "t", "s")
    assert facts.blocked_reason == "offset 0: cannot be read"
    async with client.consumer("t", "s", type="shared") as consumer:
        assert await consumer.receive(max_wait_s=0.05) == []
        await broker.port.set_failure_policy("t", "s", {"poison_policy": "drop"})
        assert [m.payload for m in await take(consumer, 1)] == [b"behind"]
    assert (await facts_of(broker, "t", "s")).blocked_reason is None


async def test_skip_gets_a_subscription_past_what_blocks_it(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"bad", b"next"], poison_policy="block", max_redelivery_count=0)
    async with client.consumer("t", "s", type="shared", credit_messages=1) as consumer:
        (message,) = await take(consumer, 1)
        await message.nack(reason="bad")
        pump = pump_of(broker)
        await until(lambda: pump.statistics().blocked_by is not None)
        assert await broker.port.skip_messages("t", "s", 1) == 1
        assert [m.payload for m in await take(consumer, 1)] == [b"next"]


async def test_policy_counts_and_the_point_of_exhaustion_survive_a_restart(opened: Any) -> None:
    async with opened() as broker, connect(broker.broker_url) as client:
        await prepare(broker, client, [b"bad"], poison_policy="dead_letter", max_redelivery_count=2)
        await fail(client, {b"bad"}, deliveries=2, last_delay_ms=1000)
    async with opened() as broker, connect(broker.broker_url) as client:
        policy = await broker.port.failure_policy("t", "s")
        assert (policy["poison_policy"], policy["max_redelivery_count"]) == ("dead_letter", 2)
        async with client.consumer("t", "s", type="shared") as consumer:
            (message,) = await take(consumer, 1)
            assert message.delivery_count == 3
            await message.nack(reason="third time")
            await counted(broker, "dead_lettered", 1)
    async with opened() as broker, connect(broker.broker_url) as client:
        async with client.reader("t-dlq-s", stop="head") as reader:
            copies = [m async for m in reader]
        assert [m.attributes["x-delivery-attempt"] for m in copies] == ["3"]
        assert (await facts_of(broker, "t", "s")).state.lag_messages == 0


async def test_a_default_from_the_settings_is_used_where_nothing_was_chosen(opened: Any) -> None:
    async with opened(delivery__poison_policy="drop") as broker, connect(broker.broker_url) as client:
        async with client.producer("t"):
            pass
        await broker.port.create_subscription("t", "s", type="exclusive", start="earliest")
        assert (await broker.port.failure_policy("t", "s"))["poison_policy"] == "drop"
    async with opened() as broker:
        assert (await broker.port.failure_policy("t", "s"))["poison_policy"] == "block"


async def test_a_topic_is_not_its_own_grave(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"x"])
    with pytest.raises(InvalidArgument):
        await broker.port.set_failure_policy("t", "s", {"dead_letter_topic": "t"})


async def test_an_ack_timeout_is_a_failure_and_dead_letters_in_the_end(
    broker: Broker, client: Client
) -> None:
    await prepare(
        broker, client, [b"stuck"], poison_policy="dead_letter", max_redelivery_count=1, ack_timeout_ms=20
    )
    async with client.consumer("t", "s", type="shared") as consumer:
        deliveries = await take(consumer, 2)
        assert [m.delivery_count for m in deliveries] == [1, 2]
        await counted(broker, "dead_lettered", 1)
    async with client.reader("t-dlq-s") as reader:
        (copy,) = await take(reader, 1)
    assert copy.attributes["x-failure-reason"] == "ack timeout"


async def test_terminated_messages_go_at_once(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"wrong"], poison_policy="dead_letter", max_redelivery_count=9)
    async with client.consumer("t", "s", type="shared") as consumer:
        (message,) = await take(consumer, 1)
        await message.terminate("not for us")
        await counted(broker, "dead_lettered", 1)
    async with client.reader("t-dlq-s") as reader:
        (copy,) = await take(reader, 1)
    assert (copy.attributes["x-failure-reason"], copy.attributes["x-delivery-attempt"]) == ("not for us", "1")


async def test_many_exhausted_messages_are_counted_in_few_lines(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "LOG_PAUSE_S", 0.5)
    await prepare(broker, client, [b"%d" % number for number in range(300)], poison_policy="drop")
    async with client.consumer("t", "s", type="shared") as consumer:
        for message in await take(consumer, 300):
            await message.terminate("not for us")
        await consumer.flush_acks()

    await counted(broker, "dropped", 300)

    def lines() -> list[dict[str, Any]]:
        return [vars(each) for each in caplog.records if each.getMessage() == "messages_exhausted"]

    await until(lambda: any("more_messages" in line for line in lines()))
    assert len(lines()) < 100  # else one for each


async def test_a_nack_is_heard_before_its_consumer_leaves(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"%d" % i for i in range(10)])
    for _ in range(10):
        # no more credit: what waits in a consumer that leaves counts as delivered
        async with client.consumer("t", "s", type="shared", credit_messages=1) as consumer:
            (message,) = await take(consumer, 1)
            await message.nack(delay_ms=60_000)
    async with client.consumer("t", "s", type="shared") as consumer:
        assert await consumer.receive(10, max_wait_s=0.2) == [], "all ten wait for their minute"


async def test_a_dead_letter_topic_in_no_namespace_is_refused(broker: Broker, client: Client) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await prepare(broker, client, [b"0"], poison_policy="dead_letter", dead_letter_topic="/nowhere/dead")
    assert refused.value.details["field"] == "dead_letter_topic"


async def test_the_largest_message_with_the_longest_reason_is_dead_lettered(
    broker: Broker, client: Client
) -> None:
    largest = broker.settings.topics.max_message_bytes
    await prepare(broker, client, [b"1"], max_redelivery_count=0, poison_policy="dead_letter")
    async with client.producer("t", name="maker") as producer:
        await producer.send(b"x" * largest)
    async with client.consumer("t", "s", type="shared") as consumer:
        for message in await take(consumer, 2):
            await message.terminate("\N{SNOWMAN}" * 5000)
    await counted(broker, "dead_lettered", 2)
    async with client.reader("t-dlq-s", stop="head") as reader:
        copies = [message async for message in reader]
    assert [len(message.payload) for message in copies] == [1, largest]
    assert copies[1].attributes["x-failure-reason"].startswith("\N{SNOWMAN}")


def largest_batch() -> bytes:
    """The largest that a producer may send: one message, and not a byte is free."""
    bare = len(encode_batch([bytes(4_000_000)], attributes=[{"a": ""}], publish_time_ms=1))
    data = encode_batch(
        [bytes(4_000_000)], attributes=[{"a": "x" * (MAX_BATCH_BYTES - bare)}], publish_time_ms=1
    )
    assert len(data) == MAX_BATCH_BYTES
    return data


async def test_the_largest_message_that_can_be_published_is_dead_lettered_and_replayed(
    broker: Broker, client: Client
) -> None:
    await prepare(broker, client, [], max_redelivery_count=0, poison_policy="dead_letter")
    topic = broker.registry.find(TopicName.parse("t"))
    assert topic is not None
    data = largest_batch()
    topic.append(data, validate_batch(data, max_message_bytes=topic.max_message_bytes))
    async with client.consumer("t", "s", type="shared") as consumer:
        (message,) = await take(consumer, 1)
        await message.terminate("no " * 1000)
        await consumer.flush_acks()
        await counted(broker, "dead_lettered", 1)
    await broker.port.replay_topic("t-dlq-s", ranges={"/default/t-dlq-s": (0, 1)}, to="again")
    await broker.port.create_subscription("again", "s", type="shared", start="earliest")
    await broker.port.set_failure_policy(
        "again", "s", {"max_redelivery_count": 0, "poison_policy": "dead_letter"}
    )
    async with client.consumer("again", "s", type="shared") as consumer:
        (message,) = await take(consumer, 1)
        await message.terminate("no " * 1000)
        await consumer.flush_acks()
        await until(lambda: broker.registry.find(TopicName.parse("again-dlq-s")) is not None)
        async with client.reader("again-dlq-s") as reader:
            copy = await anext(aiter(reader))
    assert (len(copy.payload), len(copy.attributes["a"])) == (4_000_000, len(message.attributes["a"]))
    assert copy.attributes["x-original-topic"] == "/default/again"
    assert copy.attributes["x-replayed-from"] == "/default/t-dlq-s@0"


async def test_a_refused_dead_letter_is_shown_as_what_blocks(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"0"], poison_policy="dead_letter", max_redelivery_count=0)
    await broker.registry.create(TopicName.parse("t-dlq-s"), partitions=0, dispatch_strategy="non_reliable")
    await fail(client, {b"0"}, 1)
    await until(lambda: pump_of(broker).statistics().blocked_by is not None)
    assert "non_reliable" in pump_of(broker).statistics().blocked_by.reason


async def test_a_broker_in_memory_takes_dead_letters(opened: Any) -> None:
    """All of its topics have the durability `memory`; it took them for non_reliable ones."""
    async with opened(data__dir=":memory:") as broker, connect(broker.broker_url) as client:
        await prepare(broker, client, [b"bad"], poison_policy="dead_letter", max_redelivery_count=0)
        await fail(client, {b"bad"}, deliveries=1)
        await counted(broker, "dead_lettered", 1)
        async with client.reader("t-dlq-s") as reader:
            assert [copy.payload for copy in await take(reader, 1)] == [b"bad"]


async def test_what_is_ordered_together_is_copied_together_each_with_its_own_reason(
    broker: Broker, client: Client
) -> None:
    """Each order read and decoded the whole batch of its message: thousands of nacks took minutes."""
    count = 200
    await prepare(
        broker, client, [b"%d" % i for i in range(count)], poison_policy="block", max_redelivery_count=0
    )
    async with client.consumer("t", "s", type="shared") as consumer:
        for message in await take(consumer, count):
            if int(message.payload) % 3:
                await message.nack(reason=f"reason {message.payload.decode()}")
            else:
                await message.ack()
        await consumer.flush_acks()
        pump = pump_of(broker)
        await until(lambda: pump.statistics().consumers[0].in_flight == 0)
    await broker.port.set_failure_policy("t", "s", {"poison_policy": "dead_letter"})
    dead = [i for i in range(count) if i % 3]
    await counted(broker, "dead_lettered", len(dead))
    async with client.reader("t-dlq-s") as reader:
        copies = await take(reader, len(dead))
    assert [m.attributes["x-failure-reason"] for m in copies] == [f"reason {i}" for i in dead]
    assert [m.attributes["x-original-topic-offset"] for m in copies] == [str(i) for i in dead]
    topic = broker.registry.find(TopicName.parse("t-dlq-s"))
    assert topic is not None
    assert len(topic.read(0, count, 1 << 30) or ()) < 10
    assert (await facts_of(broker, "t", "s")).state.lag_messages == 0


async def test_a_redelivery_goes_to_one_subscription_at_its_own_place_and_may_fail_again(
    broker: Broker, client: Client
) -> None:
    await prepare(broker, client, [b"good", b"bad", b"fine"], poison_policy="dead_letter")
    await broker.port.create_subscription("t", "other", type="shared", start="latest")
    await fail(client, {b"bad"}, deliveries=4)
    await counted(broker, "dead_lettered", 1)
    again = [Redelivery(offset=1, deliveries=2, key="k-bad")]
    async with client.consumer("t", "s", type="shared") as consumer:
        async with client.producer("t", name="maker") as producer:
            await producer.send(b"held")
        (held,) = await take(consumer, 1)
        assert await broker.port.redeliver(
            "t", "s", [*again, Redelivery(offset=3, deliveries=1, key="")]
        ) == [1]
        assert await broker.port.unacknowledged("t", "s", [0, 1, 2, 3]) == [1, 3]
        (message,) = await take(consumer, 1)
        assert (message.offset, message.payload, message.delivery_count) == (1, b"bad", 3)
        await held.ack()  # its session and its flight went on
        await message.nack(0, reason="still bad")
        (message,) = await take(consumer, 1)
        assert message.delivery_count == 4
        await message.nack(0, reason="still bad")
    await counted(broker, "dead_lettered", 2)
    async with client.reader("t-dlq-s") as reader:
        letters = await take(reader, 2)
    assert [letter.attributes["x-failure-reason"] for letter in letters] == ["cannot be read", "still bad"]
    facts = await facts_of(broker, "t", "s")
    assert (facts.state.lag_messages, facts.state.next_unacked) == (0, 4)
    assert (await facts_of(broker, "t", "other")).state.lag_messages == 1
    (topic,) = await broker.port.topic("t")
    assert topic.messages == 4


async def test_what_was_redelivered_and_not_sent_is_withdrawn(broker: Broker, client: Client) -> None:
    await prepare(broker, client, [b"0", b"1", b"2"], poison_policy="dead_letter")
    await fail(client, set(), deliveries=3)
    again = [Redelivery(offset=n, deliveries=1, key="") for n in (0, 2)]
    assert await broker.port.redeliver("t", "s", again) == [0, 2]
    assert (await facts_of(broker, "t", "s")).state.lag_messages == 2
    async with client.consumer("t", "s", type="shared", credit_messages=1) as consumer:
        (message,) = await take(consumer, 1)
        assert await broker.port.withdraw("t", "s", again) == [2]
        await message.ack()
        await consumer.flush_acks()
    assert (await facts_of(broker, "t", "s")).state.lag_messages == 0
    async with client.producer("live", dispatch_strategy="non_reliable"):
        await broker.port.create_subscription("live", "s", type="shared", start="latest")
    with pytest.raises(DispatchMismatch):
        await broker.port.redeliver("live", "s", again)


@pytest.mark.parametrize("is_there", [False, True])
async def test_dead_letters_of_a_stored_topic_are_stored(
    broker: Broker, client: Client, *, is_there: bool
) -> None:
    for name, durability in (("t", "stored"), *((("t-dlq-s", "fsynced"),) if is_there else ())):
        await broker.registry.create(
            TopicName.parse(name), partitions=0, dispatch_strategy="reliable", durability=durability
        )
    await prepare(broker, client, [b"good", b"bad"], poison_policy="dead_letter", max_redelivery_count=0)
    await fail(client, {b"bad"}, deliveries=2)
    await counted(broker, "dead_lettered", 1)
    (topic,) = await broker.port.topic("t-dlq-s")
    assert (topic.durability, topic.messages) == ("stored", 1)
    assert pump_of(broker).policy.failure.poison_policy.value == "dead_letter"
