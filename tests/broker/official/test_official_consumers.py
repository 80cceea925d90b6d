"""`danube.ConsumerService` on the wire: docs/research/data-plane.md#8-consumers."""

from __future__ import annotations

from dataclasses import replace

import anyio
import grpc
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.delivery import turns
from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.policy import PoisonPolicy
from pydanube_broker.topics.topic import Topic
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.official.conftest import Brokers
from tests.broker.official.raw_client import (
    CONSUMER,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    RawClient,
    Stream,
    code_of,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
Code = grpc.StatusCode
T = "/default/t"


@pytest.fixture
async def producer(client: RawClient) -> int:
    return await client.create_producer(T)


async def send(client: RawClient, producer: int, *payloads: str, **fields: object) -> None:
    for payload in payloads:
        await client.send(T, producer, payload.encode(), **fields)


async def handled(client: RawClient, stream: Stream, count: int) -> list[bytes]:
    """Acknowledge the next messages one by one; their payloads."""
    found = []
    for _ in range(count):
        message = await stream.next()
        found.append(message.payload)
        await client.ack(message)
    return found


async def until_free(client: RawClient, name: str) -> None:
    """The cancellation of a stream travels; then another name may subscribe."""

    async def free() -> bool:
        return await code_of(client.subscribe(T, name=name)) is Code.OK

    await until(free)


async def test_headers_come_at_once_on_an_idle_topic(client: RawClient, producer: int) -> None:
    consumer = await client.subscribe(T)
    with anyio.fail_after(10):
        await client.receive(consumer)


async def test_unknown_consumer_fails_after_a_pause_and_without_headers(client: RawClient) -> None:
    begun = anyio.current_time()
    call = client.call("ConsumerService/ReceiveMessages", pb.ReceiveRequest(consumer_id=77))
    assert await call.code() is Code.UNAVAILABLE
    # The loop counts from when its turn began, which a busy machine makes earlier than the call.
    assert anyio.current_time() - begun >= 0.15
    # Trailers only: the runtime's own header fields would be here otherwise.
    assert not tuple(await call.initial_metadata())
    assert await client.health(CONSUMER, 77) == "CLOSE"


async def test_subscribe_never_makes_a_topic(client: RawClient, broker: Broker) -> None:
    assert await code_of(client.subscribe(T)) is Code.NOT_FOUND
    assert not broker.registry.topics


async def test_ids_are_stable_and_fit_java(client: RawClient, producer: int) -> None:
    first = await client.subscribe(T)
    assert 1 <= first < 1 << 63
    assert await client.subscribe(T) == first
    assert await client.subscribe(T, "other") != first


async def test_new_subscription_begins_at_latest_and_that_is_stored(brokers: Brokers) -> None:
    """docs/research/behaviours.md#row-10: subscribe, publish, die before any ack; everything comes after the restart."""
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer(T)
        await send(client, producer, "before")
        consumer = await client.subscribe(T)
        await send(client, producer, *map(str, range(20)))
    broker = await brokers.restart()
    async with RawClient(broker.broker_url) as client:
        assert await client.health(CONSUMER, consumer) == "OK"
        stream = await client.receive(consumer)  # the old id, without Subscribe
        assert await stream.take(20) == [str(i).encode() for i in range(20)]


async def test_acknowledged_messages_stay_away_after_a_restart(brokers: Brokers) -> None:
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer(T)
        stream = await client.consume(T)
        await send(client, producer, *map(str, range(10)))
        messages = [await stream.next() for _ in range(10)]
        for message in messages[:3] + messages[5:]:
            await client.ack(message)
    broker = await brokers.restart()
    async with RawClient(broker.broker_url) as client:
        stream = await client.consume(T)
        assert await stream.take(2) == [b"3", b"4"]
        await send(client, producer, "new")
        assert await stream.take(1) == [b"new"]


async def test_stream_that_is_lost_gives_its_messages_back_at_once(client: RawClient, producer: int) -> None:
    consumer = await client.subscribe(T)
    stream = await client.receive(consumer)
    await send(client, producer, "a", "b")
    await client.ack(await stream.next())
    await stream.next()
    stream.cancel()
    stream = await client.receive(consumer)
    assert await stream.take(1) == [b"b"]
    assert await client.health(CONSUMER, consumer) == "OK"


async def test_same_name_takes_over_and_the_old_stream_ends_unavailable(
    client: RawClient, producer: int
) -> None:
    old = await client.consume(T)
    await send(client, producer, "a")
    assert await old.take(1) == [b"a"]
    new = await client.consume(T)
    assert await old.ended() is Code.UNAVAILABLE
    assert await new.take(1) == [b"a"]


async def test_two_processes_with_one_name_do_not_fight_at_full_speed(
    client: RawClient, producer: int
) -> None:
    """The first takeover is at once, those that follow wait longer and longer."""
    consumer = await client.subscribe(T)
    stream = await client.receive(consumer)
    begun = anyio.current_time()
    for _ in range(4):
        rival = await client.receive(consumer)
        assert await stream.ended() is Code.UNAVAILABLE
        stream = rival
    assert anyio.current_time() - begun >= 0.25 + 0.5 + 1.0


async def test_of_two_newcomers_the_later_one_waits_and_the_earlier_gives_way(
    client: RawClient, producer: int
) -> None:
    consumer = await client.subscribe(T)
    first = await client.receive(consumer)
    second = await client.receive(consumer)
    request = pb.ReceiveRequest(consumer_id=consumer)
    waiting = client.call("ConsumerService/ReceiveMessages", request)
    await client.health(CONSUMER, consumer)  # it has arrived: calls of one connection are in order
    last = client.call("ConsumerService/ReceiveMessages", request)
    assert await waiting.code() is Code.UNAVAILABLE
    second.cancel()  # the place becomes free: no need to wait for the whole pause
    await last.initial_metadata()
    assert await first.ended() is Code.UNAVAILABLE


async def test_exclusive_subscription_refuses_another_name_until_it_is_free(
    client: RawClient, producer: int
) -> None:
    await client.subscribe(T, name="a")
    assert await code_of(client.subscribe(T, name="b")) is Code.PERMISSION_DENIED  # reserved
    stream = await client.consume(T, name="a")
    assert await code_of(client.subscribe(T, name="b")) is Code.PERMISSION_DENIED  # held
    stream.cancel()
    await until_free(client, "b")
    await client.consume(T, name="b")


async def test_old_exclusive_consumer_waits_for_its_place(client: RawClient, producer: int) -> None:
    old = await client.subscribe(T, name="a")
    (await client.receive(old)).cancel()
    await until_free(client, "b")
    await client.consume(T, name="b")
    assert await code_of(client.receive(old)) is Code.UNAVAILABLE


async def test_type_of_the_subscription_holds_and_newcomers_join_it(
    client: RawClient, producer: int, broker: Broker
) -> None:
    await client.subscribe(T, type=SHARED)
    await client.consume(T, name="other", type=EXCLUSIVE)
    assert broker.registry.topics[0].subscriptions["s"].type == "shared"
    assert await code_of(client.subscribe(T, "new", type=9)) is Code.INVALID_ARGUMENT


async def test_row_11_standby_of_a_failover_subscription_is_promoted_at_once(
    client: RawClient, producer: int
) -> None:
    active = await client.consume(T, name="a", type=FAILOVER)
    standby = await client.consume(T, name="b", type=FAILOVER)
    await send(client, producer, "1", "2")
    assert await active.take(2) == [b"1", b"2"]
    active.cancel()
    assert await standby.take(2) == [b"1", b"2"]
    await send(client, producer, "3")
    assert await standby.take(1) == [b"3"]


async def test_shared_consumers_take_messages_in_strict_turn(client: RawClient, producer: int) -> None:
    streams = [await client.consume(T, name=name, type=SHARED) for name in "ab"]
    await send(client, producer, *map(str, range(10)))
    taken = [await stream.take(5) for stream in streams]
    assert [sorted(map(int, part)) for part in taken] in (
        [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]],
        [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]],
    )


