"""`topics.set_durability`: up at once, down by a plan, and what `topics.describe` says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from pydanube import connect
from pydanube_broker.topics.topic import Topic

from tests.admin.real_broker import Administered, administered
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


@pytest.fixture
async def lone(one_loop: object, tmp_path: Path) -> AsyncIterator[Administered]:
    async with administered(tmp_path / "data", **{"journal.stored_linger": "20ms"}) as cluster:
        yield cluster


def served(cluster: Administered) -> list[Topic]:
    return [topic for topic in cluster.broker.registry.topics if not topic.is_system]


async def test_topic_is_raised_and_lowered_and_receipts_follow(lone: Administered) -> None:
    await lone("topics.create", topic="orders")
    before = await lone("topics.describe", topic="orders")
    assert (before["stored_until"], before["stored_until_reason"]) == (None, "not_copied")
    async with connect(lone.broker.broker_url) as client, client.producer("orders") as producer:
        assert (await producer.send(b"1")).durability == "fsynced"

        raised = await lone("topics.set_durability", topic="orders", durability="stored")
        assert (raised["durability"], raised["reached"]) == ("stored", True)
        await producer.send(b"2")
        (topic,) = served(lone)
        assert topic.in_store
        found = await lone("topics.describe", topic="orders")
        assert (found["durability"], found["stored_until"], found["next_offset"]) == ("stored", 2, 2)
        assert found["requests_per_hour"] > 0
        assert found["bytes_per_hour"] > 0

        refused = await lone.refused("topics.set_durability", topic="orders", durability="fsynced")
        assert refused.code == "PLAN_REQUIRED"
        lowered = await lone.apply("topics.set_durability", topic="orders", durability="fsynced")
        assert (lowered["durability"], lowered["reached"]) == ("fsynced", True)
        assert not topic.in_store
        with anyio.fail_after(30):
            assert (await producer.send(b"3")).durability == "fsynced", "it has connected again"
    await lone("changes.undo", call_id=lowered["call_id"])
    await until(lambda: topic.in_store)
    async with connect(lone.broker.broker_url) as client, client.producer("orders") as producer:
        assert (await producer.send(b"4")).durability == "stored"
    assert await lone.payloads("orders") == [b"1", b"2", b"3", b"4"]


async def test_partitions_follow_their_topic(lone: Administered) -> None:
    await lone("topics.create", topic="clicks", partitions=2, durability="stored")
    await lone.apply("topics.set_durability", topic="clicks", durability="fsynced")
    assert {part.durability for part in served(lone)} == {"fsynced"}
    refused = await lone.refused("topics.set_durability", topic="clicks-part-0", durability="stored")
    assert refused.code == "INVALID_ARGUMENT"
    await lone("topics.set_durability", topic="clicks", durability="stored")
    assert {part.durability for part in served(lone)} == {"stored"}
    await lone("topics.create", topic="live", dispatch_strategy="non_reliable")
    refused = await lone.refused("topics.set_durability", topic="live", durability="stored")
    assert refused.code == "INVALID_ARGUMENT"
