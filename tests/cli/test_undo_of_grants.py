"""What is taken back of roles, bindings and tokens is given anew: under the rules, by whoever made the change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cli.test_audit_export_live import on_the_machine
from tests.cli.test_locks_live import Locked, give, locked_broker

CLERK = "bindings:*,tokens:*,roles:*,topics:read"


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    async with locked_broker(tmp_path_factory.mktemp("grants")) as made:
        for name in ("admin", "second"):
            await give(made, name, "admin")
        await made.call("admin", "roles.create", role="clerk", permissions=CLERK)
        await give(made, "clerk", "clerk")
        yield made


async def undo(locked: Locked, who: str, change: dict[str, Any]) -> str:
    return await locked.code(who, "changes.undo", {"call_id": change["call_id"]})


async def bindings(locked: Locked) -> dict[str, list[str]]:
    found = (await locked.call("admin", "bindings.list", limit=100))["items"]
    return {each["binding"]: each["roles"] for each in found}


async def test_a_binding_that_was_made_changed_or_deleted_is_as_before(locked: Locked) -> None:
    binding = {"binding": "ann-1", "principal": "ann", "scope": "topic", "resource": "/shop/orders*"}
    made = await locked.call("admin", "bindings.create", **binding, roles="viewer")
    changed = await locked.call("admin", "bindings.create", **binding, roles="producer")
    assert await undo(locked, "admin", made) == "CONFLICT"  # something came after it
    deleted = await locked.call("admin", "bindings.delete", binding="ann-1")
    assert "ann-1" not in await bindings(locked)
    for change, roles in ((deleted, ["producer"]), (changed, ["viewer"])):
        assert await undo(locked, "admin", change) == ""
        assert (await bindings(locked))["ann-1"] == roles
    assert await undo(locked, "admin", made) == ""
    assert "ann-1" not in await bindings(locked)


async def test_what_a_clerk_deleted_he_does_not_give_back_where_he_does_not_hold_it(locked: Locked) -> None:
    await locked.call("admin", "bindings.create", binding="third", principal="third", roles="admin")
    deleted = await locked.call("clerk", "bindings.delete", binding="third")
    assert await undo(locked, "clerk", deleted) == "PERMISSION_DENIED"
    assert "third" not in await bindings(locked)
    assert await undo(locked, "admin", deleted) == ""
    assert "third" in await bindings(locked)
    await locked.call("admin", "bindings.delete", binding="third")


async def test_an_undo_does_not_take_the_last_admin(locked: Locked) -> None:
    made = await locked.call("admin", "bindings.create", binding="fourth", principal="fourth", roles="admin")
    deleted = [await locked.call("admin", "bindings.delete", binding=each) for each in ("second", "admin")]
    token = await on_the_machine(locked, "tokens.create", name="fourth")
    locked.tokens["fourth"] = token["token"]
    assert await undo(locked, "fourth", made) == "CONDITION_NOT_MET"
    for change in deleted:
        assert await undo(locked, "fourth", change) == ""
    assert await undo(locked, "admin", made) == ""


async def test_a_role_that_was_changed_or_deleted_is_as_before(locked: Locked) -> None:
    await locked.call("clerk", "roles.create", role="reader", permissions="topics:read")
    changed = await locked.call("admin", "roles.create", role="reader", permissions="topics:*")
    assert await undo(locked, "clerk", changed) == "PERMISSION_DENIED"  # it is another's
    plan = await locked.call("admin", "roles.delete", role="reader", plan_only=True)
    assert plan["reversible"]
    deleted = await locked.call("admin", "roles.delete", role="reader", plan_token=plan["plan_token"])
    for change, permissions in ((deleted, ["topics:*"]), (changed, ["topics:read"])):
        assert await undo(locked, "admin", change) == ""
        assert (await locked.call("admin", "roles.get", role="reader"))["permissions"] == permissions


async def test_a_revoked_token_comes_back_for_whoever_could_make_one(locked: Locked) -> None:
    token_id = await give(locked, "app", "producer")
    revoked = await locked.call("clerk", "tokens.revoke", token_id=token_id)
    assert await locked.code("app", "security.whoami", {}) == "UNAUTHENTICATED"
    assert await undo(locked, "clerk", revoked) == "PERMISSION_DENIED"  # its principal holds what he does not
    assert await undo(locked, "admin", revoked) == ""
    assert await locked.code("app", "security.whoami", {}) == ""


async def test_a_namesake_of_another_type_has_no_part_in_plans_tasks_and_undos(locked: Locked) -> None:
    twin = {"binding": "twin", "principal": "second", "principal_type": "service_account"}
    await locked.call(
        "admin", "bindings.create", **twin, roles="admin", scope="namespace", resource="default"
    )
    service = {"name": "twin", "principal": "second", "principal_type": "service_account"}
    locked.tokens["twin"] = (await locked.call("admin", "tokens.create", **service))["token"]
    plan = await locked.call("second", "topics.create", topic="/default/planned", plan_only=True)
    again = {"topic": "/default/planned", "plan_token": plan["plan_token"]}
    assert await locked.code("twin", "topics.create", again) == "PLAN_MISMATCH"
    assert await locked.code("twin", "plans.show", {"plan_id": plan["plan_id"]}) == "PLAN_NOT_FOUND"
    assert (await locked.call("twin", "plans.list"))["items"] == []
    made = await locked.call("second", "topics.create", **again)
    assert await undo(locked, "twin", made) == "PERMISSION_DENIED"
    assert await undo(locked, "second", made) == ""


async def test_whoever_may_take_back_changes_takes_back_those_of_others(locked: Locked) -> None:
    """The permission was in the message of the refusal, and no role could have it."""
    for who, permissions in (("mender", "topics:*,changes:change"), ("other", "topics:*")):
        await locked.call("admin", "roles.create", role=who, permissions=permissions)
        await give(locked, who, who)
    made = await locked.call("second", "topics.create", topic="/default/mended")
    assert await undo(locked, "other", made) == "PERMISSION_DENIED"
    assert await undo(locked, "mender", made) == ""
