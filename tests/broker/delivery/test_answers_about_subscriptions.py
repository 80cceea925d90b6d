"""What the broker says of lag, of who is active and of refusals is so."""

from __future__ import annotations

import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_core.errors import ClusterError, JournalReadOnly
from pydanube_core.names import TopicName

from tests.broker.delivery.waiting import facts_of
from tests.support.messages import take
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.mark.parametrize("connected", [True, False])
async def test_what_is_trimmed_under_a_cursor_does_not_count_as_acknowledged_above_it(
    broker: Broker, client: Client, connected: bool
) -> None:
    """`drop_unread`: the trim passes acknowledgements above the first unread message; 200 others are unread."""
    async with client.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(600)])
    topic = broker.registry.find(TopicName.parse("/default/t"))
    assert topic is not None
    async with client.consumer("t", "s", type="shared") as consumer:
        for message in await take(consumer, 600):
            if 100 <= message.offset < 300:
                await message.ack()
        await consumer.flush_acks()
        if connected:
            topic.trim(400)
            facts = await facts_of(broker, "t", "s")
    if not connected:
        topic.trim(400)
        facts = await facts_of(broker, "t", "s")
    assert (facts.state.start_offset, facts.state.next_offset, facts.state.lag_messages) == (400, 600, 200)
    assert await broker.port.skip_messages("t", "s", 1000) == 200


async def test_what_a_consumer_held_below_the_start_does_not_come_again(
    broker: Broker, client: Client
) -> None:
    """`drop_unread` takes what a consumer still holds. It left, lag said 200, and 201 came."""
    async with client.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(600)])
    topic = broker.registry.find(TopicName.parse("/default/t"))
    assert topic is not None
    async with client.consumer("t", "s", type="shared") as consumer:
        for message in await take(consumer, 600):
            if 1 <= message.offset < 400:
                await message.ack()
        await consumer.flush_acks()
        topic.trim(400)
    assert (await facts_of(broker, "t", "s")).state.lag_messages == 200
    async with client.consumer("t", "s", type="shared") as consumer:
        assert [message.offset for message in await take(consumer, 200)] == list(range(400, 600))


async def test_a_failover_consumer_that_takes_over_its_own_name_is_told_that_it_is_active(
    broker: Broker, client: Client
) -> None:
    async with client.producer("t") as producer:
        await producer.send(b"x")
    async with (
        client.consumer("t", "s", type="failover", name="first") as first,
        client.consumer("t", "s", type="failover", name="standby"),
        connect(broker.broker_url) as another,
    ):
        await take(first, 1)
        topic = broker.registry.find(TopicName.parse("/default/t"))
        assert topic is not None
        pump = topic.subscriptions["s"]
        async with another.consumer("t", "s", type="failover", name="first") as again:
            await take(again, 1)
            statistics = pump.statistics()
            assert statistics is not None
            active = {each.name: pump.is_active(each.consumer_id) for each in statistics.consumers}
            assert active == {"first": True, "standby": False}


async def test_every_refusal_of_a_read_only_journal_is_counted(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.producer("t") as producer:
        await producer.send(b"x")
        gate = SyncGate(monkeypatch)
        waiting = producer.send_nowait(b"in flight")
        await until(lambda: broker.journal.waiting_bytes > 0)
        await until(lambda: gate.requests)
        gate.fail(OSError(5, "made to fail"))
        with pytest.raises(JournalReadOnly):
            await waiting
        refused = broker.metrics.rejected["/default/t", "JOURNAL_READ_ONLY"]
        assert refused >= 1
        with pytest.raises(ClusterError):
            async with client.producer("t"):
                pass
        assert broker.metrics.rejected["/default/t", "JOURNAL_READ_ONLY"] > refused
