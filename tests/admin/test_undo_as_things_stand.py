"""An undo is an operation like others: it is judged by what it would do now, and wants a plan where that destroys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydanube import connect

from tests.admin.real_broker import Administered, administered, without_a_cold_tier

pytestmark = pytest.mark.anyio

BILLING = {"topic": "orders", "subscription": "billing"}


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await cluster("topics.create", topic="orders")
        await cluster("subscriptions.create", **BILLING)
        await cluster.publish("orders", *(b"%d" % number for number in range(40)))
        yield cluster


async def unread(cluster: Administered) -> int:
    found = await cluster("subscriptions.lag", **BILLING)
    lag: int = found["items"][0]["lag_messages"]
    return lag


async def plan_of_undo(cluster: Administered, changed: dict[str, Any]) -> dict[str, Any]:
    """The plan that the undo is refused with; it does what it says when it is applied."""
    error = await cluster.refused("changes.undo", call_id=changed["call_id"])
    assert error.code == "PLAN_REQUIRED", error
    plan: dict[str, Any] = error.details["plan"]
    assert (plan["operation"], plan["effect"], plan["reversible"]) == ("changes.undo", "destroy", False)
    assert error.next[0]["arguments"] == {"call_id": changed["call_id"], "plan_token": plan["plan_token"]}
    return plan


@pytest.mark.parametrize("level", ["topics", "namespaces"])
async def test_the_undo_of_a_longer_retention_wants_the_plan_of_a_shorter_one(
    cluster: Administered, level: str
) -> None:
    subject = {"topic": "orders"} if level == "topics" else {"namespace": "default"}
    await cluster.apply(f"{level}.set_policies", **subject, policies={"retention_bytes": 1})
    longer = await cluster(f"{level}.set_policies", **subject, policies={"retention_bytes": 1 << 40})
    plan = await plan_of_undo(cluster, longer)
    assert [(each["before"], each["after"]) for each in plan["diff"]] == [(1 << 40, 1)]
    assert (await cluster(f"{level}.get_policies", **subject))["effective"]["retention_bytes"] == 1 << 40
    await cluster("changes.undo", call_id=longer["call_id"], plan_token=plan["plan_token"])
    assert (await cluster(f"{level}.get_policies", **subject))["effective"]["retention_bytes"] == 1


async def test_the_undo_of_a_moved_cursor_says_what_is_unread_again(cluster: Administered) -> None:
    plan = await cluster("subscriptions.purge", **BILLING, plan_only=True)
    assert (plan["blast_radius"]["messages"], plan["blast_radius"]["bytes"]) == (40, None), (
        "bytes are not counted"
    )
    purged = await cluster("subscriptions.purge", **BILLING, plan_token=plan["plan_token"])
    await cluster.publish("orders", b"later", b"still later")
    back = await cluster("changes.undo", call_id=purged["call_id"], plan_only=True)
    said = [(each["path"].rpartition("/")[2], each["before"], each["after"]) for each in back["diff"]]
    assert said == [("lag_messages", 2, 42)]
    assert back["effect"] == "change"
    assert back["later"].startswith("No unread message is skipped. Messages acknowledged")
    assert (back["blast_radius"]["messages"], back["blast_radius"]["bytes"]) == (0, 0)
    await cluster("changes.undo", call_id=purged["call_id"])
    assert await unread(cluster) == 42
    again = await cluster("subscriptions.seek", **BILLING, to="latest", plan_only=True)
    assert again["later"].startswith("The subscription passes over them. They stay")
    await cluster("subscriptions.seek", **BILLING, to="latest", plan_token=again["plan_token"])
    back = await cluster("subscriptions.seek", **BILLING, to="earliest", plan_only=True)
    assert (back["blast_radius"]["messages"], back["later"][:11]) == (0, "No unread m")


async def test_policies_are_not_put_back_on_another_topic_of_the_name(cluster: Administered) -> None:
    changed = await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 5})
    await cluster.apply("topics.delete", topic="orders")
    await cluster("topics.create", topic="orders", policies={"max_publish_rate": 5})
    assert (await cluster.refused("changes.undo", call_id=changed["call_id"])).code == "NAME_REUSED"


async def test_the_undo_of_a_move_refuses_once_the_cursor_was_moved_again(cluster: Administered) -> None:
    await cluster.apply("subscriptions.skip", **BILLING, count=10)
    first = await cluster.apply("subscriptions.seek", **BILLING, to="latest")
    second = await cluster.apply("subscriptions.seek", **BILLING, to="earliest")
    assert (await cluster.refused("changes.undo", call_id=first["call_id"])).code == "CONFLICT"
    assert await unread(cluster) == 40
    await cluster.apply("changes.undo", call_id=second["call_id"])
    await cluster("changes.undo", call_id=first["call_id"])
    assert await unread(cluster) == 30


async def test_also_when_it_was_moved_forward_or_by_somebody_who_is_not_in_the_records(
    cluster: Administered,
) -> None:
    first = await cluster.apply("subscriptions.skip", **BILLING, count=10)
    await cluster.apply("subscriptions.skip", topic="/default/orders", subscription="billing", count=10)
    assert (await cluster.refused("changes.undo", call_id=first["call_id"])).code == "CONFLICT"
    last = await cluster.apply("subscriptions.purge", **BILLING)
    await cluster.broker.port.seek_subscription("/default/orders", "billing", "offset:5")  # as a client does
    assert (await cluster.refused("changes.undo", call_id=last["call_id"])).code == "CONFLICT"
    assert await unread(cluster) == 35


async def test_an_undo_that_passes_over_unread_messages_wants_a_plan_and_counts_them(
    cluster: Administered,
) -> None:
    await cluster.apply("subscriptions.skip", **BILLING, count=25)
    back = await cluster.apply("subscriptions.seek", **BILLING, to="earliest")
    plan = await plan_of_undo(cluster, back)
    assert plan["blast_radius"]["messages"] == 25
    assert await unread(cluster) == 40
    await cluster("changes.undo", call_id=back["call_id"], plan_token=plan["plan_token"])
    assert await unread(cluster) == 15


async def test_the_undo_of_a_move_does_not_claim_to_bring_back_what_retention_took(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with without_a_cold_tier(monkeypatch) as cluster:
        await cluster("topics.create", topic="orders")
        await cluster.apply("topics.set_policies", topic="orders", policies={"retention_bytes": 1})
        await cluster("subscriptions.create", **BILLING)
        await cluster.publish("orders", *(b"x" for _ in range(30)))
        await cluster.seal()
        await cluster.publish("orders", b"stays")  # retention keeps at least its byte
        await cluster.retain()
        assert await unread(cluster) == 31
        purged = await cluster.apply("subscriptions.purge", **BILLING)
        shown = await cluster("plans.show", plan_id=purged["plan_id"])
        assert "as long as its retention keeps them" in shown["later"]
        await cluster.retain()
        error = await cluster.refused("changes.undo", call_id=purged["call_id"])
        assert (error.code, error.details["missing_messages"]) == ("CONFLICT", 30)
        assert error.next[0]["operation"] == "subscriptions.seek"


async def test_the_undo_of_a_subscription_that_was_used_wants_the_plan_of_its_deletion(
    cluster: Administered,
) -> None:
    made = await cluster("subscriptions.create", topic="orders", subscription="late", start="latest")
    await cluster.publish("orders", *(b"x" for _ in range(40)))
    plan = await plan_of_undo(cluster, made)
    assert (plan["blast_radius"]["subscriptions"], plan["blast_radius"]["messages"]) == (1, 40)
    await cluster.apply("subscriptions.purge", topic="orders", subscription="late")
    await plan_of_undo(cluster, made)  # nothing is unread; where it stands would go
    await cluster.apply("changes.undo", call_id=made["call_id"])
    assert (
        await cluster.refused("subscriptions.lag", topic="orders", subscription="late")
    ).code == "SUBSCRIPTION_NOT_FOUND"


async def test_the_undo_of_a_topic_that_a_producer_uses_is_refused(cluster: Administered) -> None:
    made = await cluster("topics.create", topic="new")
    async with connect(cluster.broker.broker_url) as client, client.producer("new"):
        assert (await cluster.refused("changes.undo", call_id=made["call_id"])).code == "CONFLICT"
    await cluster("changes.undo", call_id=made["call_id"])


async def test_the_undo_of_a_namespace_refuses_once_its_policies_were_changed(cluster: Administered) -> None:
    made = await cluster("namespaces.create", namespace="depot", policies={"max_publish_rate": 5})
    changed = await cluster("namespaces.set_policies", namespace="depot", policies={"max_publish_rate": 6})
    assert (await cluster.refused("changes.undo", call_id=made["call_id"])).code == "CONFLICT"
    await cluster("changes.undo", call_id=changed["call_id"])
    await cluster("changes.undo", call_id=made["call_id"])


async def test_the_undo_of_a_safer_failure_policy_wants_the_plan_of_the_one_that_drops(
    cluster: Administered,
) -> None:
    await cluster.apply("subscriptions.set_failure_policy", **BILLING, poison_policy="drop")
    safer = await cluster("subscriptions.set_failure_policy", **BILLING, poison_policy="dead_letter")
    plan = await plan_of_undo(cluster, safer)
    assert plan["diff"][0]["after"] == "drop"
    await cluster("changes.undo", call_id=safer["call_id"], plan_token=plan["plan_token"])
    assert (await cluster("subscriptions.get_failure_policy", **BILLING))["poison_policy"] == "drop"


async def test_a_plan_of_an_undo_can_be_asked_for_first_and_refuses_as_the_undo_would(
    cluster: Administered,
) -> None:
    deleted = await cluster.apply("subscriptions.delete", **BILLING)
    plan = await cluster("changes.undo", call_id=deleted["call_id"], plan_only=True)
    assert (plan["effect"], plan["diff"][0]["before"]) == ("change", None)
    changed = await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 3})
    await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 4})
    refused = await cluster.refused("changes.undo", call_id=changed["call_id"], plan_only=True)
    assert refused.code == "CONFLICT"
