"""Who acts for another grants only what both hold; a token grants nothing outside of its scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
from pydanube_core.security.permissions import BUILT_IN
from pydanube_core.security.scopes import ADMIN, DATA, READ, SCOPES, WRITE, scope_of, scopes_of

from tests.cli.test_locks_live import Locked, give, locked_broker
from tests.cli.test_revocations_live import NOW, SECRET, keys


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    async with locked_broker(tmp_path, **keys(tmp_path)) as made:
        await give(made, "admin", "admin")
        yield made


async def test_a_gateway_does_not_become_admin_by_naming_one(locked: Locked) -> None:
    """With `bindings:create` or `tokens:create` beside `act_for` it named admin, and bound or issued for itself."""
    rights = "security:act_for,security:read,bindings:create,tokens:create,tokens:revoke,changes:change"
    await locked.call("admin", "roles.create", role="gate", permissions=rights)
    await give(locked, "gate", "gate")
    as_admin = {"principal_claimed": "admin"}
    binding = {"binding": "mine", "principal": "gate", "roles": "admin", **as_admin}
    for operation, arguments in (
        ("bindings.create", binding),
        ("tokens.create", {"name": "mine", "principal": "admin", **as_admin}),
        ("tokens.create", {"name": "new", "role": "admin", **as_admin}),
    ):
        assert await locked.code("gate", operation, dict(arguments)) == "PERMISSION_DENIED", operation
    token_id = await give(locked, "other", "admin")
    assert (
        await locked.code("gate", "tokens.rotate", {"token_id": token_id, **as_admin}) == "PERMISSION_DENIED"
    )
    # What both hold, it grants
    twin = {"binding": "twin", "principal": "twin", "roles": "gate", **as_admin}
    assert await locked.code("gate", "bindings.create", twin) == ""


async def test_a_list_that_is_cut_shows_what_the_actor_may_see_too(locked: Locked) -> None:
    await locked.call("admin", "roles.create", role="gate", permissions="security:act_for,security:read")
    await give(locked, "gate", "gate")
    await give(locked, "tenant", "viewer", "namespace", "default")
    as_tenant = {"principal_claimed": "tenant"}
    assert await locked.code("tenant", "topics.list", {}) == ""
    assert await locked.code("gate", "topics.list", as_tenant) == "PERMISSION_DENIED"


async def test_a_token_makes_none_that_may_what_it_may_not(locked: Locked) -> None:
    claims = {"sub": "admin", "exp": NOW + 3600, "iat": NOW - 60, "jti": "s", "scope": ADMIN}
    locked.tokens["scoped"] = jwt.encode(claims, SECRET)
    assert await locked.code("scoped", "topics.create", {"topic": "/default/x"}) == "PERMISSION_DENIED"
    assert (
        await locked.code("scoped", "tokens.create", {"name": "all", "principal": "admin"})
        == "PERMISSION_DENIED"
    )
    binding = {"binding": "b", "principal": "p", "roles": "producer"}
    assert await locked.code("scoped", "bindings.create", binding) == "PERMISSION_DENIED"
    locked.tokens["whole"] = jwt.encode({**claims, "jti": "w", "scope": " ".join(SCOPES)}, SECRET)
    assert await locked.code("whole", "bindings.create", binding) == ""


def test_the_scopes_of_permissions_with_stars_are_those_of_all_they_cover() -> None:
    assert scopes_of(["*"]) == scopes_of(["*:read"]) == frozenset(SCOPES)
    assert scopes_of(["topics:*"]) == {READ, WRITE}
    assert scopes_of(["bindings:*", "topics:read"]) == {READ, ADMIN}
    assert scopes_of(["data:*"]) == {READ, WRITE, DATA}
    assert scopes_of([]) == frozenset()
    for role in BUILT_IN:
        needed = scopes_of(role.permissions)
        assert {scope_of(each) for each in role.permissions if "*" not in each} <= needed