async def test_key_shared_consumer_with_filters_gets_its_keys_and_keeps_them(
    client: RawClient, producer: int
) -> None:
    eu = await client.consume(T, name="eu", type=KEY_SHARED, key_filters=["eu-*"])
    us = await client.consume(T, name="us", type=KEY_SHARED, key_filters=["us-*"])
    for number in range(6):
        for key in ("eu-1", "us-1", "nobody"):
            await client.send(T, producer, f"{key}:{number}".encode(), routing_key=key)
    assert await handled(client, eu, 6) == [f"eu-1:{n}".encode() for n in range(6)]
    assert await handled(client, us, 6) == [f"us-1:{n}".encode() for n in range(6)]


async def test_subscribed_consumers_count_before_their_streams_are_open(
    client: RawClient, producer: int
) -> None:
    """A key is not nobody's because who asked for it has not opened its stream; a failover's order is that of coming."""
    ids = {
        name: await client.subscribe(T, name=name, type=KEY_SHARED, key_filters=[f"{name}-*"])
        for name in ("eu", "us")
    }
    first = await client.subscribe(T, "f", "first", FAILOVER)
    second = await client.subscribe(T, "f", "second", FAILOVER)
    eu = await client.receive(ids["eu"])
    standby = await client.receive(second)
    for key in ("eu-1", "us-1"):
        await client.send(T, producer, key.encode(), routing_key=key)
    us = await client.receive(ids["us"])
    assert (await eu.take(1), await us.take(1)) == ([b"eu-1"], [b"us-1"])
    active = await client.receive(first)
    assert await active.take(2) == [b"eu-1", b"us-1"]
    active.cancel()
    assert await standby.take(2) == [b"eu-1", b"us-1"]


