"""What consumers and readers promise, over every transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydanube_core.errors import (
    ClosedResource,
    ConsumerBusy,
    InvalidArgument,
    TopicNotFound,
)

from tests.support.messages import fill, numbers, take

pytestmark = pytest.mark.anyio


async def test_messages_come_once_and_in_order(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(5000))
        async with client.consumer(topic, "s") as consumer:
            offsets = []
            async for message in consumer:
                offsets.append(message.offset)
                assert message.payload == b"%d" % message.offset
                await message.ack()
                if len(offsets) == 5000:
                    break
        assert offsets == list(range(5000))


async def test_a_waiting_consumer_gets_what_is_published_later(cluster: Any) -> None:
    topic = cluster.topic()
    async with (
        cluster.connect() as client,
        client.producer(topic) as producer,
        client.consumer(topic, "s") as consumer,
    ):
        assert await consumer.receive(max_wait_s=0.05) == []
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)
        await producer.send(b"late")
        assert (await waiting).payload == b"late"


async def test_acknowledged_messages_do_not_come_again_and_others_do(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(100))
        async with client.consumer(topic, "s") as consumer:
            for message in await take(consumer, 100):
                if message.offset % 10:
                    await message.ack()
        async with client.consumer(topic, "s") as consumer:
            again = await take(consumer, 10)
            assert [m.offset for m in again] == list(range(0, 100, 10))
            assert await consumer.receive(max_wait_s=0.05) == []


async def test_flush_acks_returns_when_the_cursor_is_durable(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(10))
        async with client.consumer(topic, "s") as consumer:
            for message in await take(consumer, 10):
                await message.ack()
            await consumer.flush_acks()
            await consumer.aclose()  # without the flush that leaving the block would do
        async with client.consumer(topic, "s") as consumer:
            assert await consumer.receive(max_wait_s=0.1) == []


async def test_a_batch_has_columns_and_is_acknowledged_as_a_whole(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic) as producer:
            for i in range(10):
                producer.send_nowait(b"%d" % i, key=f"k{i}" if i % 2 else None, attributes={"i": str(i)})
        async with client.consumer(topic, "s") as consumer:
            seen = 0
            async for batch in consumer.batches():
                offsets = list(batch.offsets)
                assert batch.payloads == [b"%d" % o for o in offsets]
                assert batch.keys == [f"k{o}" if o % 2 else None for o in offsets]
                assert [dict(a) for a in batch.attributes] == [{"i": str(o)} for o in offsets]
                assert [m.offset for m in batch.messages()] == offsets
                assert batch.delivery_count == 1
                await batch.ack()
                seen += len(batch)
                if seen == 10:
                    break
        async with client.consumer(topic, "s") as consumer:
            assert await consumer.receive(max_wait_s=0.05) == []


async def test_a_part_of_a_batch_is_acknowledged_alone(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(10))
        async with client.consumer(topic, "s") as consumer:
            async for batch in consumer.batches():
                part = batch.part(0, len(batch)).part(0, 1)
                assert (part.payloads, list(part.offsets), len(part)) == ([b"0"], [0], 1)
                await part.ack()
                with pytest.raises(InvalidArgument):
                    batch.part(0, len(batch) + 1)
                break
        async with client.consumer(topic, "s") as consumer:
            assert [m.offset for m in await take(consumer, 9)] == list(range(1, 10))


async def test_forms_of_taking_may_be_mixed(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(100))
        async with client.reader(topic, stop="head") as reader:
            taken = [(await anext(reader)).offset]
            taken += [m.offset for m in await take(reader, 7)]
            async for batch in reader.batches():
                taken += batch.offsets
                break
            async for message in reader:
                taken.append(message.offset)
        assert taken == list(range(100))


async def test_receive_respects_its_bounds(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, [b"x" * 100] * 50)
        async with client.reader(topic) as reader:
            assert len(await take(reader, 10)) == 10
            bounded = await reader.receive(20, max_bytes=350)
            assert [m.offset for m in bounded] == [10, 11, 12]
            oversized = await reader.receive(20, max_bytes=1)
            assert [m.offset for m in oversized] == [13]
            assert (await reader.receive(1))[0].offset == 14


async def test_a_nacked_message_comes_again_and_is_counted(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(3))
        async with client.consumer(topic, "s") as consumer:
            first, second, third = await take(consumer, 3)
            await first.ack()
            await third.ack()
            await second.nack(delay_ms=0, reason="try again")
            (again,) = await take(consumer, 1)
            assert (again.offset, again.delivery_count) == (1, 2)
            await again.ack()
            await consumer.flush_acks()
            statistics = consumer.statistics()
            assert (statistics.nacked_messages, statistics.redelivered_messages) == (1, 1)
            assert statistics.acked_messages == 3


async def test_a_nack_with_a_delay_comes_back_after_it(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(1))
        async with client.consumer(topic, "s") as consumer:
            (message,) = await take(consumer, 1)
            started = asyncio.get_running_loop().time()
            await message.nack(delay_ms=300)
            (again,) = await take(consumer, 1)
            assert again.delivery_count == 2
            assert asyncio.get_running_loop().time() - started >= 0.25
            await again.ack()


async def test_an_ack_timeout_brings_the_message_back(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(1))
        async with client.consumer(topic, "s", ack_timeout_ms=200) as consumer:
            (message,) = await take(consumer, 1)
            (again,) = await take(consumer, 1)
            assert (message.delivery_count, again.delivery_count) == (1, 2)
            await again.ack()


async def test_seek_moves_what_comes_next_and_voids_older_acks(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(100))
        async with client.consumer(topic, "s") as consumer:
            early = await take(consumer, 50)
            await consumer.seek("offset:10")
            for message in early:
                await message.ack()
            again = await take(consumer, 90)
            assert [m.offset for m in again] == list(range(10, 100))
            assert consumer.statistics().stale_acks == 50
            await consumer.seek("earliest")
            assert (await take(consumer, 1))[0].offset == 0
            await consumer.seek("latest")
            assert await consumer.receive(max_wait_s=0.05) == []
            with pytest.raises(InvalidArgument):
                await consumer.seek("yesterday")


async def test_a_reader_starts_and_stops_where_it_is_told(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(1000))

        async def offsets(**where: str) -> list[int]:
            async with client.reader(topic, **where) as reader:
                return [m.offset async for m in reader]

        assert await offsets(stop="head") == list(range(1000))
        assert await offsets(start="offset:990", stop="head") == list(range(990, 1000))
        assert await offsets(start="offset:5", stop="offset:8") == [5, 6, 7]
        assert await offsets(start="latest", stop="head") == []
        assert await offsets(start="time:-1h", stop="offset:2") == [0, 1]


async def test_a_reader_of_an_empty_topic_ends_at_its_head(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        async with client.reader(topic, stop="head") as reader:
            assert [m async for m in reader] == []
        await producer.send(b"x")


async def test_a_reader_has_nothing_to_acknowledge(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(1))
        async with client.reader(topic) as reader:
            (message,) = await take(reader, 1)
            with pytest.raises(InvalidArgument):
                await message.ack()


async def test_an_exclusive_subscription_has_one_consumer(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(1))
        async with client.consumer(topic, "s", name="one"):
            with pytest.raises(ConsumerBusy):
                async with client.consumer(topic, "s", name="two"):
                    pass
        async with cluster.connect() as other, other.consumer(topic, "s", name="two") as consumer:
            assert (await take(consumer, 1))[0].offset == 0


async def test_start_counts_for_a_new_subscription_only(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(10))
        async with client.consumer(topic, "s", start="offset:7", start_must_apply=True) as consumer:
            (message,) = await take(consumer, 1)
            assert message.offset == 7
            await message.ack()
        async with client.consumer(topic, "s", start="earliest") as consumer:
            assert (await take(consumer, 1))[0].offset == 8
        with pytest.raises(InvalidArgument):
            async with client.consumer(topic, "s", start="earliest", start_must_apply=True):
                pass


async def test_no_more_is_buffered_than_the_credit(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(2000))
        async with client.consumer(topic, "s", credit_messages=10) as consumer:
            for expected in range(2000):
                message = await anext(consumer)
                assert message.offset == expected
                assert consumer.statistics().buffered_messages < 10
                await message.ack()


async def test_a_batch_larger_than_the_byte_credit_is_not_withheld(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, [bytes(1000)] * 500)
        async with client.consumer(topic, "s", credit_bytes=2000) as consumer:
            assert len(await take(consumer, 500)) == 500


async def test_a_topic_that_does_not_exist_is_not_found(cluster: Any) -> None:
    async with cluster.connect() as client:
        with pytest.raises(TopicNotFound) as missing:
            async with client.consumer(cluster.topic(), "s"):
                pass
        assert missing.value.next[-1]["operation"] == "topics.create"


async def test_closing_ends_a_waiting_iteration(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, [])
        async with client.consumer(topic, "s") as consumer:

            async def iterate() -> int:
                return len([message async for message in consumer])

            waiting = asyncio.ensure_future(iterate())
            await asyncio.sleep(0)
        assert await waiting == 0
        with pytest.raises(ClosedResource):
            await consumer.receive()


async def test_events_tell_of_connections(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        events = client.events()
        await fill(client, topic, numbers(1))
        event = await anext(events)
        assert (event.kind, event.role, event.topic) == ("connected", "producer", topic)


async def test_two_shared_consumers_divide_the_messages(cluster: Any) -> None:
    topic = cluster.topic()
    async with (
        cluster.connect() as client,
        client.producer(topic) as producer,
        client.consumer(topic, "s", type="shared", credit_messages=100) as one,
        client.consumer(topic, "s", type="shared", credit_messages=100) as two,
    ):
        await producer.send_many(numbers(3000))
        seen: list[int] = []
        shares = [0, 0]
        done = asyncio.Event()

        async def work(consumer: Any, index: int) -> None:
            while not done.is_set():
                for message in await consumer.receive(50, max_wait_s=0.1):
                    seen.append(message.offset)
                    shares[index] += 1
                    await message.ack()
                if len(seen) >= 3000:
                    done.set()

        await asyncio.gather(work(one, 0), work(two, 1))
        assert sorted(seen) == list(range(3000))
        assert min(shares) > 0


async def test_a_consumer_may_come_before_the_first_producer(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        with pytest.raises(TopicNotFound):
            await client.consumer(topic, "s").__aenter__()
        async with client.consumer(topic, "s", create=True, start="latest") as consumer:
            async with client.producer(topic) as producer:
                await producer.send(b"first")
            assert [message.payload for message in await take(consumer, 1)] == [b"first"]
        async with client.consumer(topic, "s", create=True) as again:  # it exists by now
            assert await take(again, 1)


async def test_a_paused_consumer_hands_out_nothing_and_goes_on_where_it_was(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(300))
        async with client.consumer(topic, "s", credit_messages=100, ack_timeout_ms=400) as consumer:
            seen = [int((await anext(consumer)).payload) for _ in range(60)]
            before = consumer.statistics().credit_messages
            consumer.pause()
            assert consumer.paused
            waiting = asyncio.create_task(anext(consumer))
            # longer than the ack timeout: what waits in the buffer is not late
            assert await consumer.receive(10, max_wait_s=1.0) == []
            assert await consumer.receive(10, max_wait_s=0) == []
            assert not waiting.done()
            assert consumer.statistics().credit_messages <= before
            assert consumer.statistics().buffered_messages <= 100
            consumer.resume()
            on_time = [await waiting]
            while len(on_time) < 21:  # what was handed out before is late by now, and comes between
                on_time += [m for m in await consumer.receive(1, max_wait_s=10) if m.delivery_count == 1]
            assert [int(m.payload) for m in on_time] == list(range(60, 81))
            assert seen == list(range(60))


async def test_a_paused_reader_keeps_its_end_for_later(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, numbers(50))
        async with client.reader(topic, stop="head") as reader:
            first = await anext(reader)
            reader.pause()
            rest = asyncio.create_task(_all_of(reader))
            await asyncio.sleep(0.1)
            assert not rest.done()
            reader.resume()
            assert [first.payload, *await rest] == numbers(50)


async def _all_of(reader: Any) -> list[bytes]:
    return [payload async for batch in reader.batches() for payload in batch.payloads]


async def test_one_partition_is_sought_and_the_others_stay(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=2, routing="explicit") as producer:
            for number in range(10):
                await producer.send(b"%d" % number, partition=number % 2)
        async with client.consumer(topic, "s") as consumer:
            for message in await take(consumer, 10):
                await message.ack()
            await consumer.seek("offset:3", partition=1)
            again = await take(consumer, 2)
            assert [(m.partition, m.offset) for m in again] == [(1, 3), (1, 4)]
            assert await consumer.receive(max_wait_s=0.2) == []
            with pytest.raises(InvalidArgument) as caught:
                await consumer.seek("earliest", partition=2)
            assert caught.value.details["field"] == "partition"


async def test_a_send_with_a_deadline_of_its_own_is_stored(cluster: Any) -> None:
    async with cluster.connect() as client, client.producer(cluster.topic()) as producer:
        assert (await producer.send(b"one", key="k", timeout_s=60)).offset == 0
        assert (await producer.send(b"two")).offset == 1
