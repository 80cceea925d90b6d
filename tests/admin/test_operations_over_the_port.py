"""Operations, called as the broker calls them: results as in docs/interface.md#6-operations."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from pydanube_admin.core import AdminCore
from pydanube_core.errors import ClusterError, PlanRequired, StoreUnavailable

from tests.admin.real_broker import Administered
from tests.support.filled_cluster import add_topic

pytestmark = pytest.mark.anyio

OWNER = "BROKER_ID"  # stands for the id of the broker
ORDERS_BYTES = 8160  # one batch of 500, of which the first hundred are trimmed
CLICKS_BYTES = 3 * 320


def age_s(time: str) -> float:
    """How long ago a time of an answer was."""
    return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()


async def result(core: AdminCore, operation: str, face: str = "cli", **arguments: Any) -> dict[str, Any]:
    with anyio.fail_after(60):
        outcome = await core.call(operation, json.dumps(arguments), principal="p", face=face)
        if isinstance(outcome, PlanRequired):  # as a command line does with --yes
            token = outcome.details["plan"]["plan_token"]
            outcome = await core.call(
                operation, json.dumps({**arguments, "plan_token": token}), principal="p", face=face
            )
    assert not isinstance(outcome, ClusterError), outcome
    body: dict[str, Any] = json.loads(outcome.model_dump_json(by_alias=True))
    return body


async def refusal(core: AdminCore, operation: str, face: str = "cli", **arguments: Any) -> ClusterError:
    with anyio.fail_after(60):
        outcome = await core.call(operation, json.dumps(arguments), principal="p", face=face)
    assert isinstance(outcome, ClusterError)
    return outcome


async def test_topics_are_listed_with_partitions_taken_together(
    core: AdminCore, cluster: Administered
) -> None:
    listed = await result(core, "topics.list")
    assert 0 <= age_s(listed.pop("as_of")) < 60
    assert listed.pop("mark")
    assert [0 <= age_s(item.pop("last_published_at")) < 60 for item in listed["items"]] == [True, True]
    assert listed == {
        "items": [
            {
                "topic": "/default/orders",
                "partitions": 0,
                "dispatch_strategy": "reliable",
                "messages": 400,
                "bytes": ORDERS_BYTES,
                "object_bytes": 0,
                "newest_offset": 499,
                "producers": 0,
                "consumers": 1,
                "subscriptions": 2,
                "owner": cluster.broker_id,
            },
            {
                "topic": "/shop/clicks",
                "partitions": 3,
                "dispatch_strategy": "reliable",
                "messages": 30,
                "bytes": CLICKS_BYTES,
                "object_bytes": 0,
                "newest_offset": None,
                "newest_offset_reason": "partitioned",
                "producers": 3,
                "consumers": 3,
                "subscriptions": 1,
                "owner": None,
                "owner_reason": "partitioned",
            },
        ],
        "next_page": None,
        "total": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"namespace": "shop"}, ["/shop/clicks"]),
        ({"namespace": "/shop"}, ["/shop/clicks"]),
        ({"filter": "ord*"}, ["/default/orders"]),
        ({"filter": "/shop/*"}, ["/shop/clicks"]),
        ({"filter": "shop/cl*"}, ["/shop/clicks"]),
        ({"filter": "Ord*"}, []),
        ({"broker": OWNER}, ["/default/orders", "/shop/clicks"]),
        ({"broker": "7"}, []),
    ],
)
async def test_topics_are_narrowed(
    core: AdminCore, cluster: Administered, arguments: dict[str, Any], expected: list[str]
) -> None:
    arguments = {key: cluster.broker_id if value == OWNER else value for key, value in arguments.items()}
    listed = await result(core, "topics.list", **arguments)
    assert [item["topic"] for item in listed["items"]] == expected
    assert listed["total"] == len(expected)


async def test_a_topic_is_described_whole(core: AdminCore, cluster: Administered) -> None:
    described = await result(core, "topics.describe", topic="orders")
    assert 0 <= age_s(described.pop("created_at")) < 60
    assert 0 <= age_s(described.pop("last_published_at")) < 60
    assert int(described.pop("topic_id")) > 0
    assert int(described.pop("epoch")) > 0
    connected, written, *unread = described.pop("in_use_because")
    assert connected == "consumers and readers connected: 1"
    assert written.startswith("written 2")
    assert [each.partition(",")[0] for each in unread] == ["subscription billing: 35 unread"]
    assert described == {
        "topic": "/default/orders",
        "newest_offset": 499,
        "in_use": True,
        "partitions": 0,
        "dispatch_strategy": "reliable",
        "durability": "memory",
        "messages": 400,
        "bytes": ORDERS_BYTES,
        "producers": 0,
        "consumers": 1,
        "subscriptions": ["audit", "billing"],
        "owner": cluster.broker_id,
        "owner_state": "up",
        "start_offset": 100,
        "next_offset": 500,
        "tiered_offset": None,
        "tiered_offset_reason": "no_cold_tier",
        "journal_bytes": ORDERS_BYTES,
        "object_bytes": 0,
        "policies": {},
        "kept_failure_policies": {},
        "schema": None,
        "mirror_of": None,
        "failed_over_to": None,
        "parts": [],
        **dict.fromkeys(("stored_until", "requests_per_hour", "bytes_per_hour")),
        **dict.fromkeys(
            ("stored_until_reason", "requests_per_hour_reason", "bytes_per_hour_reason"), "not_copied"
        ),
    }


async def test_a_partitioned_topic_has_its_offsets_in_its_parts(core: AdminCore) -> None:
    described = await result(core, "topics.describe", topic="shop/clicks")
    assert (described["next_offset"], described["next_offset_reason"]) == (None, "partitioned")
    assert [(part["topic"], part["partition"], part["next_offset"]) for part in described["parts"]] == [
        (f"/shop/clicks-part-{index}", index, 10) for index in range(3)
    ]


async def test_a_missing_topic_is_answered_with_names_spelled_alike_and_the_call_that_makes_it(
    core: AdminCore,
) -> None:
    error = await refusal(core, "topics.describe", topic="ordres")
    assert error.code == "TOPIC_NOT_FOUND"
    assert error.details["did_you_mean"] == ["/default/orders"]
    assert [step["command"] for step in error.next] == [
        "danube topics describe /default/orders",
        "danube topics list",
        "danube changes list --since 24h --topic /default/ordres",
        "danube topics create /default/ordres",
    ]


async def test_a_missing_subscription_is_answered_with_one_spelled_alike(core: AdminCore) -> None:
    for name in ("subscriptions.describe", "diagnose.subscription"):
        error = await refusal(core, name, topic="orders", subscription="biling")
        assert (error.code, error.details["did_you_mean"]) == ("SUBSCRIPTION_NOT_FOUND", ["billing"]), name
        assert [step["operation"] for step in error.next] == ["subscriptions.lag", "subscriptions.list"]


async def test_a_created_topic_is_there_and_its_name_is_taken(core: AdminCore) -> None:
    created = await result(core, "topics.create", topic="new", partitions=2)
    assert created["topic"] == "/default/new"
    assert (created["partitions"], created["durability"]) == (2, "memory")
    assert len((await result(core, "topics.describe", topic="new"))["parts"]) == 2
    error = await refusal(core, "topics.create", topic="/default/new")
    assert error.code == "ALREADY_EXISTS"
    assert error.next[0]["operation"] == "topics.describe"


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"topic": "bad name!"}, "INVALID_NAME", "topic"),
        ({"topic": "orders-part-3"}, "INVALID_NAME", "topic"),
        ({"topic": "x", "durability": "memory"}, "INVALID_ARGUMENT", "durability"),
        (
            {"topic": "x", "dispatch_strategy": "non_reliable", "durability": "fsynced"},
            "INVALID_ARGUMENT",
            "durability",
        ),
        ({"topic": "x", "policies": {"a": 1}}, "INVALID_ARGUMENT", "policies.a"),
        ({"topic": "x", "schema_subject": ""}, "INVALID_ARGUMENT", "schema_subject"),
        ({"topic": "x", "partitions": 1001}, "INVALID_ARGUMENT", "partitions"),
        ({"topic": "x", "plan_token": "t"}, "PLAN_NOT_FOUND", "plan_token"),
    ],
)
async def test_what_cannot_be_created_is_refused_by_field(
    core: AdminCore, arguments: dict[str, Any], code: str, field: str
) -> None:
    error = await refusal(core, "topics.create", **arguments)
    assert (error.code, error.details["field"]) == (code, field)
    assert (await result(core, "topics.list"))["total"] == 2


async def test_a_non_reliable_topic_says_that_it_is_only_in_memory(core: AdminCore) -> None:
    created = await result(core, "topics.create", topic="live", dispatch_strategy="non_reliable")
    assert created["durability"] == "memory"


async def test_a_preview_shows_what_would_go_and_changes_nothing(core: AdminCore) -> None:
    preview = await result(core, "topics.delete", topic="shop/clicks", plan_only=True)
    assert preview["blast_radius"] == {
        "topics": 1,
        "subscriptions": 1,
        "consumers": 3,
        "messages": 30,
        "bytes": CLICKS_BYTES,
    }
    assert preview["reversible"] is True
    assert (await result(core, "topics.list"))["total"] == 2


async def test_a_topic_is_deleted_with_its_partitions(core: AdminCore) -> None:
    deleted = await result(core, "topics.delete", topic="shop/clicks")
    assert (deleted["partitions"], deleted["messages"], deleted["subscriptions"]) == (3, 30, ["stats"])
    assert [item["topic"] for item in (await result(core, "topics.list"))["items"]] == ["/default/orders"]
    assert (await result(core, "subscriptions.list"))["total"] == 2


@pytest.mark.parametrize("face", ["cli", "mcp", "jsonrpc", "tui", ""])
async def test_no_face_deletes_without_a_plan(core: AdminCore, face: str) -> None:
    error = await refusal(core, "topics.delete", face, topic="orders")
    assert error.code == "PLAN_REQUIRED"
    token = error.details["plan"]["plan_token"]
    assert error.next[0]["command"] == f"danube topics delete orders --plan-token {token}"
    assert (await result(core, "topics.list"))["total"] == 2


async def test_a_single_partition_is_not_deleted(core: AdminCore) -> None:
    error = await refusal(core, "topics.delete", topic="/shop/clicks-part-1")
    assert error.code == "INVALID_ARGUMENT"
    assert error.next[0]["arguments"] == {"topic": "/shop/clicks"}
    assert (await result(core, "topics.describe", topic="shop/clicks"))["messages"] == 30


async def test_subscriptions_are_listed_once_for_all_partitions(core: AdminCore) -> None:
    listed = await result(core, "subscriptions.list")
    assert [
        (item["topic"], item["subscription"], item["partitions"], item["consumers"], item["lag_messages"])
        for item in listed["items"]
    ] == [
        ("/default/orders", "audit", 0, 0, 0),
        ("/default/orders", "billing", 0, 1, 35),
        ("/shop/clicks", "stats", 3, 3, 27),
    ]
    assert 0 <= age_s(listed["items"][0]["created_at"]) < 60


async def test_lag_has_the_fields_of_the_road(core: AdminCore) -> None:
    listed = await result(core, "subscriptions.lag", topic="orders", subscription="billing")
    [item] = listed["items"]
    age_s = item.pop("oldest_unread_age_s")
    assert 0 < age_s < 60
    # One sample shows that nothing is late; it takes more to say what is wrong with messages that are.
    evidence, looked = item.pop("evidence"), item["status"]
    assert looked == ("CAUGHT_UP" if age_s <= 10 else "UNKNOWN")
    assert (evidence["samples"], evidence["looked"]) == (1, looked)
    for name in ("status", "since", "since_reason"):
        item.pop(name, None)
    assert listed["items"] == [
        {
            "topic": "/default/orders",
            "partition": None,
            "subscription": "billing",
            "type": "exclusive",
            "consumers": 1,
            "next_offset": 500,
            "next_unacked": 460,
            "lag_messages": 35,
            "lag_bytes": ORDERS_BYTES * 35 // 40,  # five behind the cursor are acknowledged
            "age_quality": "exact",
            "in_flight": 7,
            "redelivered": 0,
            "dead_lettered": 0,
            "dropped": 0,
            "blocked_by": None,
            "produce_rate": None,
            "produce_rate_reason": "too_few_samples",
            "consume_rate": None,
            "consume_rate_reason": "too_few_samples",
            "eta_s": None,
            "eta_s_reason": "too_few_samples",
            "retention_headroom_s": None,
            "retention_headroom_s_reason": "no_retention",
            "lost_messages": 0,
        }
    ]
    assert (await result(core, "subscriptions.lag", topic="orders", status="STUCK"))["items"] == []
    assert (await result(core, "subscriptions.lag", status="UNKNOWN"))["total"] == 5


async def test_lag_of_a_partitioned_topic_is_one_item_a_partition(core: AdminCore) -> None:
    listed = await result(core, "subscriptions.lag", topic="shop/clicks")
    assert [(item["topic"], item["partition"], item["lag_messages"]) for item in listed["items"]] == [
        ("/shop/clicks", 0, 10),
        ("/shop/clicks", 1, 9),
        ("/shop/clicks", 2, 8),
    ]
    assert 0 < listed["items"][0]["oldest_unread_age_s"] < 60
    one = await result(core, "subscriptions.lag", topic="/shop/clicks-part-2")
    assert [item["partition"] for item in one["items"]] == [2]


async def test_a_missing_subscription_names_where_it_is_and_what_is_spelled_alike(core: AdminCore) -> None:
    misspelled = await refusal(core, "subscriptions.lag", topic="orders", subscription="biling")
    assert misspelled.code == "SUBSCRIPTION_NOT_FOUND"
    assert misspelled.next[0]["arguments"] == {"topic": "/default/orders", "subscription": "billing"}
    elsewhere = await refusal(core, "subscriptions.lag", topic="orders", subscription="stats")
    assert elsewhere.next[0]["arguments"] == {"topic": "/shop/clicks", "subscription": "stats"}
    nowhere = await refusal(core, "subscriptions.lag", subscription="zzz")
    assert [step["operation"] for step in nowhere.next] == ["subscriptions.list"]


async def test_a_topic_without_subscriptions_has_an_empty_list(
    core: AdminCore, cluster: Administered
) -> None:
    await add_topic(cluster, "/default/quiet")
    for operation in ("subscriptions.list", "subscriptions.lag"):
        assert (await result(core, operation, topic="quiet"))["items"] == []
        assert (await refusal(core, operation, topic="nowhere")).code == "TOPIC_NOT_FOUND"


async def test_the_broker_shows_its_status(core: AdminCore) -> None:
    status = await result(core, "brokers.status")
    assert (status["pid"], status["topics"], status["reasons"]) == (os.getpid(), 4, [])  # partitions counted
    assert (status["data_dir"], status["data_dir_reason"]) == (None, "memory_only")


async def test_before_a_broker_is_attached_every_call_is_retryable(cluster: Administered) -> None:
    core = AdminCore()
    error = await refusal(core, "topics.list")
    assert (error.code, error.retryable) == ("UNAVAILABLE", True)
    core.attach(cluster.broker.port)
    assert (await result(core, "topics.list"))["total"] == 2
    await core.aclose()


async def test_an_error_of_the_broker_is_passed_on_and_a_defect_is_not_shown(
    core: AdminCore, cluster: Administered, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter((StoreUnavailable("the metadata store does not answer"), KeyError("secret")))

    async def fails() -> Any:
        raise next(failures)

    monkeypatch.setattr(cluster.broker.port, "topic_index", fails)
    assert (await refusal(core, "topics.list")).code == "STORE_UNAVAILABLE"
    error = await refusal(core, "topics.list")
    assert error.code == "INTERNAL"
    assert "secret" not in error.to_json()
    assert "secret" in caplog.text