async def test_neighbour_that_opens_its_stream_does_not_hold_up_a_key_in_flight(
    client: RawClient, producer: int
) -> None:
    ids = {
        name: await client.subscribe(T, name=name, type=KEY_SHARED, key_filters=[f"{name}-*"])
        for name in ("eu", "us")
    }
    eu = await client.receive(ids["eu"])
    await client.send(T, producer, b"0", routing_key="eu-1")
    unanswered = await eu.next()
    await client.receive(ids["us"])
    await client.send(T, producer, b"1", routing_key="eu-1")
    await client.send(T, producer, b"2", routing_key="eu-2")
    assert await eu.take(1) == [b"2"]  # the other key waits for nothing
    await client.ack(unanswered)
    assert await eu.take(1) == [b"1"]


async def test_filtered_keys_wait_for_their_consumer_over_a_lost_stream_and_a_restart(
    brokers: Brokers,
) -> None:
    """Skipping what no consumer that happens to be present accepts would lose it for the one that comes back."""
    ids = {}
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer(T)
        streams = []
        for name in ("eu", "us"):
            ids[name] = await client.subscribe(T, name=name, type=KEY_SHARED, key_filters=[f"{name}-*"])
            streams.append(await client.receive(ids[name]))
        streams[1].cancel()
        for number in range(3):
            await client.send(T, producer, f"us:{number}".encode(), routing_key=f"us-{number}")
            await client.send(T, producer, f"eu:{number}".encode(), routing_key=f"eu-{number}")
        assert await streams[0].take(3) == [b"eu:0", b"eu:1", b"eu:2"]
        us = await client.receive(ids["us"])
        assert await us.take(3) == [b"us:0", b"us:1", b"us:2"]
    broker = await brokers.restart()
    async with RawClient(broker.broker_url) as client:
        eu = await client.receive(ids["eu"])  # alone for a while, with the backlog of both
        assert await eu.take(3) == [b"eu:0", b"eu:1", b"eu:2"]
        us = await client.receive(ids["us"])
        assert await us.take(3) == [b"us:0", b"us:1", b"us:2"]


async def test_exclusive_place_of_a_consumer_that_never_opens_its_stream_is_free_when_it_is_gone(
    client: RawClient, producer: int, broker: Broker
) -> None:
    consumer = await client.subscribe(T, name="a")
    for _ in range(5):
        broker.official.sweep()
        assert await client.health(CONSUMER, consumer) == "OK"
    assert await code_of(client.subscribe(T, name="b")) is Code.PERMISSION_DENIED
    for _ in range(4):  # no sign of life any more
        broker.official.sweep()
    await client.subscribe(T, name="b")


