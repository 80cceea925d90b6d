"""Consumers whose topics change while they are open: partitions that are added, topics that somebody else holds."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pydanube
import pytest
from pydanube import Client, Consumer
from pydanube.admin import connect_admin

from tests.broker.official.raw_client import RawClient

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def broker(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_broker(tmp_path_factory.mktemp("changing"), 0)


@pytest.fixture
async def client(broker: Any) -> AsyncIterator[Client]:
    async with pydanube.connect(broker.url) as client, asyncio.timeout(60):
        yield client


async def payloads(consumer: Consumer, count: int) -> set[bytes]:
    found: set[bytes] = set()
    async for message in consumer:
        await message.ack()
        found.add(message.payload)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("several", [False, True])
async def test_a_partition_that_an_official_client_adds_is_consumed_from_its_first_message(
    client: Client, broker: Any, several: bool
) -> None:
    topic = f"/default/grows-{several}"
    async with client.producer(topic, partitions=2) as producer:
        await producer.flush()
    chosen: Any = [topic] if several else topic
    async with client.consumer(chosen, "s", refresh_s=0.1) as consumer, RawClient(broker.url) as official:
        added = f"{topic}-part-9"
        number = await official.create_producer(added)
        for sent in range(10):
            await official.send(added, number, b"%d" % sent)
        async with connect_admin(broker.admin_url) as admin:
            described = await admin.topics.describe(topic=topic)
            assert described.partitions == 3
            assert len(described.parts) == 3
            lag = await admin.subscriptions.lag(topic=topic)
            assert len(lag.items) == 3
        assert await payloads(consumer, 10) == {b"%d" % sent for sent in range(10)}


async def test_what_is_written_to_an_added_partition_waits_for_subscriptions_without_consumers(
    client: Client, broker: Any
) -> None:
    topic = "/default/unattended"
    async with client.producer(topic, partitions=1) as producer:
        await producer.flush()
    async with client.consumer(topic, "s", type="shared"):
        pass
    async with RawClient(broker.url) as official, connect_admin(broker.admin_url) as admin:
        number = await official.create_producer(f"{topic}-part-1")
        await official.send(f"{topic}-part-1", number, b"kept")
        lag = await admin.subscriptions.lag(topic=topic)
        assert sum(one.lag_messages for one in lag.items) == 1
    async with client.consumer(topic, "s", type="shared") as consumer:
        assert await payloads(consumer, 1) == {b"kept"}


async def test_a_pattern_goes_on_without_a_topic_that_somebody_else_holds_and_takes_it_when_it_is_free(
    client: Client,
) -> None:
    for name in ("held-1", "held-2"):
        async with client.producer(name) as producer:
            await producer.send(name.encode())
    events = client.events()
    async with (
        client.consumer("held-1", "s", name="other", start="earliest") as other,
        client.consumer(
            pattern="held-*", subscription="s", name="own", start="earliest", refresh_s=0.1
        ) as consumer,
    ):
        assert consumer.topics == ("/default/held-2",)
        assert await payloads(consumer, 1) == {b"held-2"}
        async for event in events:
            if event.kind == "left":
                break
        assert event.topic == "/default/held-1"
        assert "held by consumer 'other'" in event.reason
        await other.aclose()
        assert await payloads(consumer, 1) == {b"held-1"}
        assert consumer.topics == ("/default/held-1", "/default/held-2")
