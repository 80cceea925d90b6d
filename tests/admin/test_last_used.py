"""Is it safe to drop? When a topic was written last, when a subscription was read last, and by whom."""

from __future__ import annotations

import time
from datetime import datetime

import anyio
import pytest
from pydanube import connect

from tests.admin.real_broker import Administered, cluster

__all__ = ["cluster"]
pytestmark = pytest.mark.anyio


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


async def test_whether_a_topic_is_safe_to_drop_is_one_call(cluster: Administered) -> None:
    await cluster("topics.create", topic="unused")
    described = await cluster("topics.describe", topic="unused")
    assert (described["in_use"], described["in_use_because"]) == (False, [])
    assert (described["newest_offset"], described["newest_offset_reason"]) == (None, "nothing_published")
    await cluster("topics.create", topic="parts", partitions=2)
    await cluster("subscriptions.create", topic="parts", subscription="s", start="earliest")
    assert not (await cluster("topics.describe", topic="parts"))["in_use"]
    await cluster.publish("parts", b"x", b"y")
    described = await cluster("topics.describe", topic="parts")
    assert described["in_use"]
    assert described["in_use_because"][0].startswith("written ")
    assert described["in_use_because"][1:] == ["subscription s: 4 unread"]
    assert described["newest_offset_reason"] == "partitioned"
    async with connect(cluster.broker.broker_url) as client, client.producer("unused"):
        assert (await cluster("topics.describe", topic="unused"))["in_use_because"] == [
            "producers connected: 1"
        ]


async def test_the_newest_message_is_in_the_list(cluster: Administered) -> None:
    await cluster("topics.create", topic="orders")
    await cluster.publish("orders", b"x", b"y", b"z")
    (item,) = (await cluster("topics.list"))["items"]
    assert item["newest_offset"] == 2
    assert (await cluster("topics.describe", topic="orders"))["newest_offset"] == 2
    assert is_now(item["last_published_at"])


async def test_bytes_are_what_is_stored_before_and_after_tiering(cluster: Administered) -> None:
    """The same sum as `retention_bytes` and quotas count, and the list tells where it went when it becomes less."""
    await cluster("topics.create", topic="orders")
    await cluster.publish("orders", *[b"x" * 1000] * 200)
    (before,) = (await cluster("topics.list"))["items"]
    assert before["bytes"] > 200_000
    assert before["object_bytes"] == 0
    mark = (await cluster("topics.list"))["mark"]
    await cluster("objects.flush", topic="orders")
    with anyio.fail_after(30):  # the broker notes an object's size when it has been committed
        while True:
            (item,) = (await cluster("topics.list"))["items"]
            if item["object_bytes"]:
                break
            await anyio.sleep(0.01)
    described = await cluster("topics.describe", topic="orders")
    assert item["object_bytes"] == sum(
        each["bytes"] for each in (await cluster("objects.list", topic="orders"))["items"]
    )
    assert item["bytes"] == item["object_bytes"] < before["bytes"] / 10
    assert (described["bytes"], described["object_bytes"], described["journal_bytes"]) == (
        item["bytes"], item["object_bytes"], 0,
    )  # fmt: skip
    assert (await cluster.broker.stored_of("default")) == item["bytes"]
    assert (await cluster("topics.list", changed_since=mark))["items"] == [item]