async def test_producer_that_does_not_call_any_more_is_not_counted(
    client: RawClient, producer: int, broker: Broker
) -> None:
    [topic] = broker.registry.topics
    assert topic.producers_connected == 1
    for _ in range(4):
        broker.official.sweep()
    assert topic.producers_connected == 0
    await send(client, producer, "a")
    assert topic.producers_connected == 1


async def test_nacked_message_comes_again_after_the_delay_that_was_asked_for(
    client: RawClient, producer: int
) -> None:
    stream = await client.consume(T)
    await send(client, producer, "a", "b")
    first = await stream.next()
    begun = anyio.current_time()
    await client.nack(first, delay_ms=1500, reason="not now")
    assert (await stream.next()).payload == b"b"
    again = await stream.next()
    assert anyio.current_time() - begun >= 1.5
    assert again.payload == b"a"
    assert again.msg_id == first.msg_id


async def test_a_nacked_key_shared_message_comes_again_before_those_behind_it(
    client: RawClient, producer: int
) -> None:
    """An official client gives nothing back, so the next message of a key is sent when the one before is answered."""
    stream = await client.consume(T, type=KEY_SHARED)
    for payload in ("a1", "a2", "a3", "b1"):
        await client.send(T, producer, payload.encode(), routing_key=payload[0])
    first, other = await stream.next(), await stream.next()
    assert [first.payload, other.payload] == [b"a1", b"b1"]
    await client.nack(first, delay_ms=1)
    assert await handled(client, stream, 3) == [b"a1", b"a2", b"a3"]


async def test_no_message_of_a_key_passes_one_that_blocks_it(
    client: RawClient, producer: int, broker: Broker
) -> None:
    stream = await client.consume(T, type=KEY_SHARED)
    pump = broker.registry.topics[0].subscriptions["s"]
    failure = replace(pump.policy.failure, max_redelivery_count=0, poison_policy=PoisonPolicy.BLOCK)
    pump.set_policy(replace(pump.policy, failure=failure))
    for payload in ("a1", "a2", "b1"):
        await client.send(T, producer, payload.encode(), routing_key=payload[0])
    first, other = await stream.next(), await stream.next()
    assert [first.payload, other.payload] == [b"a1", b"b1"]
    await client.nack(first)
    await client.ack(other)
    await client.send(T, producer, b"b2", routing_key="b")
    assert await stream.take(1) == [b"b2"]


async def test_row_35_nacked_key_shared_message_comes_again_after_its_delay(
    client: RawClient, producer: int
) -> None:
    stream = await client.consume(T, type=KEY_SHARED)
    await client.send(T, producer, b"a", routing_key="k")
    begun = anyio.current_time()
    await client.nack(await stream.next())
    assert await stream.take(1) == [b"a"]
    assert 1.0 <= anyio.current_time() - begun < 5.0


async def test_message_that_is_not_acknowledged_in_time_comes_again(brokers: Brokers) -> None:
    broker = await brokers.restart(delivery__ack_timeout="200ms")
    async with RawClient(broker.broker_url) as client:
        producer = await client.create_producer(T)
        stream = await client.consume(T)
        await send(client, producer, "a")
        assert await stream.take(2) == [b"a", b"a"]


async def test_messages_of_a_slow_consumer_do_not_expire_while_it_works_on_those_before_them(
    brokers: Brokers,
) -> None:
    """docs/research/behaviours.md#row-32: with 1 000 on their way to a consumer of 20 a second, the last waits over 50 s."""
    await brokers.restart(delivery__ack_timeout=2)
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer(T)
        stream = await client.consume(T)
        await send(client, producer, *map(str, range(20)))
        for number in range(20):
            message = await stream.next()
            assert message.payload == str(number).encode(), "nothing comes twice"
            await anyio.sleep(0.25)  # 5 s in all
            await client.ack(message)
        await send(client, producer, "last")
        assert await stream.take(1) == [b"last"]


