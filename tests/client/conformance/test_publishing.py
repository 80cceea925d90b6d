"""What a producer promises, over every transport."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pydanube import ClusterError, Message
from pydanube.sending.publish_lane import MAX_IN_FLIGHT
from pydanube_core.errors import (
    ClosedResource,
    DispatchMismatch,
    InvalidArgument,
    InvalidName,
    MessageTooLarge,
    WindowFull,
)

pytestmark = pytest.mark.anyio


async def payloads_of(client: Any, topic: str) -> list[bytes]:
    async with client.reader(topic, stop="head") as reader:
        return [message.payload async for message in reader]


async def test_receipts_name_consecutive_offsets_and_the_durability(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        receipts = [await producer.send(b"%d" % i) for i in range(5)]
        assert [r.offset for r in receipts] == [0, 1, 2, 3, 4]
        assert {r.topic for r in receipts} == {topic}
        assert {r.partition for r in receipts} == {None}
        assert {r.durability for r in receipts} <= {"fsynced", "memory"}
        assert not any(r.duplicate for r in receipts)
        assert all(a.append_time <= b.append_time for a, b in itertools.pairwise(receipts))


async def test_handles_of_send_nowait_resolve_in_any_order_and_more_than_once(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        handles = [producer.send_nowait(b"%d" % i) for i in range(3000)]
        assert (await handles[2999]).offset == 2999
        assert (await handles[0]).offset == 0
        assert await handles[0] == await handles[0]
        assert all(handle.done() for handle in handles)
        assert await payloads_of(client, topic) == [b"%d" % i for i in range(3000)]


async def test_send_many_keeps_the_order_and_sums_up_where_everything_went(cluster: Any) -> None:
    topic = cluster.topic()
    sent = [b"x" * (i % 300) for i in range(20_000)]
    async with cluster.connect() as client, client.producer(topic) as producer:
        summary = await producer.send_many(iter(sent))
        assert summary.count == 20_000
        assert [(r.partition, r.first_offset, r.last_offset) for r in summary.ranges] == [(None, 0, 19_999)]
        assert await payloads_of(client, topic) == sent


async def test_a_producer_goes_on_after_as_many_batches_as_may_be_under_way(cluster: Any) -> None:
    """All of them answered while nothing gathers: nobody but an answer wakes the lane then."""
    async with cluster.connect() as client, client.producer(cluster.topic()) as producer:
        await producer.send(b"first")
        for number in range(20):
            handles = []
            for _ in range(MAX_IN_FLIGHT):
                handles.append(producer.send_nowait(b"%d" % number))
                await asyncio.sleep(0)  # a batch of its own
            for handle in handles:
                await handle
        assert (await producer.send(b"last")).offset == 20 * MAX_IN_FLIGHT + 1


async def test_send_many_keeps_keys_beside_payloads_across_batches_and_a_full_window(cluster: Any) -> None:
    topic = cluster.topic()
    # runs with and without keys, so that a batch begins either way and changes in its middle
    cases = [(b"%d" % i * (i % 60), f"key-{i % 97}" if i // 700 % 2 else None) for i in range(9000)]
    async with cluster.connect() as client:
        async with client.producer(topic, batch_bytes=20_000, window_messages=700) as producer:
            summary = await producer.send_many(Message.new(p, key=k) if k else p for p, k in cases)
            await producer.send_many([Message.new(p, key=k) for p, k in cases[650:2000]])
        assert (summary.count, len(summary.ranges)) == (9000, 1)
        async with client.reader(topic, stop="head") as reader:
            got = [(message.payload, message.key) async for message in reader]
        assert got == cases + cases[650:2000]


async def test_keys_go_in_parallel_to_payloads_and_must_be_enough(cluster: Any) -> None:
    topic, payloads = cluster.topic(), [b"%d" % i for i in range(5000)]
    keys = [None if i % 7 == 0 else f"k{i % 5}" for i in range(5000)]
    async with cluster.connect() as client:
        async with client.producer(topic) as producer:
            await producer.send_many(payloads[:3000], keys=keys)
            await producer.send_many([*payloads[3000:-1], bytearray(payloads[-1])], keys=iter(keys[3000:]))
            await producer.send_many([b"all", b"alike"], keys=itertools.repeat("ü"))
            with pytest.raises(InvalidArgument, match="fewer keys"):
                await producer.send_many([b"x", b"y"], keys=["one"])
            with pytest.raises(InvalidArgument, match="brings its key"):
                await producer.send_many([Message.new(b"x", key="a")], keys=["b"])
        async with client.reader(topic, stop="head") as reader:
            got = [message async for message in reader]
    assert [(each.payload, each.key) for each in got] == [
        *zip(payloads, keys, strict=True),
        (b"all", "ü"),
        (b"alike", "ü"),
    ]


async def test_a_keyed_message_too_large_stops_send_many_behind_those_before_it(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        with pytest.raises(MessageTooLarge) as refused:
            await producer.send(bytes(64 << 20))
        largest = refused.value.details["max_message_bytes"]
        messages = [Message.new(b"x", key="k"), Message.new(b"y" * largest, key="k" * 9)]
        assert (await producer.send_many(messages)).count == 2, "the limit is the payload's"
        with pytest.raises(MessageTooLarge):
            await producer.send_many([*messages, Message.new(b"z" * (largest + 1), key="k"), messages[0]])
        assert [len(p) for p in await payloads_of(client, topic)] == [1, largest, 1, largest]


async def test_send_many_of_nothing_is_an_empty_summary(cluster: Any) -> None:
    async with cluster.connect() as client, client.producer(cluster.topic()) as producer:
        summary = await producer.send_many([])
        assert (summary.count, summary.ranges) == (0, ())


async def test_keys_attributes_and_odd_payloads_survive(cluster: Any) -> None:
    topic = cluster.topic()
    cases: list[tuple[bytes, str | None, dict[str, str]]] = [
        (b"", None, {}),
        (b"\xff\x00\xfe", "", {}),
        ("grüße".encode(), "é", {"a": "1", "ü": ""}),
        (b"plain", None, {"only": "attributes"}),
        (b"keyed", "k" * 500, {}),
    ]
    async with cluster.connect() as client:
        async with client.producer(topic, name="the-producer") as producer:
            for payload, key, attributes in cases:
                producer.send_nowait(payload, key=key, attributes=attributes)
            await producer.send_many([Message.new(p, key=k, attributes=a) for p, k, a in cases])
        async with client.reader(topic, stop="head") as reader:
            got = [message async for message in reader]
        assert [(m.payload, m.key, dict(m.attributes)) for m in got] == cases + cases
        assert {m.producer for m in got} == {"the-producer"}
        assert {m.delivery_count for m in got} == {1}
        assert {m.schema for m in got} == {None}


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compressed_payloads_arrive_as_they_were(cluster: Any, compression: str) -> None:
    topic = cluster.topic()
    sent = [b"abc" * (i % 50) for i in range(2000)]
    async with cluster.connect() as client:
        async with client.producer(topic, compression=compression) as producer:
            await producer.send_many(sent)
        assert await payloads_of(client, topic) == sent


async def test_many_coroutines_may_await_one_send_each(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        receipts = await asyncio.gather(*(producer.send(b"%d" % i) for i in range(256)))
        assert sorted(r.offset for r in receipts) == list(range(256))
        assert producer.statistics().written_batches < 64  # they shared batches


async def test_sends_one_after_the_other_and_then_many_at_once_keep_order_and_offsets(cluster: Any) -> None:
    """Those that have no company leave in the turn they are called in; nothing overtakes them, nor they others."""
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic) as producer:
            offsets = [(await producer.send(b"%d" % number)).offset for number in range(12)]
            before = producer.statistics()
            assert before.written_batches == before.acknowledged_messages == 12
            alone = asyncio.ensure_future(producer.send(b"12"))
            await asyncio.sleep(0)
            handle = producer.send_nowait(b"13")
            cancelled = asyncio.ensure_future(producer.send(b"14"))
            await asyncio.sleep(0)
            cancelled.cancel()
            offsets += [(await alone).offset, (await handle).offset]
            receipt = await producer.send(b"15", key="k")
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            many = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(16, 80)))
            assert producer.statistics().written_batches <= before.written_batches + 7
            assert producer.statistics().waiting_messages == 0
        assert [*offsets, 14, receipt.offset, *(each.offset for each in many)] == list(range(80))
        async with client.reader(topic, start="earliest", stop="latest") as reader:
            assert [message.payload async for message in reader] == [b"%d" % number for number in range(80)]


async def test_a_message_with_attributes_and_no_company_leaves_in_the_turn_it_is_handed_over_in(
    cluster: Any,
) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        for number in range(6):
            await producer.send(b"%d" % number, key="k", attributes={"a": "b"})
        before = producer.statistics().written_batches
        alone = producer.send_nowait(b"6", attributes={"a": "c"})
        assert producer.statistics().written_batches == before + 1
        behind = producer.send_nowait(b"7", attributes={"a": "c"})
        assert producer.statistics().written_batches == before + 1, "it has company: what is under way"
        assert [(await alone).offset, (await behind).offset] == [6, 7]
        assert await payloads_of(client, topic) == [b"%d" % number for number in range(8)]


async def test_behind_a_crowd_that_is_under_way_messages_gather_and_still_leave(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        for _ in range(20):
            for _ in range(600):
                handle = producer.send_nowait(b"one of a crowd")
            await asyncio.sleep(0)
        assert (await handle).offset == 11_999  # by answers alone: nothing else hurries it
        first = producer.send_nowait(bytes(1000))
        for _ in range(600):
            producer.send_nowait(b"x")
        await asyncio.sleep(0)
        last = producer.send_nowait(b"y")
        await producer.flush()
        assert first.done()
        assert last.done()
        assert (await last).offset == 12_601
        assert producer.statistics().written_batches <= 24


async def test_leaving_the_block_stores_what_was_handed_over(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, linger_ms=60_000) as producer:
            handles = [producer.send_nowait(b"%d" % i) for i in range(10)]
            await asyncio.sleep(0)
            assert not handles[0].done()
        assert [(await handle).offset for handle in handles] == list(range(10))
        assert await payloads_of(client, topic) == [b"%d" % i for i in range(10)]


async def test_a_message_over_the_limit_is_refused_before_it_is_taken(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic) as producer:
        with pytest.raises(MessageTooLarge) as refused:
            await producer.send(bytes(4_000_001))
        assert refused.value.details["field"] == "payload"
        with pytest.raises(MessageTooLarge):
            producer.send_nowait(bytes(4_000_001))
        assert (await producer.send(bytes(4_000_000))).offset == 0
        assert producer.statistics().sent_messages == 1


async def test_send_many_stops_at_a_message_over_the_limit_and_says_what_is_stored(cluster: Any) -> None:
    topic = cluster.topic()

    def messages() -> Iterator[bytes]:
        yield from (b"%d" % i for i in range(1500))
        yield bytes(4_000_001)
        yield b"never reached"

    async with cluster.connect() as client, client.producer(topic) as producer:
        with pytest.raises(MessageTooLarge) as refused:
            await producer.send_many(messages())
        assert refused.value.details["acknowledged"] == 1500
        assert refused.value.acknowledged.ranges[0].last_offset == 1499  # type: ignore[attr-defined]
        assert len(await payloads_of(client, topic)) == 1500


async def test_a_full_window_refuses_send_nowait_and_suspends_send(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client, client.producer(topic, window_messages=10) as producer:
        for i in range(10):
            producer.send_nowait(b"%d" % i)
        with pytest.raises(WindowFull):
            producer.send_nowait(b"one too many")
        receipts = await asyncio.gather(*(producer.send(b"%d" % (10 + i)) for i in range(50)))
        assert [r.offset for r in receipts] == list(range(10, 60))


async def test_a_message_larger_than_the_window_passes_when_it_is_empty(cluster: Any) -> None:
    async with cluster.connect() as client, client.producer(cluster.topic(), window_bytes=1000) as producer:
        small = [producer.send_nowait(b"x" * 100) for _ in range(5)]
        assert (await producer.send(bytes(50_000))).offset == 5
        assert (await small[0]).offset == 0
        assert (await producer.send(b"after")).offset == 6


async def test_a_cancelled_wait_for_the_window_has_no_effect(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic, window_messages=1) as producer:
            first = producer.send_nowait(b"first")
            waiting = asyncio.ensure_future(producer.send(b"cancelled"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await first
            assert (await producer.send(b"second")).offset == 1
        assert await payloads_of(client, topic) == [b"first", b"second"]


async def test_one_cancelled_waiter_leaves_the_others_of_its_batch(cluster: Any) -> None:
    async with cluster.connect() as client, client.producer(cluster.topic()) as producer:
        waiting = [asyncio.ensure_future(producer.send(b"%d" % i)) for i in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        assert (await waiting[0]).offset == 0
        assert (await waiting[2]).offset == 2


async def test_two_producers_of_one_name_do_not_disturb_each_other(cluster: Any) -> None:
    topic = cluster.topic()
    async with (
        cluster.connect() as client,
        client.producer(topic, name="p") as one,
        client.producer(topic, name="p") as two,
    ):
        for i in range(3):
            await one.send(b"one %d" % i)
            await two.send(b"two %d" % i)
        assert len(await payloads_of(client, topic)) == 6


@pytest.mark.parametrize("entry", [b"x", Message.new(b"x", key="k"), Message.new(b"x")])
async def test_send_many_outside_the_block_says_so(cluster: Any, entry: Any) -> None:
    async with cluster.connect() as client:
        producer = client.producer(cluster.topic())
        with pytest.raises(ClosedResource):
            await producer.send_many([entry] * 3)
        async with producer:
            assert (await producer.send_many([entry] * 3)).count == 3
        with pytest.raises(ClosedResource):
            await producer.send_many([entry] * 3)
        with pytest.raises(ClosedResource):
            producer.send_nowait(b"x", key="k")


async def test_bad_arguments_are_refused_with_field_and_value(cluster: Any) -> None:
    async with cluster.connect() as client:
        with pytest.raises(InvalidName):
            client.producer("bad name!")
        with pytest.raises(InvalidArgument) as refused:
            client.producer("t", compression="brotli")
        assert refused.value.details == {"field": "compression", "value": "brotli"}
        with pytest.raises(InvalidArgument):
            client.producer("t", routing="random")
        async with client.producer(cluster.topic()) as producer:
            with pytest.raises(InvalidArgument):
                producer.send_nowait("text")  # type: ignore[arg-type]
            for key in (b"bytes", 7, "half a pair \ud800"):
                for send in (
                    lambda key: producer.send_nowait(b"x", key=key),
                    lambda key: producer.send_nowait(b"x", key=key, attributes={"a": "b"}),
                ):
                    with pytest.raises(InvalidArgument) as refused:
                        send(key)
                    assert refused.value.details["field"] == "key"
                with pytest.raises(InvalidArgument):
                    await producer.send_many([Message.new(b"x", key=key)])  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument) as refused:
                producer.send_nowait(b"x", attributes={"a": 1})  # type: ignore[dict-item]
            assert refused.value.details["field"] == "attributes"
            assert (await producer.send(b"x", key="k")).offset == 0, "nothing of all that was taken"
        with pytest.raises(ClosedResource):
            await producer.send(b"after the end")


async def test_an_existing_topic_must_agree_in_strategy(cluster: Any) -> None:
    topic = cluster.topic()
    async with cluster.connect() as client:
        async with client.producer(topic) as producer:
            await producer.send(b"x")
        with pytest.raises(DispatchMismatch):
            async with client.producer(topic, dispatch_strategy="non_reliable"):
                pass
        async with client.producer(topic, dispatch_strategy=None) as producer:
            await producer.send(b"y")


async def test_statistics_count_what_happened(cluster: Any) -> None:
    async with cluster.connect() as client, client.producer(cluster.topic()) as producer:
        await producer.send_many([b"12345"] * 100)
        statistics = producer.statistics()
        assert statistics.sent_messages == statistics.acknowledged_messages == 100
        assert statistics.waiting_messages == statistics.failed_messages == statistics.resent_batches == 0
        assert statistics.sessions == 1
        assert client.statistics().producers == 1


async def test_an_unknown_host_is_unavailable_within_the_retry_time(cluster: Any) -> None:
    import pydanube

    async with pydanube.connect("http://127.0.0.1:1", retry=pydanube.Retry(max_elapsed_s=0.1)) as client:
        with pytest.raises(ClusterError) as refused:
            async with client.producer("t"):
                pass
        assert refused.value.code == "UNAVAILABLE"
        assert refused.value.retryable
