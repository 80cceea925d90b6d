"""`topics.set_durability`: up at once, down by a plan, and what `topics.describe` says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.chain.folder import ChainFile
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


async def test_namespace_decides_the_durability_of_topics_created_without_one(lone: Administered) -> None:
    await lone("topics.create", topic="before")
    given = {"namespace": "default", "policies": {"durability": "stored"}}
    planned = await lone("plans.create", operation="namespaces.set_policies", arguments=given)
    assert [(each["before"], each["after"]) for each in planned["diff"]] == [(None, "stored")]
    assert planned["blast_radius"]["topics"] == 0, "topics that exist keep their durability"
    changed = await lone.apply("namespaces.set_policies", **given)
    assert (changed["policies"], changed["effective"]["durability"]) == ({"durability": "stored"}, "stored")
    assert (await lone("topics.create", topic="orders"))["durability"] == "stored"
    assert (await lone("topics.create", topic="named", durability="fsynced"))["durability"] == "fsynced"
    live = await lone("topics.create", topic="live", dispatch_strategy="non_reliable")
    assert live["durability"] == "memory"
    assert (await lone("topics.describe", topic="before"))["durability"] == "fsynced"
    async with connect(lone.broker.broker_url) as client, client.producer("made-by-a-producer") as producer:
        assert (await producer.send(b"1")).durability == "stored"
    await lone(
        "namespaces.create", namespace="shop", policies={"durability": "fsynced", "max_publish_rate": 9}
    )
    assert (await lone("topics.create", topic="/shop/a"))["durability"] == "fsynced"
    await lone("changes.undo", call_id=changed["call_id"])
    assert (await lone("namespaces.get_policies", namespace="default"))["policies"] == {}
    assert (await lone("topics.create", topic="after"))["durability"] == "fsynced"


@pytest.mark.parametrize(
    ("operation", "arguments", "field"),
    [
        ("topics.set_policies", {"topic": "orders"}, "policies.durability"),
        ("namespaces.set_policies", {"namespace": "default"}, "policies.durability"),
        (
            "namespaces.set_policies",
            {"namespace": "default", "policies": {"durability": 1}},
            "policies.durability",
        ),
        (
            "namespaces.set_policies",
            {"namespace": "default", "policies": {"max_publish_rate": "stored"}},
            "policies.max_publish_rate",
        ),
    ],
)
async def test_policy_durability_names_a_level_and_belongs_to_namespaces(
    lone: Administered, operation: str, arguments: dict[str, Any], field: str
) -> None:
    await lone("topics.create", topic="orders")
    given = {"policies": {"durability": "memory"}, **arguments}
    refused = await lone.refused(operation, **given)
    assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", field)


async def test_start_needs_no_store_once_no_topic_is_stored(lone: Administered) -> None:
    chain, levels = lone.broker.chain, lone.broker.levels
    await lone("topics.create", topic="orders", durability="stored")
    await levels.look_whether_needed()
    assert chain.is_needed
    await lone.apply("topics.set_durability", topic="orders", durability="fsynced")
    await levels.look_whether_needed()
    found = ChainFile.read(lone.broker.journal.folder)
    assert (chain.is_needed, found is not None and found.needed) == (False, False)
    await lone("topics.set_durability", topic="orders", durability="stored")
    assert chain.is_needed
    async with connect(lone.broker.broker_url) as client, client.producer("orders") as producer:
        assert (await producer.send(b"1")).durability == "stored"
    await lone.apply("topics.delete", topic="orders")
    await levels.look_whether_needed()
    assert chain.is_needed, "the topic can be restored"
