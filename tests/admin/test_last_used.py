"""Is it safe to drop? When a topic was written last, when a subscription was read last, and by whom."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime

import anyio
import pytest
from pydanube import connect

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


def is_now(told: str) -> bool:
    return abs(datetime.fromisoformat(told.replace("Z", "+00:00")).timestamp() - time.time()) < 60


async def test_when_a_topic_was_written_last(cluster: Administered) -> None:
    await cluster("topics.create", topic="idle")
    await cluster("topics.create", topic="busy", partitions=2)
    await cluster("messages.publish", topic="busy", payload="x")
    items = {
        each["topic"]: each for each in (await cluster("topics.list", sort="-last_published_at"))["items"]
    }
    assert list(items) == ["/default/busy", "/default/idle"]  # what was never written stands last
    assert items["/default/idle"]["last_published_at"] is None
    assert is_now(items["/default/busy"]["last_published_at"])
    assert is_now((await cluster("topics.describe", topic="busy"))["last_published_at"])


async def test_who_read_a_subscription_last_also_when_he_is_gone(cluster: Administered) -> None:
    with anyio.fail_after(60):
        await cluster("topics.create", topic="orders")
        await cluster("subscriptions.create", topic="orders", subscription="s", start="earliest")
        (before,) = (await cluster("subscriptions.list"))["items"]
        assert (before["last_consumed_at"], before["last_consumed_at_reason"], before["last_consumer"]) == (
            None,
            "not_since_start",
            None,
        )
        async with connect(cluster.broker.broker_url) as client:
            async with client.producer("orders") as producer:
                await producer.send_many([b"x", b"y"])
            async with client.consumer("orders", "s", name="first") as consumer:
                (message,) = await consumer.receive(max_messages=1)
                await message.ack()
            async with client.consumer("orders", "s", name="second"):  # comes and answers for nothing
                pass
        (item,) = (await cluster("subscriptions.list"))["items"]
        assert item["last_consumer"] == "first"
        assert is_now(item["last_consumed_at"])
        assert "last_consumed_at_reason" not in item
        described = await cluster("subscriptions.describe", topic="orders", subscription="s")
        assert described["last_consumer"] == "first"
