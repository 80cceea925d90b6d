"""`cluster.what_if`: what it computes, recomputed here from plans, states and what was really published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from pydanube import connect
from pydanube_admin.operations.what_if import compression_of, with_load
from pydanube_core.facts import JUMP, TopicFacts
from pydanube_core.projection import Pace

from tests.admin.real_broker import Administered, administered
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        async with connect(cluster.broker.broker_url) as client:
            async with client.producer("orders") as producer:
                await producer.send_many([b"x" * 100] * 50)
            async with client.consumer("orders", "billing", start="earliest") as consumer:
                async for message in consumer:
                    await message.ack()
                    if message.offset == 9:
                        break
                await consumer.flush_acks()
        yield cluster


async def test_a_deletion_comes_to_what_its_plan_says(cluster: Administered) -> None:
    await cluster("topics.create", topic="dead")
    await cluster(
        "subscriptions.set_failure_policy",
        topic="orders",
        subscription="billing",
        poison_policy="dead_letter",
        dead_letter_topic="/default/dead",
    )
    found = await cluster("cluster.what_if", scenario="topic_deleted", topic="orders")
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    radius = plan["blast_radius"]
    outcome = found["outcome"]
    assert (outcome["messages"], outcome["bytes"], outcome["subscriptions"]) == (
        radius["messages"],
        radius["bytes"],
        radius["subscriptions"],
    )
    assert outcome["unread_messages"] == {"billing": 40}
    assert found["next"][0]["operation"] == "topics.delete"
    named = (await cluster("cluster.what_if", scenario="topic_deleted", topic="dead"))["outcome"]["named_by"]
    assert named == [{"kind": "dead_letters", "name": "/default/orders billing"}]
    assert min(len(found["assumptions"]), len(found["unknown"])) > 0


async def test_a_retention_comes_to_what_its_plan_says(cluster: Administered) -> None:
    policies = {"retention_offset": 20, "drop_unread": 1}
    found = await cluster("cluster.what_if", scenario="retention", topic="orders", policies=policies)
    plan = await cluster("topics.set_policies", topic="orders", policies=policies, plan_only=True)
    assert found["outcome"]["deleted_messages"] == plan["blast_radius"]["messages"]
    assert found["outcome"]["deleted_bytes"] == plan["blast_radius"]["bytes"]
    assert (await cluster("topics.describe", topic="orders"))["messages"] == 50  # nothing was done
    for wrong in ({"retention_age": 3}, {"retention_age": "1h"}):  # the name is wrong, whatever the value
        error = await cluster.refused("cluster.what_if", scenario="retention", topic="orders", policies=wrong)
        assert error.code == "INVALID_ARGUMENT"
        assert "policies has no 'retention_age'; did you mean 'retention_age_s'" in error.message


async def test_each_scenario_lists_what_it_assumes_and_does_not_know(cluster: Administered) -> None:
    await cluster("topics.set_policies", topic="orders", policies={"max_consumers_per_subscription": 3})
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"scenario": "load", "topic": "orders"}, "no quota slows producers", "processors and network"),
        (
            {"scenario": "retention", "topic": "orders", "policies": {"retention_age_s": 60}},
            "a message takes as many bytes in an object as in the journal",
            "compression",
        ),
        (
            {"scenario": "consumers", "topic": "orders", "subscription": "billing", "factor": 9},
            "max_consumers_per_subscription allows 3: further consumers are refused",
            None,
        ),
    ]
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("orders", "billing", type="exclusive"),
    ):
        for given, assumed, unknown in cases:
            found = await cluster("cluster.what_if", **given)
            assert assumed in found["assumptions"]
            assert unknown in {None, *(each["what"] for each in found["unknown"])}


async def test_load_says_that_stored_bytes_are_compressed_already(tmp_path: Path) -> None:
    """Compression was not named, so a reader could divide by it once more."""
    async with administered(tmp_path, **{"balance.interval": "100ms"}) as kept:

        async def measured() -> bool:
            return bool((await kept("cluster.what_if", scenario="load"))["outcome"]["disks"])

        await until(measured)
        found = await kept("cluster.what_if", scenario="load")
        assert any("after the producers' compression" in each for each in found["assumptions"])


@pytest.mark.parametrize(
    ("tiered_offset", "object_bytes", "journal_bytes", "expected"),
    [(80, 400, 1000, 0.1), (None, 0, 5000, None), (100, 500, 0, None)],
)
async def test_compression_compares_a_message_in_objects_with_one_in_the_journal(
    tiered_offset: int | None, object_bytes: int, journal_bytes: int, expected: float | None
) -> None:
    """It was the objects' bytes divided by themselves: always 1."""
    log = SimpleNamespace(
        start_offset=0,
        next_offset=100,
        tiered_offset=tiered_offset,
        object_bytes=object_bytes,
        journal_bytes=journal_bytes,
    )
    assert compression_of([cast("TopicFacts", log)]) == expected