@pytest.mark.parametrize("by_policy", [False, True])
async def test_window_bounds_what_is_in_flight_and_acks_open_it(brokers: Brokers, by_policy: bool) -> None:
    broker = await brokers.restart(delivery__max_unacked_messages=50 if by_policy else 3)
    async with RawClient(broker.broker_url) as client:
        producer = await client.create_producer(T)
        if by_policy:
            await broker.port.set_failure_policy(T, "s", {"max_unacked_messages": 3}, keep=True)
            await broker.port.set_failure_policy(T, "s", {"max_redelivery_count": 9}, keep=True)
            await client.subscribe(T, "s")  # what is kept goes over to the subscription
            broker = await brokers.restart(delivery__max_unacked_messages=50)
            found = await broker.port.failure_policy(T, "s")
            assert (found["max_unacked_messages"], found["max_redelivery_count"]) == (3, 9)
        stream = await client.consume(T)
        await send(client, producer, *map(str, range(5)))
        messages = [await stream.next() for _ in range(3)]
        statistics = broker.registry.topics[0].subscriptions["s"].statistics()
        assert statistics is not None
        assert statistics.in_flight == 3
        await client.ack(messages[1])
        assert await stream.take(1) == [b"3"]
        await client.ack(messages[0])
        assert await stream.take(1) == [b"4"]


