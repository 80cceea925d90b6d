"""Consumers of the SDK whose topic goes to another broker: they keep what they hold, and what they answered counts."""

from __future__ import annotations

import anyio
import pytest
from pydanube import ClientEventKind, connect
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.serving.test_several_brokers import create
from tests.support.messages import take
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]

TYPES = pytest.mark.parametrize("type", ["exclusive", "key-shared"])


async def _publish(cluster: SeveralBrokers, count: int, *, first: int = 0) -> None:
    async with connect(cluster.brokers[1].broker_url) as client, client.producer("t") as producer:
        for number in range(first, first + count):
            await producer.send(b"%d" % number, key=str(number % 5))


def _lag(cluster: SeveralBrokers) -> int:
    pump = cluster.owner("t").registry.find(TopicName.parse("t")).subscriptions["s"]  # type: ignore[union-attr]
    return int(pump.cursor_state(0).lag_messages)


@TYPES
async def test_nothing_is_delivered_twice_and_every_ack_counts(cluster: SeveralBrokers, type: str) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(TopicName.parse("t")))
    await _publish(cluster, 100)
    async with (
        connect(cluster.brokers[1].broker_url) as client,
        client.consumer("t", "s", type=type) as consumer,  # type: ignore[arg-type]
    ):
        held = await take(consumer, 30)  # the others wait in its buffer
        for message in held[:10]:
            await message.ack()
        await move(cluster, "t", cluster.others("t")[0])
        for message in held[10:20]:
            await message.ack()
        await until(lambda: consumer.statistics().reconnects == 1)
        for message in held[20:]:
            await message.ack()
        rest = await take(consumer, 70)
        for message in rest:
            await message.ack()
        await consumer.flush_acks()
        assert _lag(cluster) == 0
        await _publish(cluster, 10, first=100)
        again = await take(consumer, 10)
        for message in again:
            await message.ack()
        await consumer.flush_acks()
        statistics = consumer.statistics()
    everything = [*held, *rest, *again]
    assert sorted(int(message.payload) for message in everything) == list(range(110))
    assert {message.delivery_count for message in everything} == {1}
    assert (statistics.stale_acks, statistics.stale_messages, statistics.redelivered_messages) == (0, 0, 0)
    assert statistics.acked_messages == 110
    assert _lag(cluster) == 0


async def test_nack_that_was_given_during_the_move_counts(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(TopicName.parse("t")))
    await _publish(cluster, 3)
    async with (
        connect(cluster.brokers[1].broker_url) as client,
        client.consumer("t", "s", type="shared") as consumer,
    ):
        held = await take(consumer, 3)
        events = client.events()
        async with anyio.create_task_group() as group:
            group.start_soon(move, cluster, "t", cluster.others("t")[0])
            while (await anext(events)).kind is not ClientEventKind.DISCONNECTED:
                pass
            await held[0].nack(delay_ms=0)
        (again,) = await take(consumer, 1)
        assert (again.offset, again.delivery_count) == (held[0].offset, 2)
        for message in (again, *held[1:]):
            await message.ack()
        await consumer.flush_acks()
    assert _lag(cluster) == 0


@TYPES
async def test_acks_that_the_former_owner_carried_out_are_not_called_lost(
    cluster: SeveralBrokers, type: str
) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(TopicName.parse("t")))
    await _publish(cluster, 30)
    async with (
        connect(cluster.brokers[1].broker_url) as client,
        client.consumer("t", "s", type=type) as consumer,  # type: ignore[arg-type]
    ):
        for message in await take(consumer, 30):
            await message.ack()
        await until(lambda: _lag(cluster) == 0)  # carried out, and not confirmed
        await move(cluster, "t", cluster.others("t")[0])
        await until(lambda: consumer.statistics().reconnects == 1)
        await consumer.flush_acks()
    assert _lag(cluster) == 0


async def test_consumer_that_works_through_moves_gets_everything_once(
    cluster: SeveralBrokers,
) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(TopicName.parse("t")))
    seen: list[int] = []
    finished = anyio.Event()

    async def consume(name: str) -> None:
        async with (
            connect(cluster.brokers[1].broker_url) as client,
            client.consumer("t", "s", type="key-shared", name=name) as consumer,
        ):
            while not finished.is_set():
                for message in await consumer.receive(max_messages=20, max_wait_s=0.1):
                    seen.append(int(message.payload))
                    await message.ack()
                await consumer.flush_acks()

    async with anyio.create_task_group() as group:
        group.start_soon(consume, "one")
        group.start_soon(consume, "other")
        for turn in range(5):
            await _publish(cluster, 25, first=25 * turn)
            await move(cluster, "t", cluster.others("t")[0])
        await until(lambda: len(seen) >= 125)
        finished.set()
    assert sorted(seen) == list(range(125))
    for key in range(5):
        of_key = [number for number in seen if number % 5 == key]
        assert of_key == sorted(of_key)
