"""A lone message's frame is made while the disk has it: what happens meanwhile counts, and nobody sees it before."""

from __future__ import annotations

import asyncio
import time
from typing import get_args

import pytest
from pydanube import Client, Consumer, Message, connect
from pydanube.options import SubscriptionType
from pydanube_broker.broker import Broker
from pydanube_broker.delivery.turns import Turns

from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
TYPES = get_args(SubscriptionType)
NO_MS = 20


async def first(consumer: Consumer) -> Message:
    message = await anext(consumer)
    await message.ack()
    return message


@pytest.mark.parametrize("type", TYPES)
async def test_it_goes_to_whoever_is_there_when_the_disk_has_it(
    broker: Broker, client: Client, type: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.producer("t") as producer, client.consumer("t", "s", type=type, name="one") as one:
        await producer.send(b"0")
        assert (await first(one)).payload == b"0"
        await one.flush_acks()
        with SyncGate(monkeypatch) as gate:
            sent = producer.send_nowait(b"1")
            await until(lambda: gate.requests)
            assert await one.receive(max_wait_s=0.05) == [], "the disk does not have it"
            await one.aclose()
            async with client.consumer("t", "s", type=type, name="other") as other:
                gate.let_go()
                message = await first(other)
                assert (message.payload, message.offset, message.delivery_count) == (b"1", 1, 1)
                assert (await sent).offset == 1


async def test_its_frame_is_dropped_where_another_would_be_made_now(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.producer("t") as producer, client.consumer("t", "s") as consumer:
        await producer.send(b"0")
        await first(consumer)
        await consumer.flush_acks()
        with SyncGate(monkeypatch) as gate:
            producer.send_nowait(b"1")
            await until(lambda: gate.requests)
            moving = asyncio.ensure_future(consumer.seek("earliest"))
            assert (await first(consumer)).payload == b"0"
            gate.let_go()
            await moving
            assert (await first(consumer)).payload == b"1"
            await producer.send(b"2")
            assert (await first(consumer)).payload == b"2"


async def test_its_time_to_live_goes_on_while_the_disk_has_it(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.producer("t") as producer, client.consumer("t", "s") as consumer:
        await producer.send(b"0", ttl_ms=60_000)
        await first(consumer)
        with SyncGate(monkeypatch) as gate:
            sent = producer.send_nowait(b"too late", ttl_ms=NO_MS)
            await until(lambda: gate.requests)
            over = time.time() + 2 * NO_MS / 1000
            await until(lambda: time.time() > over)
        await sent
        await producer.send(b"2", ttl_ms=60_000)
        assert (await first(consumer)).payload == b"2"
        assert broker.engine.dropped["/default/t", "ttl"] == 1


async def test_a_delay_is_kept_to(client: Client) -> None:
    async with client.producer("t") as producer, client.consumer("t", "s") as consumer:
        late = await producer.send(b"late", delay_ms=100)
        await producer.send(b"now")
        assert [(await first(consumer)).payload for _ in range(2)] == [b"now", b"late"]
        assert time.time() >= late.append_time.timestamp() + 0.1


async def test_one_and_the_same_reaches_every_subscription(broker: Broker, client: Client) -> None:
    """The first that is told of a commit sends at once, the others in their turn."""
    async with (
        connect(broker.broker_url) as other,
        client.producer("t") as producer,
        other.consumer("t", "a") as a,
        other.consumer("t", "b") as b,
        client.consumer("t", "c") as c,
    ):
        for number in range(20):
            await producer.send(b"%d" % number)
            assert [(await first(each)).offset for each in (a, b, c)] == [number] * 3


class Stepped:
    def __init__(self, turns: list[str], name: str, steps: int) -> None:
        self.queued = False
        self._turns, self._name, self._left = turns, name, steps

    def step(self) -> bool:
        self._turns.append(self._name)
        self._left -= 1
        return self._left > 0


async def test_the_first_of_a_turn_steps_at_once_and_leaves_the_rest_its_turns() -> None:
    steps: list[str] = []
    turns = Turns()
    turns.flush = lambda: steps.append("flush")
    a, b = Stepped(steps, "a", 3), Stepped(steps, "b", 1)
    turns.at_once(a)
    turns.at_once(b)
    turns.at_once(a)
    assert steps == ["a", "flush"]
    await asyncio.sleep(0)
    assert steps == ["a", "flush", "a", "b", "a"]
    turns.at_once(b)
    assert steps[5:] == ["b", "flush"]
