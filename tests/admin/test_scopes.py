"""Scopes of web tokens: which permission needs which, and what a token names."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.security.scopes import ADMIN, DATA, READ, SCOPES, WRITE, named_scopes, scope_of


def test_every_operation_has_a_scope_and_only_looking_needs_read() -> None:
    found = {name: scope_of(each.permission) for name, each in OPERATIONS.items()}
    assert set(found.values()) == {READ, WRITE, ADMIN}
    assert [
        name for name, scope in found.items() if (scope == READ) != (OPERATIONS[name].effect is Effect.READ)
    ] == []


@pytest.mark.parametrize(
    ("permission", "scope"),
    [("data:produce", DATA), ("data:consume", DATA), ("data:look_up", READ), ("topics:delete", WRITE),
     ("tokens:create", ADMIN), ("tokens:read", READ), ("security:act_for", ADMIN), ("brokers:change", ADMIN)],
)  # fmt: skip
def test_what_needs_which(permission: str, scope: str) -> None:
    assert scope_of(permission) == scope


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ({}, None),
        ({"scope": ""}, set()),
        ({"scope": "openid danube:read"}, {READ}),
        ({"scp": ["danube:write", "x"]}, {WRITE}),
        ({"scope": "danube:read", "scp": "danube:data danube:everything"}, {READ, DATA}),
        ({"scope": "DANUBE:READ danube:*"}, set()),
    ],
)
def test_a_token_names_those_of_ours(claims: dict[str, Any], named: set[str] | None) -> None:
    assert named_scopes(claims) == named
    assert named is None or named <= set(SCOPES)


@pytest.mark.parametrize("bad", [7, None, {"a": 1}, ["danube:read", 7], True])
def test_what_is_no_scope_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="scope"):
        named_scopes({"scope": bad})