async def test_consumer_behind_has_no_more_read_than_it_may_be_sent(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await brokers.restart(delivery__max_unacked_messages=3)
    async with RawClient(broker.broker_url) as client:
        producer = await client.create_producer(T)
        await client.subscribe(T)
        await send(client, producer, *map(str, range(30)))
        found: list[int] = []
        read = Topic.read

        def counted(topic: Topic, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None:
            batches = read(topic, offset, end, max_bytes)
            found.append(sum(batch.count for batch in batches or ()))
            return batches

        monkeypatch.setattr(Topic, "read", counted)
        stream = await client.consume(T)
        assert await handled(client, stream, 30) == [str(i).encode() for i in range(30)]
        assert max(found) <= 3


async def test_consumer_with_many_messages_gets_the_next_ones_together(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await brokers.restart(delivery__max_unacked_messages=64)
    async with RawClient(broker.broker_url) as client:
        producer = await client.create_producer(T)
        stream = await client.consume(T)
        await send(client, producer, *map(str, range(70)))
        messages = [await stream.next() for _ in range(64)]
        await client.ack(messages[63])
        assert await stream.take(1) == [b"64"], "also if it never acknowledges more"
        monkeypatch.setattr(turns, "REFILL_S", 3_600.0)
        pump = broker.registry.topics[0].subscriptions["s"]
        for message in messages[:3]:
            await client.ack(message)
        statistics = pump.statistics()
        assert statistics is not None
        assert statistics.in_flight == 61
        await client.ack(messages[3])
        assert await stream.take(4) == [b"65", b"66", b"67", b"68"]


async def test_answers_that_come_late_or_name_nothing_delivered_are_ok_and_ignored(
    client: RawClient, producer: int, broker: Broker
) -> None:
    stream = await client.consume(T)
    await send(client, producer, "a")
    message = await stream.next()
    for offset in (5, (1 << 64) - 1):
        await client.ack(message, offset=offset)
    await client.ack(message)
    await client.ack(message)
    await client.nack(message)
    statistics = broker.registry.topics[0].subscriptions["s"].statistics()
    assert statistics is not None
    assert (statistics.floor, statistics.acknowledged, statistics.pending_retries) == (1, 1, 0)
    await send(client, producer, "b")
    assert await stream.take(1) == [b"b"]


async def test_ack_by_another_consumer_counts(client: RawClient, producer: int, broker: Broker) -> None:
    """The original never asks who it was."""
    stream = await client.consume(T)
    await send(client, producer, "a")
    message = await stream.next()
    async with RawClient(broker.broker_url) as other:
        await other.ack(message)
    assert broker.registry.topics[0].subscriptions["s"].cursor.floor == 1


async def test_answers_that_name_no_place_are_refused(client: RawClient, producer: int) -> None:
    stream = await client.consume(T)
    await send(client, producer, "a")
    message = await stream.next()
    for path, request in (
        ("Ack", pb.AckRequest(subscription_name="s")),
        ("Nack", pb.NackRequest(subscription_name="s")),
    ):
        assert await code_of(client.call(f"ConsumerService/{path}", request)) is Code.INVALID_ARGUMENT
    assert await code_of(client.ack(message, "other")) is Code.INTERNAL
    message.msg_id.topic_name = "/default/nowhere"
    assert await code_of(client.ack(message)) is Code.INTERNAL


async def test_deleted_topic_says_close_and_then_ends_the_stream_unavailable(
    client: RawClient, producer: int, broker: Broker
) -> None:
    consumer = await client.subscribe(T)
    stream = await client.receive(consumer)
    assert await client.health(CONSUMER, consumer) == "OK"
    await broker.registry.delete(TopicName.parse(T))
    assert await client.health(CONSUMER, consumer) == "CLOSE"
    assert await stream.ended() is Code.UNAVAILABLE
    assert await client.health(CONSUMER, consumer) == "CLOSE"
    assert await client.health(0, producer) == "CLOSE"
    assert await code_of(client.receive(consumer)) is Code.UNAVAILABLE
    assert await code_of(client.send(T, producer, b"x")) is Code.NOT_FOUND
    # made anew, the names have the same ids, and neither is confused with its former life
    assert await client.create_producer(T) == producer
    assert await client.subscribe(T) == consumer
    stream = await client.receive(consumer)
    await send(client, producer, "a")
    assert (await stream.next()).msg_id.topic_offset == 0


async def test_ids_of_a_deleted_topic_are_forgotten_for_good(brokers: Brokers) -> None:
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer(T)
        consumer = await client.subscribe(T)
    await brokers.broker.registry.delete(TopicName.parse(T))
    broker = await brokers.restart()
    async with RawClient(broker.broker_url) as client:
        assert await client.health(0, producer) == "CLOSE"
        assert await client.health(CONSUMER, consumer) == "CLOSE"


async def test_health_check_of_no_known_kind_is_invalid(client: RawClient) -> None:
    assert await code_of(client.health(2, 1)) is Code.INVALID_ARGUMENT


async def test_slow_consumer_holds_up_nobody_and_loses_nothing(
    client: RawClient, producer: int, broker: Broker
) -> None:
    """Its connection takes no more; the others of the subscription go on, and what it is sent stays bounded."""
    async with RawClient(broker.broker_url) as slow_client:
        slow = await slow_client.consume(T, name="slow", type=SHARED)
        quick = await client.consume(T, name="quick", type=SHARED)
        seen: set[int] = set()

        async def drain(stream: Stream) -> None:
            while True:
                message = await stream.next()
                seen.add(int(message.payload[:4]))
                await client.ack(message)

        async def quick_has_more_than_its_half() -> bool:
            return len(seen) > 130

        async def all_are_seen() -> bool:
            return len(seen) == 200

        async with anyio.create_task_group() as group:
            group.start_soon(drain, quick)
            for number in range(200):
                await client.send(T, producer, f"{number:04}".encode() + bytes(100_000))
            await until(quick_has_more_than_its_half)
            group.start_soon(drain, slow)
            await until(all_are_seen)
            group.cancel_scope.cancel()


async def test_seek_moves_an_attached_consumer(client: RawClient, producer: int, broker: Broker) -> None:
    stream = await client.consume(T)
    await send(client, producer, "a", "b")
    for _ in range(2):
        await client.ack(await stream.next())
    broker.registry.topics[0].subscriptions["s"].seek(0)
    assert await stream.take(2) == [b"a", b"b"]


async def test_shutdown_ends_streams_unavailable(brokers: Brokers) -> None:
    async with RawClient(brokers.broker.broker_url) as client:
        await client.create_producer(T)
        stream = await client.consume(T)
        await brokers.stop()
        assert await stream.ended() is Code.UNAVAILABLE


async def test_consumers_that_are_owed_more_than_a_connection_may_have_queued_wait_for_nobody(
    client: RawClient, producer: int
) -> None:
    """What each of them is owed is in memory already: it must not wait for room that only its own sending makes."""
    names = [f"s{n}" for n in range(6)]
    streams = [await client.consume(T, name) for name in names]
    for _ in range(2):
        await client.send(T, producer, bytes(3_900_000))
    with anyio.fail_after(20):
        for name, stream in zip(names, streams, strict=True):
            for _ in range(2):
                message = await stream.next()
                assert len(message.payload) == 3_900_000
                await client.ack(message, name)
