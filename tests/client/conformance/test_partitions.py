"""Partitioned topics, over every transport."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from pydanube import Message
from pydanube.routing import fnv1a_64
from pydanube_core.errors import InvalidArgument

pytestmark = pytest.mark.anyio


async def drain(client: Any, topic: str) -> dict[int | None, list[Message]]:
    found: dict[int | None, list[Message]] = defaultdict(list)
    async with client.reader(topic, stop="head") as reader:
        async for message in reader:
            found[message.partition].append(message)
    return found


async def test_keys_meet_their_partition_and_keep_their_order(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=3) as producer:
            assert producer.partitions == 3
            handles = [
                (f"key-{i % 20}", producer.send_nowait(b"%d" % i, key=f"key-{i % 20}")) for i in range(600)
            ]
            for key, handle in handles:
                assert (await handle).partition == fnv1a_64(key.encode()) % 3
        found = await drain(client, topic)
        assert sum(map(len, found.values())) == 600
        for messages in found.values():
            assert [m.offset for m in messages] == list(range(len(messages)))
            values = [int(m.payload) for m in messages]
            assert values == sorted(values)
            assert {m.topic for m in messages} == {topic}


async def test_messages_without_a_key_go_in_turn(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic, partitions=4) as producer:
        receipts = [await producer.send(b"x") for _ in range(8)]
        assert [r.partition for r in receipts] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert [r.offset for r in receipts] == [0, 0, 0, 0, 1, 1, 1, 1]


async def test_a_burst_without_keys_goes_to_partitions_by_the_batch(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic, partitions=20) as producer:
        handles = [producer.send_nowait(b"%d" % i) for i in range(2000)]
        used = {(await handle).partition for handle in handles}
        summary = await producer.send_many([b"%d" % i for i in range(2000)])
        assert len(used) == 1
        assert len(summary.ranges) <= 2
        batches = producer.statistics().written_batches
        assert batches <= 8  # dealt singly they were 40 at least
        large = await producer.send_many([b"x" * 50_000] * 200)
        assert len(large.ranges) == 20  # each partition has its share of what fills many batches


async def test_a_producer_that_comes_again_by_its_name_finds_each_message_where_it_was(cluster: Any) -> None:
    topic = cluster.topic()
    payloads = [b"%d" % i for i in range(500)]
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=3, name="task-1", access_mode="named") as producer:
            await producer.send_many(payloads[:250])
            for payload in payloads[250:]:
                producer.send_nowait(payload)
        async with client.producer(topic, name="task-1", access_mode="named") as producer:
            assert producer.stored_before == (167, 167, 166)
        found = await drain(client, topic)
        for partition, messages in found.items():
            assert [m.payload for m in messages] == payloads[partition or 0 :: 3]


async def test_the_caller_may_say_which_partition(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=2, routing="explicit") as producer:
            assert (await producer.send(b"x", partition=1)).partition == 1
            with pytest.raises(InvalidArgument):
                await producer.send(b"x")
            with pytest.raises(InvalidArgument):
                await producer.send(b"x", partition=2)
        found = await drain(client, topic)
        assert {partition: len(messages) for partition, messages in found.items()} == {1: 1}


async def test_send_many_over_partitions_sums_up_each(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic, partitions=3) as producer:
        summary = await producer.send_many([b"%d" % i * 100 for i in range(30_000)])
        assert summary.count == sum(r.last_offset - r.first_offset + 1 for r in summary.ranges) == 30_000
        assert {(r.partition, r.first_offset) for r in summary.ranges} == {(0, 0), (1, 0), (2, 0)}


async def test_send_many_with_keys_meets_the_same_partitions(cluster: Any) -> None:
    topic = cluster.topic()
    cases = [(b"%d" % i, f"key-{i % 20}" if i % 5 else None) for i in range(3000)]
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=3, window_messages=500) as producer:
            assert (await producer.send_many([Message.new(p, key=k) for p, k in cases])).count == 3000
        found = await drain(client, topic)
        for partition, messages in found.items():
            values = [int(m.payload) for m in messages]
            assert values == sorted(values)
            assert [(m.payload, m.key) for m in messages] == [cases[value] for value in values]
            assert {fnv1a_64(m.key.encode()) % 3 for m in messages if m.key} == {partition}
        assert sum(map(len, found.values())) == 3000


async def test_one_consumer_covers_all_partitions(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=3, routing="round-robin") as producer:
            await producer.send_many([b"%d" % i for i in range(300)])
        async with client.consumer(topic, "s") as consumer:
            offsets: dict[int | None, list[int]] = defaultdict(list)
            for _ in range(300):
                message = await anext(consumer)
                offsets[message.partition].append(message.offset)
                await message.ack()
        assert offsets == {p: list(range(100)) for p in range(3)}
        async with client.consumer(topic, "s") as consumer:
            assert await consumer.receive(max_wait_s=0.05) == []
            await consumer.seek("offset:99")
            again = [await anext(consumer) for _ in range(3)]
            assert sorted((m.partition, m.offset) for m in again) == [(0, 99), (1, 99), (2, 99)]


async def test_an_existing_topic_must_agree_in_its_partitions(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=2):
            pass
        async with client.producer(topic) as producer:
            assert producer.partitions == 2
        with pytest.raises(InvalidArgument) as refused:
            async with client.producer(topic, partitions=5):
                pass
        assert refused.value.details["field"] == "partitions"
