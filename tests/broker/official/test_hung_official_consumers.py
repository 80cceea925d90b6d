"""Official consumers that read messages and never answer: what they hold goes to the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from pydanube_core.names import TopicName

from tests.broker.official.conftest import Brokers
from tests.broker.official.raw_client import FAILOVER, KEY_SHARED, SHARED, RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
T = "/default/t"


@pytest.fixture
async def impatient(brokers: Brokers) -> AsyncIterator[tuple[Brokers, RawClient]]:
    broker = await brokers.restart(delivery__ack_timeout="400ms")
    async with RawClient(broker.broker_url) as client:
        with anyio.fail_after(60):
            yield brokers, client


@pytest.mark.parametrize("type", [SHARED, KEY_SHARED, FAILOVER])
@pytest.mark.parametrize("nacked", [False, True])
async def test_a_hung_consumer_keeps_no_message(
    impatient: tuple[Brokers, RawClient], type: int, nacked: bool
) -> None:
    brokers, client = impatient
    producer = await client.create_producer(T)
    hung = [await client.consume(T, name="hung-0", type=type)]
    await client.send(T, producer, b"0", routing_key="k")
    held = await hung[0].next()
    if nacked and type == SHARED:
        await client.nack(held)  # and then nothing more
    hung += [await client.consume(T, name="hung-1", type=type)] if type == SHARED else []
    working = await client.consume(T, name="working", type=type)
    for payload in (b"1", b"2", b"3", b"4", b"5"):
        await client.send(T, producer, payload, routing_key="k")
    found = []
    while len(set(found)) < 6:
        message = await working.next()
        found.append(message.payload)
        await client.ack(message)
    if type != SHARED:
        assert found == [b"0", b"1", b"2", b"3", b"4", b"5"]
    pump = brokers.broker.registry.find(TopicName.parse(T)).subscriptions["s"]  # type: ignore[union-attr]

    async def set_aside() -> bool:
        return any(one.standing == "set_aside" for one in pump.statistics().consumers)

    await until(set_aside)
