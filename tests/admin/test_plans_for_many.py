"""The same change of many topics: one plan, one token, and each topic with a record and an undo of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydanube_admin.engine.many_plans import MOST

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_topic

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        for name, messages in (("test-a", 3), ("test-b", 4), ("old", 5), ("orders", 6)):
            await add_topic(cluster, f"/default/{name}", messages=messages)
        yield cluster


async def topics(cluster: Administered) -> list[str]:
    return [item["topic"] for item in (await cluster("topics.list"))["items"]]


async def test_a_glob_is_one_plan_with_one_token(cluster: Administered) -> None:
    plan = await cluster("plans.create", operation="topics.delete", topics="test-*,old")
    assert (plan["operation"], plan["effect"], plan["reversible"]) == ("topics.delete", "destroy", True)
    assert plan["arguments"] == {"topics": ["/default/old", "/default/test-a", "/default/test-b"]}
    assert (plan["blast_radius"]["topics"], plan["blast_radius"]["messages"]) == (3, 12)
    assert len(plan["diff"]) == 3
    assert len(await topics(cluster)) == 4, "nothing has changed"
    shown = await cluster("plans.show", plan_id=plan["plan_id"])
    assert shown["diff"] == plan["diff"]
    done = await cluster("plans.apply", plan_token=plan["plan_token"])
    assert [each["topic"] for each in done["result"]["changed"]] == plan["arguments"]["topics"]
    assert done["result"]["failed"] == []
    assert await topics(cluster) == ["/default/orders"]
    assert (await cluster.refused("plans.apply", plan_token=plan["plan_token"])).code == "PLAN_USED"
    # Each is a change of its own: in the audit, and with an undo.
    records = (await cluster("audit.query", operation="topics.delete", limit=100))["items"]
    called = {each["call_id"] for each in records if each["decision"] == "allowed"}
    of_old = (await cluster("audit.query", topic="old", limit=100))["items"]
    assert {"plans.create", "topics.delete"} <= {each["operation"] for each in of_old}
    assert {each["call_id"] for each in done["result"]["changed"]} <= called
    await cluster("changes.undo", call_id=done["result"]["changed"][1]["call_id"])
    assert await topics(cluster) == ["/default/orders", "/default/test-a"]
    assert (await cluster("topics.describe", topic="test-a"))["next_offset"] == 3


async def test_what_has_changed_since_is_refused_alone(cluster: Administered) -> None:
    plan = await cluster(
        "plans.create",
        operation="topics.set_policies",
        topics="test-*",
        arguments={"policies": {"max_publish_rate": 10}},
    )
    await cluster("topics.set_policies", topic="test-a", policies={"max_publish_rate": 7})
    done = await cluster("plans.apply", plan_token=plan["plan_token"])
    assert [each["topic"] for each in done["result"]["changed"]] == ["/default/test-b"]
    (failed,) = done["result"]["failed"]
    assert (failed["topic"], failed["error"]["code"]) == ("/default/test-a", "PLAN_STALE")


async def test_the_token_of_the_whole_is_the_only_one(cluster: Administered) -> None:
    plan = await cluster("plans.create", operation="topics.delete", topics="test-*")
    plan_id, _, secret = plan["plan_token"].partition(".")
    members = [
        each["plan_id"] for each in (await cluster("plans.list"))["items"] if each["plan_id"] != plan_id
    ]
    assert len(members) == 2
    for member in members:
        refused = await cluster.refused("plans.apply", plan_token=f"{member}.{secret}")
        assert refused.code == "PLAN_MISMATCH"
    wrong = await cluster.refused("plans.apply", plan_token=f"{plan_id}.{secret[::-1]}")
    assert wrong.code == "PLAN_MISMATCH"
    assert len(await topics(cluster)) == 4
    await cluster("plans.discard", plan_id=plan_id)
    assert (await cluster.refused("plans.apply", plan_token=plan["plan_token"])).code == "PLAN_NOT_FOUND"


async def test_what_cannot_be_planned_for_many_says_why(cluster: Administered) -> None:
    unknown = await cluster.refused("plans.create", operation="topics.delet", topics="test-*")
    one = await cluster.refused("plans.create", operation="topics.delet", arguments={"topic": "old"})
    assert (unknown.code, unknown.message) == (one.code, one.message)
    nothing = await cluster.refused("plans.create", operation="topics.delete", topics="nothing-*")
    assert (nothing.code, nothing.details["field"]) == ("TOPIC_NOT_FOUND", "topics")
    without = await cluster.refused("plans.create", operation="namespaces.delete", topics="*")
    assert without.details["field"] == "topics"
    twice = await cluster.refused(
        "plans.create", operation="topics.delete", topics="*", arguments={"topic": "orders"}
    )
    assert twice.details["field"] == "topics"
    # One that is refused keeps all of them from being planned.
    none = await cluster.refused(
        "plans.create", operation="subscriptions.delete", topics="test-*", arguments={"subscription": "s"}
    )
    assert none.code == "SUBSCRIPTION_NOT_FOUND"
    states = {each["state"] for each in (await cluster("plans.list"))["items"]}
    assert states <= {"discarded"}
    for number in range(MOST + 1):
        await cluster("topics.create", topic=f"many-{number}")
    many = await cluster.refused("plans.create", operation="topics.delete", topics="many-*")
    assert (many.code, many.details["limit"]) == ("LIMIT_REACHED", MOST)


async def test_the_whole_is_undone_as_one_and_what_failed_by_another_call(cluster: Administered) -> None:
    plan = await cluster("plans.create", operation="topics.delete", topics="test-*,old")
    done = await cluster("plans.apply", plan_token=plan["plan_token"])
    assert done["undo_until"] == min(each["undo_until"] for each in done["result"]["changed"])
    await cluster("topics.create", topic="test-a")  # its name is taken
    undone = await cluster("changes.undo", call_id=done["call_id"])
    of = {each["topic"]: each["call_id"] for each in done["result"]["changed"]}
    assert undone["undone"] == [of["/default/test-b"], of["/default/old"]]
    assert [(each["call_id"], each["error"]["code"]) for each in undone["failed"]] == [
        (of["/default/test-a"], "NAME_REUSED")
    ]
    await cluster.apply("topics.delete", topic="test-a")
    again = await cluster("changes.undo", call_id=done["call_id"])
    assert (again["undone"], again["failed"]) == ([of["/default/test-a"]], [])
    assert await topics(cluster) == ["/default/old", "/default/orders", "/default/test-a", "/default/test-b"]
    assert (await cluster("topics.describe", topic="test-a"))["next_offset"] == 3
    assert (await cluster.refused("changes.undo", call_id=done["call_id"])).code == "PLAN_USED"


async def test_no_call_is_proposed_that_its_operation_refuses(cluster: Administered) -> None:
    refused = await cluster.refused("plans.create", operation="topics.delete", arguments={"topics": "t*"})
    assert refused.code == "INVALID_ARGUMENT"
    for step in refused.next:
        assert "*" not in str(step["arguments"].get("topic", ""))


@pytest.mark.parametrize(
    ("operation", "arguments", "meant"),
    [
        ("topics.delete", {"topics": "test-*"}, {"operation": "topics.delete", "topics": "test-*"}),
        (
            "topics.set_policies",
            {"topics": ["test-a", "old"], "policies": {"max_publish_rate": 10}},
            {
                "operation": "topics.set_policies",
                "topics": "test-a,old",
                "arguments": {"policies": {"max_publish_rate": 10}},
            },
        ),
    ],
)
async def test_topics_among_the_arguments_are_named_as_those_of_the_plan(
    cluster: Administered, operation: str, arguments: dict[str, Any], meant: dict[str, Any]
) -> None:
    error = await cluster.refused("plans.create", operation=operation, arguments=arguments)
    assert (error.code, error.details["field"]) == ("INVALID_ARGUMENT", "arguments.topics")
    assert error.details["did_you_mean"] == ["topics"]
    (step,) = error.next
    assert (step["operation"], step["arguments"]) == ("plans.create", meant)
    plan = await cluster("plans.create", **step["arguments"])
    assert len(plan["arguments"]["topics"]) == 2
