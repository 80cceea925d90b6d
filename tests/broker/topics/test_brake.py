"""Producers of a topic whose copy is behind wait, and none of them is refused."""

from __future__ import annotations

import time

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.topics.brake import HOLD_MS, Brake
from pydanube_core.errors import Overloaded
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import broker, one_loop, opened
from tests.broker.official.raw_client import RawClient

__all__ = ["broker", "one_loop", "opened"]
pytestmark = pytest.mark.anyio


def test_a_limit_counts_bytes_and_says_how_long_to_wait() -> None:
    brake = Brake(1_000, 0)
    brake.take(1_000, 0)
    with pytest.raises(Overloaded) as caught:
        brake.take(500, 0)
    assert caught.value.retry_after_ms == brake.wait_ms(0) == 500
    assert brake.wait_ms(500) == 0
    brake.take(500, 500)


def test_a_limit_ends_by_itself_unless_its_copy_goes_on() -> None:
    brake = Brake(1_000, 0)
    brake.renew(5_000)
    assert not brake.is_over(HOLD_MS + 4_999)
    assert brake.is_over(HOLD_MS + 5_000)
    assert brake.wait_ms(HOLD_MS + 5_000) == 0


@pytest.mark.usefixtures("one_loop")
async def test_producers_of_both_protocols_wait_and_keep_their_order(broker: Broker) -> None:
    size, sent = 20_000, 12
    async with connect(broker.broker_url) as client, RawClient(broker.broker_url) as official:
        async with client.producer("t") as producer:
            await producer.send(b"first")
            topic = broker.registry.known(TopicName.parse("t"))
            number = await official.create_producer("/default/t", "o")
            topic.slow_down(100_000)
            begun_s = time.monotonic()
            async with anyio.create_task_group() as group:

                async def sdk() -> None:
                    for n in range(sent):
                        await producer.send(b"s%d" % n + bytes(size))

                async def other() -> None:
                    for n in range(sent):
                        await official.send("/default/t", number, b"o%d" % n + bytes(size), name="o")

                group.start_soon(sdk)
                group.start_soon(other)
            took_s = time.monotonic() - begun_s
        assert 2 * sent * size / 100_000 - 1.0 <= took_s, "a second's worth is free"
        assert topic.commit == 2 * sent + 1
        async with client.reader("t", stop="head") as reader:
            payloads = [message.payload.rstrip(b"\0") async for message in reader]
    for letter in (b"s", b"o"):
        assert [each for each in payloads if each.startswith(letter)] == [
            letter + b"%d" % n for n in range(sent)
        ]
