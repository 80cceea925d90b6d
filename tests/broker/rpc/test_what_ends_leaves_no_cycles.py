"""Streams and connections that end are freed at once: what waits for the garbage collector stops the loop later."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import httpx
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.topics.topic import Topic
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import broker, opened

__all__ = ["broker", "opened"]

pytestmark = pytest.mark.anyio

OURS = ("pydanube_broker.", "pydanube_core.http2.connection")  # the client is in this process, too


async def test_streams_and_connections_that_end_leave_nothing_to_the_collector(broker: Broker) -> None:
    async def use() -> None:
        async with connect(broker.broker_url) as client:
            for _ in range(10):
                async with client.producer("t") as producer:
                    await producer.send(b"x")
                async with client.consumer("t", "s", start="earliest") as consumer:
                    await anext(aiter(consumer))
                async with client.reader("t", start="earliest") as reader:
                    await anext(aiter(reader))
        async with httpx.AsyncClient(trust_env=False) as web:
            for path in ("/healthz", "/metrics", "/nothing"):
                await web.get(broker.metrics_url + path)

    await use()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await use()
        await asyncio.sleep(0.2)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    left = {kind: count for kind, count in kinds.items() if kind.startswith(OURS) and count >= 5}
    assert not left


async def test_a_deleted_topic_is_freed_without_a_collection(broker: Broker) -> None:
    """A subscription and its sender referred to each other, and the timer to both until the last ack timeout."""
    name = TopicName.parse("freed")

    async def use() -> None:
        async with connect(broker.broker_url) as client:
            async with client.producer("freed") as producer:
                await producer.send(b"x")
            for subscription in ("a", "b", "c"):
                async with client.consumer("freed", subscription, start="earliest") as consumer:
                    await anext(aiter(consumer))
        assert kept() == {"Topic": 1, "SubscriptionPump": 3}
        await broker.registry.delete(name)

    def kept() -> Counter[str]:
        """Count those of this test: a broker of another one may live."""
        found = [each for each in gc.get_objects() if type(each) in (Topic, SubscriptionPump)]
        own = [each for each in found if (each if isinstance(each, Topic) else each.topic).name == str(name)]
        return Counter(type(each).__name__ for each in own)

    gc.collect()
    gc.disable()
    try:
        await use()
        for _ in range(100):
            if not kept():
                break
            await asyncio.sleep(0.05)
        assert not kept()
    finally:
        gc.enable()