@pytest.mark.parametrize("tiered_offset", [10, JUMP + 50, 5_000])
async def test_compression_is_unknown_where_offsets_do_not_count_messages(tiered_offset: int) -> None:
    """Behind a lossy take-over it was 0, or 2 147 484: offsets are skipped in the journal, or in objects."""
    gap = 0 if tiered_offset == 5_000 else JUMP
    log = SimpleNamespace(
        start_offset=0,
        next_offset=gap + 10_000,
        tiered_offset=tiered_offset,
        object_bytes=1 if gap == 0 else 1_000,
        journal_bytes=1_000_000,
    )
    assert compression_of([cast("TopicFacts", log)]) is None


async def test_consumers_of_an_exclusive_subscription_do_not_add_up(cluster: Administered) -> None:
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("orders", "billing", type="exclusive"),
    ):
        found = await cluster(
            "cluster.what_if", scenario="consumers", topic="orders", subscription="billing", factor=4
        )
    outcome = found["outcome"]
    assert (outcome["consumers"], outcome["consumers_then"], outcome["working_then"]) == (1, 4, 1)
    assert "exclusive: one consumer works, the others do not" in found["assumptions"]
    error = await cluster.refused("cluster.what_if", scenario="consumers", topic="orders", subscription="no")
    assert error.code == "SUBSCRIPTION_NOT_FOUND"
    error = await cluster.refused("cluster.what_if", scenario="consumers", topic="orders")
    assert error.details["field"] == "subscription"


async def test_load_names_the_paces_that_it_has_measured(cluster: Administered) -> None:
    async with connect(cluster.broker.broker_url) as client, client.producer("orders") as producer:
        with anyio.fail_after(60):

            async def observed() -> bool:
                await producer.send(b"x" * 100)
                found = await cluster("cluster.what_if", scenario="load", topic="orders", factor=3)
                return "billing" in found["outcome"]["subscriptions"]

            await until(observed)
    found = await cluster("cluster.what_if", scenario="load", topic="orders", factor=3)
    billing = found["outcome"]["subscriptions"]["billing"]
    now, then = billing["now"], billing["then"]
    assert then["produced_per_s"] == pytest.approx(3 * now["produced_per_s"], abs=0.01)
    assert now["lag_grows_per_s"] == pytest.approx(
        now["produced_per_s"] - now["acknowledged_per_s"], abs=0.01
    )
    assert now["drains_in_s"] is None  # nobody acknowledges


def test_consumers_that_keep_up_are_not_said_to_fall_behind_with_more_load() -> None:
    """Their lag grew by all of the added messages, as if they had been seen at their best."""
    keeps_up = Pace(produced=10.0, consumed=10.0, lag_messages=0)
    assert with_load(keeps_up, 3) == {
        "produced_per_s": 30.0,
        "acknowledged_per_s": None,
        "lag_grows_per_s": None,
        "drains_in_s": None,
    }
    assert with_load(keeps_up, 1)["lag_grows_per_s"] == 0.0
    behind = Pace(produced=10.0, consumed=8.0, lag_messages=500)
    assert with_load(behind, 3)["lag_grows_per_s"] == 22.0


async def test_a_lost_broker_comes_to_what_may_stop_says(cluster: Administered) -> None:
    found = await cluster("cluster.what_if", scenario="broker_lost")
    stop = await cluster("brokers.may_stop")
    for field in ("would_wait", "would_be_taken_over", "would_lose"):
        if field != "would_lose" or stop[field] is None:
            assert found["outcome"][field] == stop[field]
