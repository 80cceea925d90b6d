"""A frozen face or principal reads on and changes nothing, until its time or until somebody who may lifts it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.freezes import MAX_FREEZES
from pydanube_core.errors import ClusterError
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.security.identity import OPERATOR, current_identity

from tests.admin.real_broker import Administered, administered, cluster

__all__ = ["cluster"]
pytestmark = pytest.mark.anyio

WHY = "it deletes topics in a loop"


async def over(
    cluster: Administered, via: str, name: str, principal: str = "ann", /, **arguments: Any
) -> Any:
    """The result over a face, or the code of the error."""
    found = await cluster.core.call(name, arguments, principal=principal, face=via)
    return found.code if isinstance(found, ClusterError) else found.model_dump(mode="json", by_alias=True)


async def test_a_frozen_face_reads_and_changes_nothing_and_the_others_go_on(cluster: Administered) -> None:
    plan = await over(cluster, "mcp", "plans.create", operation="topics.create", arguments={"topic": "later"})
    done = await cluster("faces.freeze", face="mcp", until="2h", reason=WHY)
    assert done["frozen_until"] is not None
    for name, arguments in (
        ("topics.create", {"topic": "orders"}),
        ("topics.create", {"topic": "orders", "plan_only": True}),
        ("plans.create", {"operation": "topics.create", "arguments": {"topic": "orders"}}),
        ("plans.apply", {"plan_token": plan["plan_token"]}),
        ("changes.undo", {"call_id": done["call_id"]}),
        ("faces.thaw", {"face": "mcp"}),
    ):
        assert await over(cluster, "mcp", name, **arguments) == "FROZEN"
    assert (await over(cluster, "mcp", "topics.list"))["items"] == []
    (shown,) = (await over(cluster, "mcp", "faces.list"))["items"]
    assert (shown["face"], shown["by"], shown["untrusted"]) == ("mcp", "ann", {"reason": WHY})
    for face in ("cli", "jsonrpc", "tui", "python"):
        assert "call_id" in await over(cluster, face, "topics.create", topic=f"of-{face}")

    assert (await cluster("faces.thaw", face="mcp"))["was_frozen"]
    applied = await over(cluster, "mcp", "plans.apply", plan_token=plan["plan_token"])
    assert applied["operation"] == "topics.create", "plans stay"
    assert not (await cluster("faces.thaw", face="mcp"))["was_frozen"]


async def test_a_refusal_says_until_when_by_whom_and_how_it_is_lifted_and_is_recorded(
    cluster: Administered,
) -> None:
    await cluster("faces.freeze", principal="robot", reason=WHY)
    error = await cluster.refused("topics.create", by="robot", topic="orders")
    assert (error.code, error.retryable, error.exit_code) == ("FROZEN", False, 4)
    assert error.details["by"] == "ann"
    assert error.details["untrusted"] == {"reason": WHY}
    assert WHY not in error.message
    assert "danube faces thaw" in error.message
    records = (await cluster("audit.query", operation="topics.create"))["items"]
    assert {(each["principal"], each["decision"], each["code"]) for each in records} == {
        ("robot", "refused", "FROZEN")
    }


async def test_a_frozen_principal_is_frozen_on_every_face_and_no_other_is(cluster: Administered) -> None:
    await cluster("faces.freeze", principal="robot", reason=WHY)
    for face in ("mcp", "cli", "jsonrpc", "tui", "python"):
        assert await over(cluster, face, "topics.create", "robot", topic="orders") == "FROZEN"
    assert "call_id" in await over(cluster, "mcp", "topics.create", "robots", topic="orders")


async def test_no_caller_goes_round_a_freeze_by_the_brokers_own_face(cluster: Administered) -> None:
    await cluster("faces.freeze", principal="robot", reason=WHY)
    for face, code in (("balance", "INVALID_ARGUMENT"), ("mcp", "FROZEN"), ("unheard of", "FROZEN")):
        call = CallRequest(
            operation="topics.create",
            arguments=b'{"topic": "orders"}',
            principal="robot",
            face=face,
            client_name="x",
        )
        answer = CallResponse.FromString(await cluster.core.serve_call(call.SerializeToString()))
        assert ClusterError.from_dict(json.loads(answer.error)).code == code
    assert (await cluster("topics.list"))["items"] == []
    audited = (await cluster("audit.query", operation="topics.create"))["items"]
    refused = {each["face"]: (each["decision"], each["code"]) for each in audited}
    assert refused["balance"] == ("refused", "INVALID_ARGUMENT")


async def test_a_freeze_ends_at_its_time(anyio_backend: str) -> None:
    async with administered() as cluster:
        ahead_ms = 0
        core = AdminCore(cluster.broker.port, now_ms=lambda: 1_800_000_000_000 + ahead_ms)
        later = Administered(cluster.broker, core)
        try:
            await later("faces.freeze", face="mcp", until="2h", reason=WHY)
            for ahead_ms, expected in ((7_199_999, "FROZEN"), (7_200_000, None)):  # noqa: B007
                found = await over(later, "mcp", "topics.create", topic="orders")
                assert (found if isinstance(found, str) else None) == expected
            assert (await later("faces.list"))["items"] == []
        finally:
            await core.aclose()


async def test_a_freeze_of_a_length_can_be_planned_and_applied_later(cluster: Administered) -> None:
    ahead_ms = 0
    core = AdminCore(cluster.broker.port, now_ms=lambda: 1_800_000_000_000 + ahead_ms)
    later = Administered(cluster.broker, core)
    try:
        asked = {"face": "mcp", "until": "2h", "reason": WHY}
        plan = await later("plans.create", operation="faces.freeze", arguments=asked)
        ahead_ms = 60_000
        done = (await later("plans.apply", plan_token=plan["plan_token"]))["result"]
        assert done["frozen_until"] > plan["diff"][0]["after"]["frozen_until"]
    finally:
        await core.aclose()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"reason": WHY}, "face"),
        ({"face": "mcp", "principal": "robot", "reason": WHY}, "face"),
        ({"face": "tui", "reason": WHY}, "face"),
        ({"face": "mcp"}, "reason"),
        ({"face": "mcp", "reason": ""}, "reason"),
        ({"face": "mcp", "reason": "x" * 301}, "reason"),
        ({"face": "mcp", "reason": "two\nlines"}, "reason"),
        ({"face": "mcp", "reason": WHY, "until": "0s"}, "until"),
        ({"face": "mcp", "reason": WHY, "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"face": "mcp", "reason": WHY, "until": "soon"}, "until"),
        ({"face": "all", "reason": WHY}, "face"),
    ],
)
async def test_bad_input_freezes_nothing(
    cluster: Administered, arguments: dict[str, Any], field: str
) -> None:
    error = await cluster.refused("faces.freeze", **arguments)
    assert (error.code, error.details["field"]) == ("INVALID_ARGUMENT", field)
    assert (await cluster("faces.list"))["items"] == []


async def test_without_authorization_the_last_face_cannot_be_frozen(cluster: Administered) -> None:
    for face in ("mcp", "jsonrpc", "console"):
        await cluster("faces.freeze", face=face, reason=WHY)
    error = await cluster.refused("faces.freeze", face="cli", reason=WHY)
    assert "no caller could lift" in error.message
    await cluster("faces.thaw", face="mcp")
    await cluster("faces.freeze", face="cli", reason=WHY)
    assert await over(cluster, "cli", "topics.create", topic="orders") == "FROZEN"
    assert "call_id" in await over(cluster, "mcp", "faces.thaw", face="cli")


async def test_the_operator_at_the_brokers_own_socket_is_never_frozen(cluster: Administered) -> None:
    await cluster("faces.freeze", face="cli", reason=WHY)
    assert await over(cluster, "cli", "faces.thaw", face="cli") == "FROZEN"
    before = current_identity.set(OPERATOR)
    try:
        assert (await over(cluster, "cli", "faces.thaw", face="cli"))["was_frozen"]
    finally:
        current_identity.reset(before)


async def test_freezing_again_replaces_the_freeze_and_their_number_is_bounded(cluster: Administered) -> None:
    await cluster("faces.freeze", principal="robot", reason=WHY)
    await cluster("faces.freeze", principal="robot", until="1h", reason="for less long")
    (shown,) = (await cluster("faces.list"))["items"]
    assert shown["untrusted"] == {"reason": "for less long"}
    for number in range(MAX_FREEZES - 1):
        await cluster("faces.freeze", principal=f"robot-{number}", reason=WHY)
    error = await cluster.refused("faces.freeze", principal="one too many", reason=WHY)
    assert error.code == "LIMIT_REACHED"
    await cluster("faces.freeze", principal="robot", reason="again")
