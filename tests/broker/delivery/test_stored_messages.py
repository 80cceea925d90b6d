"""Stored messages one by one: the bounds of a reading."""

from __future__ import annotations

from functools import partial

import pytest
from pydanube import Client
from pydanube_broker.broker import Broker
from pydanube_broker.topics.stored_messages import messages_between, payloads_between
from pydanube_core.names import TopicName

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_a_reading_of_no_message_has_the_first(broker: Broker, client: Client) -> None:
    """It did not end, and nothing else ran in the broker."""
    await broker.registry.create(TopicName.parse("t"), partitions=0, dispatch_strategy="reliable")
    async with client.producer("t") as producer:
        await producer.send_many([b"a", b"b"])
    topic = broker.registry.known(TopicName.parse("t"))
    bounds = {"start": 0, "end": 2, "max_messages": 0, "max_bytes": 1 << 20}
    threads = broker.engine.worker_threads
    found = await partial(messages_between, topic, worker_threads=threads)(**bounds)
    assert [each.payload for each in found] == [b"a"]
    assert await partial(payloads_between, topic, worker_threads=threads)(**bounds) == [(0, b"a")]
