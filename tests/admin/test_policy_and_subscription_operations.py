"""Policies, namespaces and changes of subscriptions, as the broker calls them (docs/interface.md#6-operations)."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.models import Change, Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError, PlanRequired

from tests.admin.real_broker import Administered

pytestmark = pytest.mark.anyio


async def result(core: AdminCore, operation: str, *, over: str = "cli", **arguments: Any) -> dict[str, Any]:
    outcome = await core.call(operation, arguments, principal="tester@here", face=over)
    if isinstance(outcome, PlanRequired):  # as a command line does with --yes
        token = outcome.details["plan"]["plan_token"]
        outcome = await core.call(
            operation, {**arguments, "plan_token": token}, principal="tester@here", face=over
        )
    assert not isinstance(outcome, ClusterError), outcome
    return outcome.model_dump(mode="json", by_alias=True)


def without_call(changed: dict[str, Any]) -> dict[str, Any]:
    """The result of a change without what is about the call."""
    return {name: value for name, value in changed.items() if name not in Change.model_fields}


async def refusal(core: AdminCore, operation: str, *, over: str = "cli", **arguments: Any) -> ClusterError:
    outcome = await core.call(operation, arguments, principal="tester@here", face=over)
    assert isinstance(outcome, ClusterError), outcome
    return outcome


async def test_policies_of_a_topic_show_what_is_set_and_what_holds(core: AdminCore) -> None:
    await result(core, "namespaces.set_policies", namespace="default", policies={"max_message_size": 500})
    changed = await result(core, "topics.set_policies", topic="orders", policies={"max_publish_rate": 10})
    assert changed["topic"] == "/default/orders"
    assert changed["policies"] == {"max_publish_rate": 10}
    assert (changed["effective"]["max_publish_rate"], changed["effective"]["max_message_size"]) == (10, 500)
    cleared = await result(core, "topics.set_policies", topic="orders", policies={"max_publish_rate": None})
    assert cleared["policies"] == {}
    assert await result(core, "topics.get_policies", topic="orders") == without_call(cleared)


@pytest.mark.parametrize(
    ("policies", "field"),
    [
        ({}, "policies"),
        ({"max_publish": 1}, "policies.max_publish"),
        ({"max_publish_rate": -1}, "policies.max_publish_rate"),
        ({"max_publish_rate": "10"}, "policies.max_publish_rate"),
        ({"max_publish_rate": True}, "policies.max_publish_rate"),
        (7, "policies"),
    ],
)
async def test_policies_that_are_none_are_refused_by_field(
    core: AdminCore, policies: Any, field: str
) -> None:
    error = await refusal(core, "topics.set_policies", topic="orders", policies=policies)
    assert (error.code, error.details["field"]) == ("INVALID_ARGUMENT", field)


async def test_policies_are_not_set_on_a_single_partition(core: AdminCore) -> None:
    error = await refusal(
        core, "topics.set_policies", topic="/shop/clicks-part-1", policies={"max_publish_rate": 1}
    )
    assert (error.code, error.details["field"]) == ("INVALID_ARGUMENT", "topic")
    assert error.next[0]["arguments"] == {"topic": "/shop/clicks"}


async def test_namespaces_are_created_and_listed_with_their_topics(core: AdminCore) -> None:
    made = await result(core, "namespaces.create", namespace="depot", policies={"max_consumers_per_topic": 3})
    assert made["policies"] == {"max_consumers_per_topic": 3}
    listed = await result(core, "namespaces.list")
    assert [(item["namespace"], item["topics"]) for item in listed["items"]] == [
        ("default", 1),
        ("depot", 0),
        ("shop", 1),
        ("system", 1),
    ]
    assert (await refusal(core, "namespaces.create", namespace="depot")).code == "ALREADY_EXISTS"
    missing = await refusal(core, "namespaces.get_policies", namespace="depo")
    assert missing.code == "NAMESPACE_NOT_FOUND"
    assert missing.details["did_you_mean"] == ["depot"]


async def test_a_subscription_is_created_with_type_and_start(core: AdminCore) -> None:
    made = await result(
        core, "subscriptions.create", topic="/shop/clicks", subscription="late", type="shared", start="latest"
    )
    assert without_call(made) == {
        "topic": "/shop/clicks",
        "subscription": "late",
        "type": "shared",
        "partitions": 3,
        "lag_messages": 0,
    }
    again = await refusal(core, "subscriptions.create", topic="/shop/clicks", subscription="late")
    assert (again.code, again.next[0]["operation"]) == ("ALREADY_EXISTS", "subscriptions.lag")


async def test_seek_says_where_every_partition_stands(core: AdminCore) -> None:
    moved = await result(core, "subscriptions.seek", topic="/shop/clicks", subscription="stats", to="latest")
    assert moved["skipped_messages"] == 27
    assert [(place["partition"], place["next_unacked"]) for place in moved["cursors"]] == [
        (0, 10),
        (1, 10),
        (2, 10),
    ]
    back = await result(core, "subscriptions.seek", topic="/shop/clicks", subscription="stats", to="offset:4")
    assert back["skipped_messages"] == 0
    assert [place["lag_messages"] for place in back["cursors"]] == [6, 6, 6]


async def test_a_preview_of_seek_counts_what_would_be_passed_over_and_moves_nothing(core: AdminCore) -> None:
    preview = await result(
        core, "subscriptions.seek", topic="orders", subscription="billing", to="offset:480", plan_only=True
    )
    assert preview["blast_radius"]["messages"] == 15  # of 35 unacknowledged, 20 lie at or above 480
    assert preview["diff"] == [
        {"path": "topics/default/orders/subscriptions/billing/cursor", "before": 460, "after": 480}
    ]
    back = await result(
        core, "subscriptions.seek", topic="orders", subscription="billing", to="earliest", plan_only=True
    )
    assert back["blast_radius"]["messages"] == 0
    lag = await result(core, "subscriptions.lag", topic="orders", subscription="billing")
    assert lag["items"][0]["next_unacked"] == 460


async def test_skip_and_purge_acknowledge_unread(core: AdminCore) -> None:
    skipped = await result(core, "subscriptions.skip", topic="orders", subscription="billing", count=5)
    assert skipped["cursors"][0]["next_unacked"] == 465
    preview = await result(
        core, "subscriptions.purge", topic="orders", subscription="billing", plan_only=True
    )
    assert preview["blast_radius"]["messages"] == 30  # 35 are left, five of them acknowledged already
    purged = await result(core, "subscriptions.purge", topic="orders", subscription="billing")
    assert (purged["skipped_messages"], purged["cursors"][0]["lag_messages"]) == (30, 0)


async def test_skip_wants_one_partition(core: AdminCore) -> None:
    error = await refusal(core, "subscriptions.skip", topic="/shop/clicks", subscription="stats", count=1)
    assert (error.code, error.details["field"]) == ("INVALID_ARGUMENT", "topic")
    one = await result(core, "subscriptions.skip", topic="/shop/clicks-part-0", subscription="stats", count=1)
    assert one["skipped_messages"] == 1


async def test_deletion_tells_what_goes_and_it_is_gone(core: AdminCore) -> None:
    arguments = {"topic": "orders", "subscription": "billing"}
    preview = await result(core, "subscriptions.delete", **arguments, plan_only=True)
    assert preview["blast_radius"] == {
        "topics": 0,
        "subscriptions": 1,
        "consumers": 1,
        "messages": 35,
        "bytes": None,  # nobody has counted them
    }
    gone = await result(core, "subscriptions.delete", **arguments)
    assert (gone["lag_messages"], gone["consumers"]) == (35, 1)
    assert (await refusal(core, "subscriptions.delete", **arguments)).code == "SUBSCRIPTION_NOT_FOUND"


async def test_the_failure_policy_changes_by_field(core: AdminCore) -> None:
    arguments = {"topic": "orders", "subscription": "billing"}
    before = await result(core, "subscriptions.get_failure_policy", **arguments)
    assert (before["poison_policy"], before["dead_letter_topic"]) == ("block", None)
    preview = await result(
        core, "subscriptions.set_failure_policy", **arguments, poison_policy="drop", plan_only=True
    )
    assert preview["diff"][0]["after"] == "drop"
    after = await result(
        core, "subscriptions.set_failure_policy", **arguments, poison_policy="dead_letter", ack_timeout_ms=0
    )
    assert without_call(after) == before | {
        "poison_policy": "dead_letter",
        "ack_timeout_ms": 0,
        "dead_letter_topic": "/default/orders-dlq-billing",
    }
    assert (await refusal(core, "subscriptions.set_failure_policy", **arguments)).code == "INVALID_ARGUMENT"


async def made_for(core: AdminCore, name: str) -> dict[str, Any]:
    """The arguments of an operation's example, about things that are there."""
    arguments = dict(OPERATIONS[name].examples[0].arguments)
    match name:
        case "namespaces.delete":
            arguments["namespace"] = "depot"
            await result(core, "namespaces.create", namespace="depot")
        case "namespaces.create":
            arguments["namespace"] = "shed"
        case "topics.add_partitions":
            arguments["topic"] = "/shop/clicks"
        case "roles.delete" | "bindings.delete" | "revocations.delete":
            maker = name.replace("delete", "create")
            made = await result(core, maker, **OPERATIONS[maker].examples[0].arguments)
            arguments |= {"revocation": made["revocation"]} if name == "revocations.delete" else {}
        case "tokens.rotate" | "tokens.revoke":
            arguments["token_id"] = (await result(core, "tokens.create", name="t"))["token_id"]
        case _ if name.startswith("connectors.") and name != "connectors.create":
            known = [each["connector"] for each in (await result(core, "connectors.list"))["items"]]
            if arguments["connector"] not in known:
                await result(
                    core, "connectors.create", **OPERATIONS["connectors.create"].examples[0].arguments
                )
        case _ if name.startswith("links.") and name not in ("links.create", "links.reopen"):
            known = [each["link"] for each in (await result(core, "links.list"))["items"]]
            if arguments["link"] not in known:
                await result(core, "links.create", **OPERATIONS["links.create"].examples[0].arguments)
        case _ if "namespace" in arguments:
            arguments["namespace"] = "default"
    return arguments


