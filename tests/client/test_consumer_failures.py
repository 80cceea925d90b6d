"""What consumers and readers do when the cluster fails them."""

from __future__ import annotations

import asyncio

import pytest
from pydanube import Client, Consumer, Retry, connect
from pydanube.admin import connect_admin
from pydanube.receiving import lane_answers
from pydanube.testing import InMemoryCluster
from pydanube.testing.faults import Faults, FaultyStream, FaultyTransport
from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.errors import ClosedResource, Unavailable

from tests.support.messages import take
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

QUICK = Retry(max_elapsed_s=20, initial_s=0.001, max_delay_s=0.01)
IMPATIENT = Retry(max_elapsed_s=0.05, initial_s=0.001, max_delay_s=0.01)


async def fill(client: Client, count: int) -> None:
    async with client.producer("t", batch_bytes=500) as producer:
        await producer.send_many([b"%d" % i for i in range(count)])


async def reconnected(consumer: Consumer, times: int = 1) -> None:
    """Wait for the consumer's reconnect number `times`; statistics are what there is to look at."""
    await until(lambda: consumer.statistics().reconnects >= times)


async def test_a_consumer_goes_on_behind_its_acks_after_a_cut(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 1000)
        async with client.consumer("t", "s") as consumer:
            for message in await take(consumer, 300):
                await message.ack()
            await consumer.flush_acks()
            memory.drop_connections()
            rest = await take(consumer, 700)
            assert [m.offset for m in rest] == list(range(300, 1000))


async def test_acks_of_a_lost_session_are_counted_and_have_no_effect(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 10)
        async with client.consumer("t", "s") as consumer:
            old = await take(consumer, 10)
            memory.drop_connections()
            await reconnected(consumer)
            for message in old:
                await message.ack()
            await old[0].nack()
            assert consumer.statistics().stale_acks == 11
            again = await take(consumer, 10)
            assert [m.delivery_count for m in again] == [2] * 10
            for message in again:
                await message.ack()
        assert memory.unacknowledged("t", "s") == 0


async def test_what_was_buffered_for_a_lost_session_is_not_handed_out(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 100)
        async with client.consumer("t", "s") as consumer:
            first = await anext(consumer)
            memory.drop_connections()
            await reconnected(consumer)
            again = await take(consumer, 100)
            assert first.offset == 0
            assert [m.offset for m in again] == list(range(100))
            assert consumer.statistics().stale_messages == 99


async def test_credit_neither_leaks_nor_grows_over_many_cuts_and_seeks(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 500)
        async with client.consumer("t", "s", credit_messages=50, credit_bytes=100_000) as consumer:
            for round_ in range(1, 6):
                await take(consumer, 20)
                memory.drop_connections()
                await reconnected(consumer, round_)
                await take(consumer, 70)
                await consumer.seek("earliest")
            got = await take(consumer, 500)
            assert [m.offset for m in got] == list(range(500))
            await asyncio.sleep(0.01)
            statistics = consumer.statistics()
            assert statistics.buffered_messages == 0
            assert 0 < statistics.credit_messages <= 50
            assert 0 < statistics.credit_bytes <= 100_000


async def test_a_reader_loses_and_doubles_nothing_over_cuts(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 1000)
        async with client.reader("t", stop="head", credit_messages=100) as reader:
            offsets = []
            async for message in reader:
                offsets.append(message.offset)
                if len(offsets) % 150 == 0:
                    memory.drop_connections()
        assert offsets == list(range(1000))


async def test_the_stop_of_a_reader_stays_where_it_was_when_it_reconnects(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 100)
        async with client.reader("t", stop="head", credit_messages=10) as reader:
            offsets = [message.offset for message in await take(reader, 5)]
            await fill(client, 100)
            memory.drop_connections()
            offsets += [message.offset async for message in reader]
        assert offsets == list(range(100))


async def test_an_outage_that_lasts_is_raised_by_the_iteration(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=IMPATIENT) as client:
        await fill(client, 1)
        async with client.consumer("t", "s") as consumer:
            message = await anext(consumer)
            memory.stop()
            with pytest.raises(Unavailable):
                await anext(consumer)
            with pytest.raises(Unavailable):
                await consumer.receive()
            with pytest.raises(Unavailable):
                await message.ack()
            with pytest.raises(Unavailable):
                await consumer.flush_acks()


