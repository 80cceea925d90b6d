"""The largest message that a producer may send, by the roads of the administration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydanube import connect
from pydanube_admin.operations.message_changes import LARGEST_BYTES
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_broker.topics.topic import Topic
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PAYLOAD = "x" * 4_000_000
NAME = "own"
VALUE = "v" * 99_888


@pytest.fixture
async def cluster(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Administered]:
    async with administered(tmp_path / "data") as cluster:
        await cluster("topics.create", topic="t")
        yield cluster


async def test_publish_takes_to_the_byte_what_the_sdk_takes_and_refuses_one_more(
    cluster: Administered,
) -> None:
    limit = min(4_000_000, cluster.broker.settings.topics.max_message_bytes)
    value = "v" * (LARGEST_BYTES - limit - len(NAME) - 4 * 8)
    largest = {"topic": "t", "payload": PAYLOAD[:limit], "attributes": {NAME: value}}
    done = await cluster("messages.publish", **largest)
    refused = await cluster.refused("messages.publish", **largest | {"attributes": {NAME: value + "v"}})
    assert refused.code == "MESSAGE_TOO_LARGE"
    async with (
        connect(cluster.broker.broker_url) as client,
        client.reader("t", start=f"offset:{done['offset']}") as reader,
    ):
        message = await anext(reader)
    assert (len(message.payload), message.attributes) == (limit, {NAME: value})


async def test_the_largest_message_is_dead_lettered_and_replayed_as_it_was(cluster: Administered) -> None:
    await cluster("subscriptions.create", topic="t", subscription="s", type="shared", start="earliest")
    await cluster.apply(
        "subscriptions.set_failure_policy",
        topic="t",
        subscription="s",
        poison_policy="dead_letter",
        max_redelivery_count=0,
    )
    async with connect(cluster.broker.broker_url) as client:
        # Official clients reach this; our SDK keeps 4 KiB of room.
        await append_durably(
            topic_of(cluster), [PAYLOAD.encode()], attributes=[{NAME: VALUE}], producer="p", checked=True
        )
        async with client.consumer("t", "s", type="shared") as consumer:
            for number in range(2):  # what came back is as large, and becomes a dead letter again
                message = await anext(consumer)
                assert (len(message.payload), message.attributes[NAME]) == (4_000_000, VALUE)
                await message.terminate("\N{SNOWMAN}" * 5000)
                await dead_lettered(cluster, number + 1)
                done = await cluster("dead_letters.replay", topic="t", subscription="s", offsets=str(number))
                assert done["messages"] == 1


def topic_of(cluster: Administered) -> Topic:
    topic = cluster.broker.registry.find(TopicName.parse("t"))
    assert topic is not None
    return topic


async def dead_lettered(cluster: Administered, count: int) -> None:
    pump = topic_of(cluster).subscriptions["s"]
    await until(lambda: pump.statistics().dead_lettered >= count)
