"""`topics.add_partitions`: what its plan says of keys, who sees the new partitions, and when it is taken back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydanube import connect
from pydanube.routing import fnv1a_64
from pydanube_admin.operations.topic_moves import share_that_moves
from pydanube_core.errors import ClusterError
from pydanube_core.facts import UnusedFacts
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster() -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await cluster("topics.create", topic="clicks", partitions=3)
        yield cluster


def test_the_share_of_keys_that_move_is_that_of_the_hash() -> None:
    keys = [fnv1a_64(f"customer-{number}".encode()) for number in range(20_000)]
    for before, after in ((3, 6), (3, 5), (4, 6), (1, 2), (12, 13)):
        moved = sum(key % before != key % after for key in keys) / len(keys)
        assert share_that_moves(before, after) == pytest.approx(moved, abs=0.02), (before, after)


async def test_the_plan_says_what_becomes_of_keys_and_changes_nothing(cluster: Administered) -> None:
    plan = await cluster("topics.add_partitions", topic="clicks", partitions=6, plan_only=True)
    assert plan["diff"] == [{"path": "topics/default/clicks/partitions", "before": 3, "after": 6}]
    assert plan["reversible"]
    assert plan["later"].startswith("About 50% of keys go to another partition")
    assert (await cluster("topics.describe", topic="clicks"))["partitions"] == 3
    done = await cluster("plans.apply", plan_token=plan["plan_token"])
    assert (done["result"]["added"], done["result"]["keys_that_move"]) == (3, 0.5)
    assert (await cluster("topics.describe", topic="clicks"))["partitions"] == 6
    records = await cluster("audit.query", operation="topics.add_partitions", topic="clicks", hashes=True)
    assert {record["phase"] for record in records["items"]} >= {"call", "outcome"}


async def test_a_plan_is_stale_when_somebody_else_added_meanwhile(cluster: Administered) -> None:
    plan = await cluster("topics.add_partitions", topic="clicks", partitions=6, plan_only=True)
    await cluster("topics.add_partitions", topic="clicks", partitions=4)
    error = await cluster.refused("plans.apply", plan_token=plan["plan_token"])
    assert error.code == "PLAN_STALE"


@pytest.mark.parametrize(
    ("topic", "partitions", "says"),
    [
        ("clicks", 3, "has 3 already"),
        ("clicks", 2, "cannot be removed"),
        ("clicks", 1001, "1000"),
        ("clicks", 1, "2"),
        ("clicks-part-0", 6, "Name the topic, /default/clicks"),
        ("plain", 6, "stays one log"),
        ("nowhere", 6, "there is no topic"),
        ("/system/audit", 6, "system"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_changes(
    cluster: Administered, topic: str, partitions: int, says: str
) -> None:
    await cluster("topics.create", topic="plain")
    error = await cluster.refused("topics.add_partitions", topic=topic, partitions=partitions)
    assert says in error.message
    assert (await cluster("topics.describe", topic="clicks"))["partitions"] == 3


async def test_consumers_that_are_there_join_and_subscriptions_miss_nothing(cluster: Administered) -> None:
    await cluster("subscriptions.create", topic="clicks", subscription="idle", type="shared")
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("clicks", "live", refresh_s=0.1) as consumer,
    ):
        await cluster("topics.add_partitions", topic="clicks", partitions=5)
        async with client.producer("clicks", routing="explicit") as producer:
            assert producer.partitions == 5
            for partition in range(5):
                await producer.send(b"x", partition=partition)
        found = set()
        with anyio.fail_after(30):
            async for message in consumer:
                found.add(message.partition)
                await message.ack()
                if len(found) == 5:
                    break
    lag = (await cluster("subscriptions.lag", topic="clicks", subscription="idle"))["items"]
    assert sorted((item["partition"], item["lag_messages"]) for item in lag) == [(n, 1) for n in range(5)]


async def test_undo_takes_unused_partitions_away_and_the_consumer_goes_on(cluster: Administered) -> None:
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("clicks", "live", refresh_s=0.1) as consumer,
    ):
        done = await cluster("topics.add_partitions", topic="clicks", partitions=5)
        new = cluster.broker.registry.parts(TopicName.parse("clicks-part-4"))[1][0]
        await until(lambda: any(pump.links for pump in new.subscriptions.values()))
        await cluster.apply("changes.undo", call_id=done["call_id"])
        assert (await cluster("topics.describe", topic="clicks"))["partitions"] == 3
        await cluster.publish("clicks", b"after")
        with anyio.fail_after(30):
            assert {(await anext(consumer)).partition for _ in range(3)} == {0, 1, 2}
    done = await cluster("topics.add_partitions", topic="clicks", partitions=5)  # the names are free again
    assert done["added"] == 2


async def test_undo_is_refused_where_something_was_written(cluster: Administered) -> None:
    done = await cluster("topics.add_partitions", topic="clicks", partitions=5)
    async with (
        connect(cluster.broker.broker_url) as client,
        client.producer("clicks", routing="explicit") as producer,
    ):
        error = await cluster.refused("changes.undo", call_id=done["call_id"])
        assert "1 producer is on it" in error.message
        await producer.send(b"x", partition=3)
    error = await cluster.refused("changes.undo", call_id=done["call_id"])
    assert "/default/clicks-part-3 is in use: 1 message was" in error.message
    assert (await cluster("topics.describe", topic="clicks"))["partitions"] == 5


@pytest.mark.parametrize("used", [3, 4])
async def test_an_undo_that_meets_a_producer_takes_no_partition_away(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, used: int
) -> None:
    """The producer comes after the undo has looked, before the partitions are closed."""
    done = await cluster("topics.add_partitions", topic="clicks", partitions=5)
    part = cluster.broker.registry.known(TopicName.parse(f"clicks-part-{used}"))
    unused = cluster.broker.registry.unused
    hold = unused.hold_topic

    def after_a_producer(*args: Any, **named: Any) -> UnusedFacts:
        part.producer_attached()
        return hold(*args, **named)

    monkeypatch.setattr(unused, "hold_topic", after_a_producer)
    error = await cluster.refused("changes.undo", call_id=done["call_id"])
    assert error.code == "CONFLICT"
    assert "1 producer is on it. All partitions stay" in error.message
    topics = cluster.broker.registry.known_parts(TopicName.parse("clicks"))
    assert [topic.closed for topic in topics] == [None] * 5
    part.producer_detached()
    monkeypatch.undo()
    await cluster("changes.undo", call_id=done["call_id"])
    assert (await cluster("topics.describe", topic="clicks"))["partitions"] == 3


@pytest.mark.parametrize("head_start", [0, 1, 3, 10, 30])
async def test_nothing_that_was_acknowledged_goes_with_an_undo(
    cluster: Administered, head_start: int
) -> None:
    """A producer that comes while the partitions are taken away: they stay, or it is refused."""
    done = await cluster("topics.add_partitions", topic="clicks", partitions=4)
    stored: list[int] = []

    async with connect(cluster.broker.broker_url) as client:

        async def publish() -> None:
            with contextlib.suppress(ClusterError):
                async with client.producer("clicks-part-3") as producer:
                    stored.append((await producer.send(b"kept")).offset)

        async with anyio.create_task_group() as group:
            group.start_soon(publish)
            for _ in range(head_start):
                await anyio.lowlevel.checkpoint()
            await cluster.call("changes.undo", {"call_id": done["call_id"]}, "ann")
    parts = (await cluster("topics.describe", topic="clicks"))["parts"]
    assert [part["messages"] for part in parts[3:]] == ([1] if stored else [0] * (len(parts) - 3))


async def test_what_a_crash_left_between_is_finished_at_the_next_start(tmp_path: Path) -> None:
    """Added, and neither served nor subscribed to: their owner makes the subscriptions before it serves them."""
    name = TopicName.parse("clicks")
    async with administered(tmp_path) as cluster:
        await cluster("topics.create", topic="clicks", partitions=3)
        await cluster("subscriptions.create", topic="clicks", subscription="idle", type="shared")
        await cluster.broker.registry.catalog.make_partitions(name, 5)
        assert len(cluster.broker.registry.parts(name)[1]) == 3
    async with administered(tmp_path) as cluster:
        served = cluster.broker.registry.parts(name)[1]
        assert [list(part.subscriptions) for part in served] == [["idle"]] * 5
        async with (
            connect(cluster.broker.broker_url) as client,
            client.producer("clicks") as producer,
        ):
            assert producer.partitions == 5


async def test_two_who_add_at_once_end_with_one_number(cluster: Administered) -> None:
    async with anyio.create_task_group() as group:
        for count in (5, 7, 6):
            group.start_soon(
                cluster.call, "topics.add_partitions", {"topic": "clicks", "partitions": count}, "ann"
            )
    described = await cluster("topics.describe", topic="clicks")
    index = cluster.broker.registry.catalog.index
    parent = index.partitioned(TopicName.parse("clicks"))
    assert parent is not None
    assert described["partitions"] == parent.spec.partitions == len(described["parts"])
    assert described["partitions"] in (5, 6, 7)