async def test_every_change_can_be_looked_at_first(core: AdminCore, cluster: Administered) -> None:
    names = [
        name
        for name, each in OPERATIONS.items()
        if each.planned
        and name
        not in (
            "topics.create",
            "subscriptions.create",
            "changes.undo",
            "tasks.cancel",
            "dead_letters.replay",
        )
        and not name.endswith(
            (
                ".disconnect",
                ".unload",
                ".move",
                ".rebalance",
                "brokers.remove",
                ".take_over",
                ".fail_over",
                ".reopen",
                "_offsets",
            )
        )  # of things that do not exist here, or have not run
        and not each.handler.__module__.endswith(
            ".schema_changes"
        )  # over a broker, which has a registry: test_schema_operations.py
    ]
    for name in names:
        arguments = await made_for(core, name)
        if "broker_id" in arguments:
            arguments["broker_id"] = cluster.broker_id
        preview = await result(core, name, **arguments, plan_only=True)
        assert (preview["operation"], preview["effect"]) == (name, OPERATIONS[name].effect.value)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, operation in OPERATIONS.items()
        if operation.effect is Effect.DESTROY and operation.planned
    ],
)
async def test_what_destroys_wants_a_plan_on_every_face(core: AdminCore, name: str) -> None:
    if name.startswith("schemas.") or name in ("brokers.remove", "topics.take_over"):
        return  # over a broker, which has a registry; over several
    if name.endswith(("_offsets", ".fail_over", ".reopen")):
        return  # of a connector that has run: tests/connect/test_workers.py; of mirrors: tests/broker/links
    arguments = await made_for(core, name)
    for face in ("cli", "mcp", "jsonrpc"):
        error = await refusal(core, name, over=face, **arguments)
        assert error.code == "PLAN_REQUIRED"
        plan = error.details["plan"]
        assert error.next[0]["arguments"] == {**arguments, "plan_token": plan["plan_token"]}
