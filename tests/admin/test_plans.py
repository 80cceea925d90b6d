"""Plans: what destroys needs one, it does exactly what it showed, once, for whoever made it, while nothing changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube import connect
from pydanube_admin.engine import forecast
from pydanube_admin.engine.context import AdminOptions
from pydanube_admin.engine.forecast import Forecast, bounded, entry
from pydanube_admin.engine.plan_records import MAX_PLANS_OF_ONE
from pydanube_core.errors import ClusterError, DiskFull

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

SHORT = AdminOptions(plan_ttl_ms=100, undo_grace_ms=60_000)


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await cluster("topics.create", topic="orders")
        await cluster("subscriptions.create", topic="orders", subscription="billing")
        await cluster.publish("orders", b"one", b"two", b"three")
        yield cluster


async def test_what_destroys_answers_with_its_plan_and_the_ready_call(cluster: Administered) -> None:
    error = await cluster.refused("topics.delete", topic="orders")
    assert error.code == "PLAN_REQUIRED"
    plan = error.details["plan"]
    assert (plan["operation"], plan["effect"], plan["principal"]) == ("topics.delete", "destroy", "ann")
    assert (plan["blast_radius"]["subscriptions"], plan["blast_radius"]["messages"]) == (1, 3)
    assert [each["path"] for each in plan["diff"]] == [
        "topics/default/orders",
        "topics/default/orders/subscriptions/billing",
    ]
    assert (await cluster("topics.list"))["total"] == 1
    step = error.next[0]
    deleted = await cluster(step["operation"], **step["arguments"])
    assert (deleted["plan_id"], deleted["messages"]) == (plan["plan_id"], 3)
    assert (await cluster("topics.list"))["total"] == 0


async def test_a_token_works_once(cluster: Administered) -> None:
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    await cluster("topics.delete", topic="orders", plan_token=plan["plan_token"])
    await cluster("topics.create", topic="orders")
    error = await cluster.refused("topics.delete", topic="orders", plan_token=plan["plan_token"])
    assert error.code == "PLAN_USED"
    assert error.details["plan"]["state"] == "used"
    assert (await cluster("topics.list"))["total"] == 1


async def test_a_change_that_could_not_be_recorded_has_no_effect_and_its_token_stays_good(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await cluster("topics.delete", topic="orders", plan_only=True)

    write = cluster.broker.admin_state.write

    async def full(values: Mapping[str, bytes | None], expected: Any) -> int:
        if any("changes/" in key for key in values):
            raise DiskFull("no room")
        return await write(values, expected)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.broker.admin_state, "write", full)
        refused = await cluster.refused("topics.delete", topic="orders", plan_token=plan["plan_token"])
    assert refused.code == "DISK_FULL"
    assert await cluster.payloads("orders") == [b"one", b"two", b"three"]
    deleted = await cluster("topics.delete", topic="orders", plan_token=plan["plan_token"])
    await cluster("changes.undo", call_id=deleted["call_id"])
    assert await cluster.payloads("orders") == [b"one", b"two", b"three"]


async def test_two_at_once_apply_a_plan_once(cluster: Administered) -> None:
    plan = await cluster("subscriptions.purge", topic="orders", subscription="billing", plan_only=True)
    outcomes: list[object] = []

    async def apply() -> None:
        outcomes.append(
            await cluster.core.call(
                "plans.apply", {"plan_token": plan["plan_token"]}, principal="ann", face="mcp"
            )
        )

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(apply)
    codes = sorted(each.code for each in outcomes if isinstance(each, ClusterError))
    assert codes == ["PLAN_USED"] * 4


async def test_a_plan_is_its_makers_alone_and_for_its_arguments_alone(cluster: Administered) -> None:
    await cluster("topics.create", topic="clicks")
    token = (await cluster("topics.delete", topic="orders", plan_only=True))["plan_token"]
    other = await cluster.refused("topics.delete", by="bob", topic="orders", plan_token=token)
    elsewhere = await cluster.refused("topics.delete", topic="clicks", plan_token=token)
    operation = await cluster.refused(
        "subscriptions.delete", topic="orders", subscription="billing", plan_token=token
    )
    forged = token[:-1] + ("A" if token[-1] == "_" else "_")
    tampered = await cluster.refused("topics.delete", topic="orders", plan_token=forged)
    unknown = await cluster.refused("topics.delete", topic="orders", plan_token="p0.x")
    assert [each.code for each in (other, elsewhere, operation, tampered, unknown)] == [
        "PLAN_MISMATCH",
        "PLAN_MISMATCH",
        "PLAN_MISMATCH",
        "PLAN_MISMATCH",
        "PLAN_NOT_FOUND",
    ]
    assert (await cluster.refused("plans.apply", by="bob", plan_token=token)).code == "PLAN_MISMATCH"
    assert (await cluster("topics.list"))["total"] == 2
    applied = await cluster("plans.apply", plan_token=token)
    assert applied["operation"] == "topics.delete"
    assert applied["result"]["call_id"] == applied["call_id"], "a result is the same with a plan and without"


async def test_a_plan_expires(anyio_backend: str) -> None:
    async with administered(options=SHORT) as cluster:
        await cluster("topics.create", topic="orders")
        token = (await cluster("topics.delete", topic="orders", plan_only=True))["plan_token"]
        with anyio.fail_after(10):
            while (await cluster("plans.list"))["items"][-1]["state"] == "open":  # noqa: ASYNC110
                await anyio.sleep(0.02)
        assert (
            await cluster.refused("topics.delete", topic="orders", plan_token=token)
        ).code == "PLAN_EXPIRED"
        assert (await cluster("topics.list"))["total"] == 1


@pytest.mark.parametrize("drift", ["message", "subscription", "policy", "new topic"])
async def test_a_plan_is_stale_once_what_it_stands_on_has_changed(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, drift: str
) -> None:
    if drift == "message":
        monkeypatch.setattr(forecast, "LIVE_MS", 0)  # it has been quiet
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    assert plan["was_live"] is (drift != "message")
    token = plan["plan_token"]
    match drift:
        case "message":
            await cluster.publish("orders", b"four")
        case "subscription":
            await cluster("subscriptions.create", topic="orders", subscription="audit")
        case "policy":
            await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 5})
        case _:
            await cluster.apply("topics.delete", topic="orders")
            await cluster("topics.create", topic="orders")
    error = await cluster.refused("topics.delete", topic="orders", plan_token=token)
    assert error.code == "PLAN_STALE"
    assert (await cluster("topics.list"))["total"] == 1
    step = error.next[0]
    assert step["arguments"]["plan_token"] == error.details["plan"]["plan_token"]
    await cluster(step["operation"], **step["arguments"])
    assert (await cluster("topics.list"))["total"] == 0


async def test_a_plan_of_a_topic_that_is_written_stays_good_between_two_short_lived_producers(
    cluster: Administered,
) -> None:
    """No producer was attached when the plan was made, nor when it was applied, so that each message made it stale."""
    for operation, arguments in (
        ("subscriptions.delete", {"topic": "orders", "subscription": "billing"}),
        ("topics.delete", {"topic": "orders"}),
    ):
        plan = await cluster(operation, **arguments, plan_only=True)
        await cluster.publish("orders", b"more")
        assert plan["was_live"]
        assert (await cluster(operation, **arguments, plan_token=plan["plan_token"]))["call_id"]


async def test_a_plan_is_not_stale_since_a_client_has_come_or_gone(cluster: Administered) -> None:
    policies = {"retention_bytes": 1}
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("orders", "billing", start="earliest") as consumer,
    ):
        token = (await cluster("topics.set_policies", topic="orders", policies=policies, plan_only=True))[
            "plan_token"
        ]
        await (await anext(consumer)).ack()
    await cluster("topics.set_policies", topic="orders", policies=policies, plan_token=token)
    token = (await cluster("topics.delete", topic="orders", plan_only=True))["plan_token"]
    async with connect(cluster.broker.broker_url) as client, client.producer("orders") as producer:
        await producer.send(b"one more")
        assert (await cluster("topics.delete", topic="orders", plan_token=token))["undo_until"]


async def test_a_plan_outlives_the_admin_core_that_made_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    async with administered(folder) as cluster:
        await cluster("topics.create", topic="orders")
        token = (await cluster("topics.delete", topic="orders", plan_only=True))["plan_token"]
    async with administered(folder) as cluster:
        assert (await cluster("topics.delete", topic="orders", plan_token=token))["undo_until"]


@pytest.mark.parametrize(
    ("policies", "destroys"),
    [
        ({"max_publish_rate": 5}, False),
        ({"retention_bytes": 1_000_000}, True),
        ({"retention_age_s": 60}, True),
        ({"retention_offset": 2}, True),
        ({"drop_unread": 1}, False),  # nothing is given up, so no unread message is
    ],
)
async def test_policies_that_give_up_messages_want_a_plan(
    cluster: Administered, policies: dict[str, int], destroys: bool
) -> None:
    plan = await cluster("topics.set_policies", topic="orders", policies=policies, plan_only=True)
    assert (plan["effect"] == "destroy") is destroys
    assert plan["reversible"] is not destroys
    if destroys:
        error = await cluster.refused("topics.set_policies", topic="orders", policies=policies)
        assert error.code == "PLAN_REQUIRED"
        assert (await cluster("topics.get_policies", topic="orders"))["policies"] == {}
    await cluster("topics.set_policies", topic="orders", policies=policies, plan_token=plan["plan_token"])
    assert (await cluster("topics.get_policies", topic="orders"))["policies"] == policies


async def test_longer_retention_wants_no_plan(cluster: Administered) -> None:
    await cluster.apply("topics.set_policies", topic="orders", policies={"retention_age_s": 60})
    await cluster("topics.set_policies", topic="orders", policies={"retention_age_s": 600})
    await cluster("topics.set_policies", topic="orders", policies={"retention_age_s": None})
    error = await cluster.refused(
        "namespaces.set_policies", namespace="default", policies={"retention_bytes": 10}
    )
    plan = error.details["plan"]
    assert (plan["blast_radius"]["messages"], plan["reversible"]) == (0, False)
    assert plan["later"].startswith(
        "3 messages stored now may go later once every subscription has acknowledged them"
    )


async def test_plans_are_made_listed_shown_and_discarded(cluster: Administered) -> None:
    plan = await cluster(
        "plans.create", operation="topics.create", arguments={"topic": "new", "partitions": 2}
    )
    assert plan["diff"][0]["after"]["partitions"] == 2
    shown = await cluster("plans.show", by="bob", plan_id=plan["plan_id"])
    assert "plan_token" not in shown
    assert shown["diff"] == plan["diff"]
    applied = await cluster("plans.apply", plan_token=plan["plan_token"], plan_id=plan["plan_id"])
    assert applied["result"]["partitions"] == 2
    assert (await cluster("plans.show", plan_id=plan["plan_id"]))["call_id"] == applied["call_id"]
    other = await cluster("plans.create", operation="topics.delete", arguments={"topic": "new"})
    await cluster("plans.discard", plan_id=other["plan_id"])
    assert (await cluster.refused("plans.apply", plan_token=other["plan_token"])).code == "PLAN_NOT_FOUND"
    states = {item["plan_id"]: item["state"] for item in (await cluster("plans.list"))["items"]}
    assert states == {plan["plan_id"]: "used", other["plan_id"]: "discarded"}
    assert (await cluster.refused("plans.create", operation="topics.list")).code == "INVALID_ARGUMENT"
    assert (await cluster.refused("plans.create", operation="plans.create")).code == "INVALID_ARGUMENT"


async def test_a_face_without_plans_destroys_in_one_recorded_step_unless_that_is_off(
    cluster: Administered,
) -> None:
    done = await cluster.core.call(
        "topics.delete", {"topic": "orders"}, principal="ann", face="danube_admin", one_step=True
    )
    assert not isinstance(done, ClusterError)
    call_id = done.model_dump()["call_id"]
    records = (await cluster("audit.query", call_id=call_id, hashes=True))["items"]
    assert [record["phase"] for record in records] == ["outcome", "call"]
    await cluster("changes.undo", call_id=call_id)
    async with administered(options=AdminOptions(compat_destructive=False)) as strict:
        await strict("topics.create", topic="orders")
        refused = await strict.core.call(
            "topics.delete", {"topic": "orders"}, principal="ann", face="danube_admin", one_step=True
        )
        assert isinstance(refused, ClusterError)
        assert refused.grpc_status.name == "FAILED_PRECONDITION"


async def test_one_who_plans_in_a_loop_does_not_keep_others_from_it(cluster: Administered) -> None:
    """Every refusal of what destroys keeps a plan: those of one principal have a bound of their own."""
    for _ in range(MAX_PLANS_OF_ONE):
        last = await cluster.refused("topics.delete", by="eve", topic="orders")
        assert last.code == "PLAN_REQUIRED"
    error = await cluster.refused("topics.delete", by="eve", topic="orders")
    assert (error.code, error.details["limit"]) == ("LIMIT_REACHED", MAX_PLANS_OF_ONE)
    assert "eve" in error.message
    assert (await cluster.refused("topics.delete", topic="orders")).code == "PLAN_REQUIRED"
    await cluster("plans.discard", by="eve", plan_id=last.details["plan"]["plan_id"])
    assert (await cluster.refused("topics.delete", by="eve", topic="orders")).code == "PLAN_REQUIRED"


@pytest.mark.parametrize(
    "token",
    ["p" * 3_000_000, "../changes/x.y", ".", "\x00", "p0." + "s" * 100_000, "ü.ß"],
    ids=["long", "path", "dot", "nul", "long secret", "not ascii"],  # pytest puts the id in the environment
)
async def test_what_is_no_token_is_no_plan(cluster: Administered, token: str) -> None:
    error = await cluster.refused("plans.apply", plan_token=token)
    assert error.code in ("PLAN_NOT_FOUND", "INVALID_ARGUMENT")
    error = await cluster.refused("topics.delete", topic="orders", plan_token=token)
    assert error.code == "PLAN_NOT_FOUND"
    assert len(error.to_json()) < 2048
    assert (await cluster("topics.list"))["total"] == 1


@given(diffs=st.integers(0, 60), changed=st.integers(0, 59), most=st.integers(1, 30))
def test_a_plan_of_many_things_is_small_and_depends_on_each(diffs: int, changed: int, most: int) -> None:
    diff = [
        entry(f"topics/default/t/subscriptions/{number:09d}", {"lag": 0}, None) for number in range(diffs)
    ]
    shown = bounded(diff, most=most)
    assert len(shown) <= most + 1
    assert len(json.dumps(shown)) <= 120 * (most + 1)
    if changed < diffs:
        other = [*diff]
        other[changed] = entry(other[changed]["path"], {"lag": 1}, None)
        assert Forecast(diff=bounded(other, most=most)).revision != Forecast(diff=shown).revision


async def test_a_topic_with_many_subscriptions_can_be_deleted_and_comes_back(cluster: Administered) -> None:
    names = [f"worker-{number:02d}" for number in range(40)]
    for name in names:
        await cluster("subscriptions.create", topic="orders", subscription=name)
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    assert plan["blast_radius"]["subscriptions"] == 41
    assert [each["path"] for each in plan["diff"][:2]] == [
        "topics/default/orders",
        "topics/default/orders/subscriptions/billing",
    ]
    assert plan["diff"][20]["path"] == "and 22 more"
    # what is not listed is not forgotten: the plan is for exactly these subscriptions
    gone = {"topic": "orders", "subscription": names[-1]}
    token = (await cluster("subscriptions.delete", **gone, plan_only=True))["plan_token"]
    await cluster("subscriptions.delete", **gone, plan_token=token)
    error = await cluster.refused("topics.delete", topic="orders", plan_token=plan["plan_token"])
    assert error.code == "PLAN_STALE"
    again = await cluster("topics.delete", topic="orders", plan_only=True)
    deleted = await cluster("topics.delete", topic="orders", plan_token=again["plan_token"])
    await cluster("changes.undo", call_id=deleted["call_id"])
    assert (await cluster("subscriptions.list", topic="orders"))["total"] == 40
