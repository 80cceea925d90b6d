"""Who acts for another grants only what both hold; a token grants nothing outside of its scopes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
from pydanube_core.security.api_tokens import DICE_BYTES, new_token
from pydanube_core.security.identity import Maker
from pydanube_core.security.permissions import BUILT_IN, Principal
from pydanube_core.security.records import decode_token, encode_token
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


async def test_a_frozen_principal_changes_nothing_in_the_name_of_another(locked: Locked) -> None:
    await locked.call("admin", "roles.create", role="gate", permissions="security:act_for,topics:create")
    await give(locked, "gate", "gate")
    await locked.call("admin", "faces.freeze", principal="gate", reason="its token was stolen")
    as_admin = {"topic": "orders", "principal_claimed": "admin"}
    assert await locked.code("gate", "topics.create", as_admin) == "FROZEN"
    await locked.call("admin", "faces.thaw", principal="gate")
    assert await locked.code("gate", "topics.create", as_admin) == ""


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


async def test_a_token_never_gives_more_than_its_maker_may_do(locked: Locked) -> None:
    """Made for a name before that has rights, rotated, revoked and taken back, or by a token that has a maker itself."""
    rights = (
        "tokens:create,tokens:rotate,tokens:revoke,changes:change,bindings:create,topics:create,security:read"
    )
    await locked.call("admin", "roles.create", role="clerk", permissions=rights)
    await give(locked, "clerk", "clerk")
    early = await locked.call("clerk", "tokens.create", name="early", principal="boss")
    assert early["within"] == ["user:clerk"]
    own = await locked.call("admin", "tokens.create", name="own", principal="boss")
    assert own["within"] == []
    rotated = await locked.call("clerk", "tokens.rotate", token_id=own["token_id"])
    await locked.call("admin", "bindings.create", binding="boss", principal="boss", roles="admin")
    for name, token in (("early", early), ("own", own), ("rotated", rotated)):
        locked.tokens[name] = token["token"]
    assert await locked.code("own", "namespaces.create", {"namespace": "n"}) == ""
    for name in ("early", "rotated"):
        assert await locked.code(name, "topics.create", {"topic": f"/default/{name}"}) == "", name
        assert await locked.code(name, "namespaces.create", {"namespace": "m"}) == "PERMISSION_DENIED", name
        assert (
            await locked.code(name, "tokens.create", {"name": "x", "principal": "boss"})
            == "PERMISSION_DENIED"
        )
    again = await locked.call("early", "tokens.create", name="again")
    assert again["within"] == ["user:boss", "user:clerk"] or again["within"] == ["user:clerk"]
    made = await locked.call("admin", "tokens.rotate", token_id=early["token_id"])
    assert made["within"] == ["user:clerk"], "whoever rotates it, the ceiling stays"


def test_a_record_keeps_the_fields_of_a_newer_build() -> None:
    record, _ = new_token(
        "n", Principal("p"), bytes(DICE_BYTES), now_ms=1, until_ms=None, makers=(Maker(Principal("m")),)
    )
    newer = json.dumps({**json.loads(encode_token(record)), "ceiling_by": ["x"]}).encode()
    known = decode_token(newer)
    assert known.makers == record.makers
    assert json.loads(encode_token(replace(known, used_ms=5)))["ceiling_by"] == ["x"]
