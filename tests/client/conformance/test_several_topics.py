"""Several topics, or a pattern, in one consumer, over every transport."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from pydanube import InvalidArgument, InvalidName, TopicNotFound

from tests.support.messages import fill, numbers, take
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_list_is_taken_whole_each_topic_in_its_order(cluster: Any) -> None:
    topics = [cluster.topic() for _ in range(3)]
    async with cluster.connect() as client:
        for index, topic in enumerate(topics):
            await fill(client, topic, numbers(200), partitions=2 if index else None)
        async with client.consumer(topics, "s") as consumer:
            assert consumer.topics == tuple(sorted(topics))
            seen: dict[tuple[str, int | None], list[int]] = defaultdict(list)
            for message in await take(consumer, 600):
                seen[message.topic, message.partition].append(message.offset)
                await message.ack()
        assert seen[topics[0], None] == list(range(200))
        assert seen[topics[1], 1] == list(range(100))
        assert len(seen) == 5
        async with client.consumer(topics[1], "s") as consumer:  # each topic has a subscription of its own
            assert await consumer.receive(max_wait_s=0.1) == []


async def test_topics_of_a_pattern_join_leave_and_come_back(cluster: Any) -> None:
    name = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, f"{name}-a", [b"a0", b"a1"])
        async with client.consumer(
            pattern=f"{name}-*", subscription="s", start="latest", refresh_s=0.1
        ) as consumer:
            assert (consumer.topic, consumer.topics) == (f"{name}-*", (f"{name}-a",))
            await fill(
                client, f"{name}-b", [b"b0", b"b1"], partitions=2
            )  # made later: from its first message on
            later = await take(consumer, 2)
            assert sorted(message.payload for message in later) == [b"b0", b"b1"]
            assert consumer.topics == (f"{name}-a", f"{name}-b")
            await cluster.delete(f"{name}-b")
            await until(lambda: consumer.topics == (f"{name}-a",))
            await later[0].ack()  # means nothing any more, and is no error
            await fill(client, f"{name}-b", [b"again"])
            (again,) = await take(consumer, 1)
            assert (again.topic, again.offset, again.payload) == (f"{name}-b", 0, b"again")
            await again.ack()
            await consumer.flush_acks()
            assert consumer.statistics().received_messages == 3
            await fill(client, f"{name}-a", [b"a2"])
            assert [message.payload for message in await take(consumer, 1)] == [b"a2"]


async def test_a_pattern_that_nothing_fits_waits_for_the_first_topic(cluster: Any) -> None:
    name = cluster.topic()
    async with (
        cluster.connect() as client,
        client.consumer(pattern=f"{name}.*", subscription="s", refresh_s=0.1) as consumer,
    ):
        assert consumer.topics == ()
        assert await consumer.receive(max_wait_s=0.05) == []
        await fill(client, name, [b"one"])
        assert [message.payload async for message in only(consumer)] == [b"one"]


async def only(consumer: Any) -> Any:
    async for message in consumer:
        await message.ack()
        yield message
        return


async def test_seek_of_one_topic_leaves_the_others(cluster: Any) -> None:
    one, two = cluster.topic(), cluster.topic()
    async with cluster.connect() as client:
        await fill(client, one, [b"1", b"2", b"3", b"4"], partitions=2)
        await fill(client, two, [b"1", b"2"])
        async with client.consumer([one, two], "s") as consumer:
            for message in await take(consumer, 6):
                await message.ack()
            await consumer.seek("earliest", topic=two)
            assert [(m.topic, m.offset) for m in await take(consumer, 2)] == [(two, 0), (two, 1)]
            await consumer.seek("offset:1", topic=one, partition=1)
            assert [(m.topic, m.partition, m.offset) for m in await take(consumer, 1)] == [(one, 1, 1)]
            for wrong, field in (
                ({"partition": 0}, "partition"),
                ({"topic": two, "partition": 0}, "partition"),
                ({"topic": "another"}, "topic"),
            ):
                with pytest.raises(InvalidArgument) as refused:
                    await consumer.seek("earliest", **wrong)
                assert refused.value.details["field"] == field
            await consumer.seek("latest")
            assert await consumer.receive(max_wait_s=0.05) == []


async def test_the_number_of_topics_and_the_credit_are_bounded(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = cluster.topic()
    async with cluster.connect() as client:
        for index in range(4):
            await fill(client, f"{name}-{index}", [b"x"] * 50)
        async with client.consumer(
            pattern=f"{name}-*", subscription="s", max_topics=3, refresh_s=0.1, credit_messages=30
        ) as consumer:
            assert len(consumer.topics) == 3
            await until(lambda: consumer.statistics().buffered_messages >= 30)
            await asyncio.sleep(0.3)
            assert len(consumer.topics) == 3
            statistics = consumer.statistics()
            assert (statistics.buffered_messages, statistics.credit_messages) == (30, 0)
            assert len(await take(consumer, 150)) == 150
        assert [record for record in caplog.records if "larger max_topics" in record.getMessage()]


async def test_credit_is_shared_anew_when_topics_join(cluster: Any) -> None:
    name = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, f"{name}-0", [b"x"])
        async with client.consumer(
            pattern=f"{name}-*", subscription="s", refresh_s=0.1, credit_messages=40
        ) as consumer:
            await take(consumer, 1)
            for index in range(1, 4):
                await fill(client, f"{name}-{index}", [b"x"])
            await take(consumer, 3)
            for index in range(4):
                await fill(client, f"{name}-{index}", [b"x"] * 200)
            await take(consumer, 200)
            statistics = consumer.statistics()
            assert statistics.buffered_messages + statistics.credit_messages <= 40
            await take(consumer, 600)


async def test_what_is_refused(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        await fill(client, topic, [b"x"])
        with pytest.raises(TopicNotFound):
            async with client.consumer([topic, f"{topic}-not"], "s"):
                pass
        async with client.consumer([topic, f"{topic}-made"], "s", create=True) as consumer:
            assert len(consumer.topics) == 2
        for topics, pattern in (([], None), ([topic, topic], None), ([topic], "a*"), (topic, "a*")):
            with pytest.raises(InvalidArgument):
                client.consumer(topics, "s", pattern=pattern)
        for pattern in ("", "a b", "/a/b/c*", "/x", "orders.v1", 5, "*" * 257):
            with pytest.raises(InvalidName):
                client.consumer(subscription="s", pattern=pattern)
        with pytest.raises(InvalidArgument):
            client.consumer(pattern="a*", subscription="s", create=True)
        for wrong in ({"max_topics": 0}, {"max_topics": 1001}, {"refresh_s": 0}):
            with pytest.raises(InvalidArgument):
                client.consumer(pattern="a*", subscription="s", **wrong)
