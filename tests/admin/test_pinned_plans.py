"""A plan does what it showed, and stays good while producers and consumers come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube import Client, connect
from pydanube_admin.engine import forecast
from pydanube_admin.operations import cursor_moves
from pydanube_admin.operations.cursor_moves import shown_ranges
from pydanube_admin.operations.offset_ranges import ranges_of_text
from pydanube_broker.serving.administration import Administration
from pydanube_core.errors import InvalidArgument

from tests.admin.real_broker import Administered, administered
from tests.support.messages import take

pytestmark = pytest.mark.anyio

OF = {"topic": "orders", "subscription": "billing"}
PLANNED: dict[str, dict[str, Any]] = {
    "subscriptions.seek": {**OF, "to": "latest"},
    "subscriptions.skip": {**OF, "count": 3},
    "subscriptions.purge": OF,
    "subscriptions.delete": OF,
    "topics.truncate": {"topic": "orders", "before": "latest"},
    "topics.replay": {"topic": "orders", "from": "earliest", "to": "orders-again"},
    "namespaces.set_policies": {"namespace": "default", "policies": {"max_publish_rate": 1000}},
    "topics.set_policies": {"topic": "orders", "policies": {"max_publish_rate": 1000}},
    "subscriptions.set_failure_policy": {**OF, "max_redelivery_count": 3},
    "topics.add_partitions": {"topic": "/default/wide", "partitions": 4},
    "quotas.set": {"namespace": "default", "limits": {"bytes_in_per_s": 1_000_000}},
    "subscriptions.create": {"topic": "orders", "subscription": "new", "type": "shared"},
    "messages.publish": {"topic": "orders", "payload": "one"},
}


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await cluster("topics.create", topic="orders")
        await cluster("topics.create", topic="wide", partitions=2)
        await cluster("subscriptions.create", **OF, type="shared", start="earliest")
        await cluster.publish("orders", *(b"%d" % n for n in range(10)))
        yield cluster


async def publish(client: Client, count: int) -> None:
    """A producer that comes and goes."""
    async with client.producer("orders") as producer:
        for n in range(count):
            producer.send_nowait(b"later %d" % n)
        await producer.flush()


async def consume(client: Client, count: int) -> None:
    """A consumer that comes and goes."""
    async with client.consumer("orders", "billing", type="shared") as consumer:
        for message in await take(consumer, count):
            await message.ack()
        await consumer.flush_acks()


@pytest.mark.parametrize("operation", PLANNED)
async def test_a_plan_is_applied_whatever_clients_do_meanwhile(cluster: Administered, operation: str) -> None:
    arguments = PLANNED[operation]
    plan = await cluster(operation, **arguments, plan_only=True)
    async with connect(cluster.broker.broker_url) as client:
        await publish(client, 5)
        await consume(client, 2)
        async with client.producer("orders"), client.consumer("orders", "billing", type="shared"):
            if operation == "namespaces.set_policies":
                await cluster("topics.create", topic="made-meanwhile")
            done = await cluster(operation, **arguments, plan_token=plan["plan_token"])
    assert done["call_id"]
    described = await cluster("topics.describe", topic="orders")
    if operation == "subscriptions.delete":
        return
    (lag,) = (await cluster("subscriptions.lag", **OF))["items"]
    match operation:
        case "subscriptions.seek":
            assert (plan["pinned"]["targets"], lag["next_unacked"]) == ({"/default/orders": 10}, 10)
        case "subscriptions.skip":
            assert plan["pinned"]["ranges"] == [[0, 3]]
            assert "0-2" in [each["after"] for each in plan["diff"]]
            assert (lag["next_unacked"], done["skipped_messages"]) == (3, 1)
        case "subscriptions.purge":
            assert (lag["next_unacked"], lag["lag_messages"]) == (10, 5)
        case "topics.truncate":
            assert (described["start_offset"], described["next_offset"]) == (10, 15)
        case "topics.replay":
            assert (await cluster("topics.describe", topic="orders-again"))["next_offset"] == 10
        case _:
            pass


async def test_a_cursor_that_was_moved_since_makes_a_plan_stale_which_names_the_call(
    cluster: Administered,
) -> None:
    plan = await cluster("subscriptions.skip", **OF, count=3, plan_only=True)
    moved = await cluster.apply("subscriptions.seek", **OF, to="offset:5")
    refused = await cluster.refused("subscriptions.skip", **OF, count=3, plan_token=plan["plan_token"])
    assert refused.code == "PLAN_STALE"
    assert [each["call_id"] for each in refused.details["changed"]] == [moved["call_id"]] * len(
        refused.details["changed"]
    )
    assert refused.details["plan"]["pinned"]["ranges"] == [[5, 8]]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("by_client", [False, True])
async def test_a_cursor_that_was_moved_back_makes_the_plan_of_its_deletion_stale(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, quiet: bool, by_client: bool
) -> None:
    """A plan that showed no loss was applied, and lost all that a seek had brought back."""
    of = {"topic": "orders", "subscription": "late"}
    await cluster("subscriptions.create", **of, type="shared", start="latest")
    if quiet:
        monkeypatch.setattr(forecast, "LIVE_MS", 0)
    plan = await cluster("subscriptions.delete", **of, plan_only=True)
    assert plan["blast_radius"]["messages"] == 0
    assert plan["was_live"] is not quiet
    if by_client:
        async with (
            connect(cluster.broker.broker_url) as client,
            client.consumer("orders", "late", type="shared") as consumer,
        ):
            await consumer.seek("earliest")
    else:
        await cluster.apply("subscriptions.seek", **of, to="earliest")
    refused = await cluster.refused("subscriptions.delete", **of, plan_token=plan["plan_token"])
    assert refused.code == "PLAN_STALE"
    assert refused.details["plan"]["blast_radius"]["messages"] == 10


async def test_a_revocation_ends_when_its_plan_showed(cluster: Administered) -> None:
    """A length counted from when the plan was applied."""
    call = {"kind": "jti", "value": "4711", "expires": "30d"}
    plan = await cluster("revocations.create", **call, plan_only=True)
    made = await cluster("revocations.create", **call, plan_token=plan["plan_token"])
    assert made["expires_at"] == plan["diff"][0]["after"]["expires_at"]
    assert made["created_at"] >= plan["as_of"]


async def test_one_offset_is_skipped_and_the_others_stay(cluster: Administered) -> None:
    plan = await cluster("subscriptions.skip", **OF, offsets="4,6-7", plan_only=True)
    assert "4,6-7" in [each["after"] for each in plan["diff"]]
    done = await cluster("subscriptions.skip", **OF, offsets="4,6-7", plan_token=plan["plan_token"])
    assert done["skipped_messages"] == 3
    plan = await cluster("subscriptions.skip", **OF, offsets="4,6-7", plan_only=True)
    assert plan["later"] == "No unread message is there: nothing would change"
    plan = await cluster("subscriptions.skip", **OF, offsets="50-60", plan_only=True)
    assert plan["later"] == "No unread message is there: nothing would change"
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("orders", "billing", type="shared") as consumer,
    ):
        assert [message.offset for message in await take(consumer, 7)] == [0, 1, 2, 3, 5, 8, 9]
    await cluster("changes.undo", call_id=done["call_id"])
    (lag,) = (await cluster("subscriptions.lag", **OF))["items"]
    assert lag["lag_messages"] == 10
    for arguments in ({}, {"count": 1, "offsets": "3"}, {"offsets": "3-1"}):
        assert (await cluster.refused("subscriptions.skip", **OF, **arguments)).code == "INVALID_ARGUMENT"


async def test_a_skip_counts_what_is_there_and_not_acknowledged(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged offsets, repeated ones and those of no message were counted as lost."""
    monkeypatch.setattr(cursor_moves, "MOST_AT_ONCE", 2)
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("orders", "billing", type="shared") as consumer,
    ):
        for message in await take(consumer, 10):
            if message.offset in (4, 5, 7):
                await message.ack()
        await consumer.flush_acks()
    for offsets, messages, shown in (
        ("4-5", 0, "4-5"),
        ("3-6", 2, "3-6"),
        ("3,3,2-3", 2, "2-3"),
        ("9-1000000000", 1, "9"),
        ("10-20", 0, None),
        ("0-9", 7, "0-9"),
    ):
        plan = await cluster("subscriptions.skip", **OF, offsets=offsets, plan_only=True)
        (lag, *named) = plan["diff"]
        assert (lag["before"], lag["after"], plan["blast_radius"]["messages"]) == (7, 7 - messages, messages)
        assert [each["after"] for each in named] == ([] if shown is None else [shown])
    plan = await cluster("subscriptions.seek", **OF, to="offset:6", plan_only=True)
    assert plan["blast_radius"]["messages"] == 4, "0 to 3; of 6 to 9 one is acknowledged"
    plan = await cluster("subscriptions.purge", **OF, plan_only=True)
    assert plan["blast_radius"]["messages"] == 7
    plan = await cluster("subscriptions.skip", **OF, offsets="9-1000000000", plan_only=True)
    async with connect(cluster.broker.broker_url) as client:
        await publish(client, 5)
    done = await cluster("subscriptions.skip", **OF, offsets="9-1000000000", plan_token=plan["plan_token"])
    assert done["skipped_messages"] == 1


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_plan_asks_once_however_many_messages_it_passes_over(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """One call for each 10 000 offsets, none of which suspended, stopped the broker for longer than a lease lasts."""
    asked: list[str] = []
    counted = Administration.count_unacknowledged

    async def one_by_one(self: Administration, topic: str, subscription: str, offsets: Sequence[int]) -> Any:
        asked.append("offsets")
        return self._reliable(topic, subscription).unacknowledged(offsets)

    async def in_ranges(self: Administration, topic: str, subscription: str, ranges: Any) -> int:
        asked.append("ranges")
        if earlier:
            raise InvalidArgument("'count_unacknowledged' is not sent to other brokers", field="operation")
        return await counted(self, topic, subscription, ranges)

    monkeypatch.setattr(Administration, "unacknowledged", one_by_one)
    monkeypatch.setattr(Administration, "count_unacknowledged", in_ranges)
    monkeypatch.setattr(cursor_moves, "MOST_AT_ONCE", 2)
    await cluster.apply("subscriptions.skip", **OF, offsets="9")
    asked.clear()
    plan = await cluster("subscriptions.skip", **OF, offsets="1-9", plan_only=True)
    assert plan["blast_radius"]["messages"] == 8
    assert asked == ["ranges"] + ["offsets"] * (5 if earlier else 0)
    asked.clear()
    for name, arguments in (("purge", {}), ("seek", {"to": "latest"}), ("skip", {"offsets": "0-9"})):
        plan = await cluster(f"subscriptions.{name}", **OF, **arguments, plan_only=True)
        assert plan["blast_radius"]["messages"] == 9
    assert asked == [], "of all messages the lag is known"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=8))
def test_offsets_are_read_as_they_are_shown(runs: list[tuple[int, int]]) -> None:
    ranges = [(start, start + length) for start, length in runs]
    assert ranges_of_text(shown_ranges(ranges, 0)) == ranges