async def test_a_former_stream_that_still_holds_the_slot_is_waited_for(memory: InMemoryCluster) -> None:
    async with (
        memory.connect(retry=QUICK) as client,
        connect(memory.url) as other,  # which has no faults
        connect_admin(memory.admin_url) as admin,
    ):
        await fill(client, 1)
        async with client.consumer("t", "s", name="one") as consumer:
            memory.stop()
            while (await admin.consumers.list()).items:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            # somebody is quicker than the reconnect: then this one has to wait for the slot
            async with other.consumer("t", "s", name="two"):
                events = client.events()
                memory.restart()
                async for event in events:
                    if "held by consumer 'two'" in event.reason:
                        break
            assert (await take(consumer, 1))[0].offset == 0


async def test_a_standby_takes_over_when_the_active_consumer_leaves(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 10)
        async with (
            client.consumer("t", "s", type="failover", name="one") as active,
            client.consumer("t", "s", type="failover", name="two") as standby,
        ):
            assert (active.active, standby.active) == (True, False)
            await take(active, 10)
            assert await standby.receive(max_wait_s=0.01) == []
            await active.aclose()
            assert [m.offset for m in await take(standby, 10)] == list(range(10))
            assert standby.active


async def test_acks_after_closing_are_misuse(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        await fill(client, 2)
        async with client.consumer("t", "s") as consumer:
            message = await anext(consumer)
        with pytest.raises(ClosedResource):
            await message.ack()
        assert [m async for m in consumer] == []


class Counting(FaultyTransport):
    """Counts what consumers write."""

    written = 0

    async def consume(self) -> FaultyStream:
        stream = await super().consume()
        write = stream.write

        async def counted(message: bytes) -> None:
            self.written += 1
            await write(message)

        stream.write = counted  # type: ignore[method-assign]
        return stream


async def test_acks_travel_as_ranges_and_not_one_by_one(memory: InMemoryCluster) -> None:
    transport = Counting(Http2Transport(memory.url), Faults())
    async with Client(memory.url, lambda _: transport, QUICK) as client:
        async with client.producer("t") as producer:
            await producer.send_many([b"x"] * 5000)
        async with client.consumer("t", "s") as consumer:
            for _ in range(5000):
                await (await anext(consumer)).ack()
            await consumer.flush_acks()
        assert 1 < transport.written < 100
        assert memory.unacknowledged("t", "s") == 0


class Damaging(FaultyTransport):
    """Turns one bit of everything that is delivered."""

    async def consume(self) -> FaultyStream:
        stream = await super().consume()
        hand_over = stream.hand_over
        stream.hand_over = (
            lambda message: hand_over(  # type: ignore[method-assign]
                message if len(message) < 100 else message[:-3] + bytes([message[-3] ^ 1]) + message[-2:]
            )
        )
        return stream


async def test_a_damaged_delivery_ends_the_consumer_with_an_error(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        await fill(client, 10)

    def transport(url: str) -> Damaging:
        return Damaging(Http2Transport(url), Faults())

    async with Client(memory.url, transport, QUICK) as client, client.reader("t") as reader:
        with pytest.raises(Exception, match="checksum") as failure:
            await anext(reader)
    assert getattr(failure.value, "code", None) == "CHECKSUM_MISMATCH"


async def test_acks_one_by_one_gather_behind_one_that_has_just_left(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_answers, "ACK_FLUSH_S", 3600.0)
    acked: asyncio.Queue[int] = asyncio.Queue()

    async def work(consumer: Consumer) -> None:
        async for message in consumer:
            await message.ack()
            acked.put_nowait(message.offset)

    async with memory.connect() as client, client.producer("t") as producer:
        async with client.consumer("t", "s") as consumer:
            working = asyncio.create_task(work(consumer))
            for number in range(12):
                await producer.send(b"%d" % number)
                assert await acked.get() == number
            await until(lambda: memory.unacknowledged("t", "s") == 11)  # the first left at once
            working.cancel()
        assert memory.unacknowledged("t", "s") == 0, "and the others at the end of the block"
