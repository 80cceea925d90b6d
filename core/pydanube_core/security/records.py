"""Roles, bindings and tokens as stored in the metadata: one JSON object each, below `security/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pydanube_core.security.identity import Maker
from pydanube_core.security.permissions import Binding, Principal, Role, Scope
from pydanube_core.security.revocations import Revocation, RevocationKind

ROLES: Final = "security/roles/"
BINDINGS: Final = "security/bindings/"
TOKENS: Final = "security/tokens/"
REVOCATIONS: Final = "security/revocations/"
LET_IN: Final = "security/let_in/"  # callers let in while the broker was stopped, until the audit has them
VERSION: Final = "security/version"  # another value with every change
# Records that stay decoded: all roles and bindings of a large cluster, since each change of one reads all.
MOST_DECODED: Final = 16_384
_TOKEN_FIELDS: Final = frozenset(
    {
        "token_id", "name", "principal", "principal_type", "sha256", "created_ms", "until_ms", "used_ms", "makers",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """An API token, with only the SHA-256 of its secret, which has 256 random bits and cannot be guessed.

    Attributes:
        until_ms: unix milliseconds. None: for ever. A rotated token has a short one.
        used_ms: unix milliseconds of the last recorded use. None: never used.
        makers: its ceiling, through every rotation. Empty: none.
        others: fields of a newer build, which are kept.
    """

    token_id: str
    name: str
    principal: Principal
    digest: str
    created_ms: int
    until_ms: int | None = None
    used_ms: int | None = None
    makers: tuple[Maker, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict, hash=False)


def role_key(name: str) -> str:
    return ROLES + name


def binding_key(binding_id: str) -> str:
    return BINDINGS + binding_id


def token_key(token_id: str) -> str:
    return TOKENS + token_id


def revocation_key(revocation_id: str) -> str:
    # A `jti` may contain anything
    return REVOCATIONS + hashlib.sha256(revocation_id.encode()).hexdigest()[:32]


def encode_role(role: Role) -> bytes:
    return _encoded({"name": role.name, "permissions": list(role.permissions)})


@lru_cache(MOST_DECODED)
def decode_role(data: bytes) -> Role:
    found = json.loads(data)
    return Role(name=found["name"], permissions=tuple(found["permissions"]))


def encode_binding(binding: Binding) -> bytes:
    return _encoded(
        {
            "id": binding.id, "principal": binding.principal.name, "principal_type": binding.principal.type,
            "roles": list(binding.roles), "scope": binding.scope.value, "resource": binding.resource,
        }
    )  # fmt: skip


@lru_cache(MOST_DECODED)
def decode_binding(data: bytes) -> Binding:
    found = json.loads(data)
    return Binding(
        id=found["id"],
        principal=Principal(found["principal"], found["principal_type"]),
        roles=tuple(found["roles"]),
        scope=Scope(found["scope"]),
        resource=found["resource"],
    )


def encode_token(token: TokenRecord) -> bytes:
    makers = [
        {"principal": each.principal.name, "principal_type": each.principal.type,
         "scopes": None if each.scopes is None else sorted(each.scopes)}
        for each in token.makers
    ]  # fmt: skip
    return _encoded(
        {
            "token_id": token.token_id, "name": token.name, "principal": token.principal.name,
            "principal_type": token.principal.type, "sha256": token.digest, "created_ms": token.created_ms,
            "until_ms": token.until_ms, "used_ms": token.used_ms, **({"makers": makers} if makers else {}),
            **token.others,
        }
    )  # fmt: skip


@lru_cache(MOST_DECODED)
def decode_token(data: bytes) -> TokenRecord:
    found = json.loads(data)
    return TokenRecord(
        token_id=found["token_id"],
        name=found["name"],
        principal=Principal(found["principal"], found["principal_type"]),
        digest=found["sha256"],
        created_ms=found["created_ms"],
        until_ms=found["until_ms"],
        used_ms=found.get("used_ms"),
        makers=tuple(
            Maker(
                Principal(each["principal"], each["principal_type"]),
                None if each["scopes"] is None else frozenset(each["scopes"]),
            )
            for each in found.get("makers", ())
        ),
        others={name: value for name, value in found.items() if name not in _TOKEN_FIELDS},
    )


def encode_revocation(revocation: Revocation) -> bytes:
    return _encoded(
        {
            "kind": revocation.kind.value,
            "value": revocation.value,
            "principal_type": revocation.principal_type,
            "created_ms": revocation.created_ms,
            "until_ms": revocation.until_ms,
        }
    )


@lru_cache(MOST_DECODED)
def decode_revocation(data: bytes) -> Revocation:
    found = json.loads(data)
    return Revocation(
        kind=RevocationKind(found["kind"]),
        value=found["value"],
        principal_type=found["principal_type"],
        created_ms=found["created_ms"],
        until_ms=found["until_ms"],
    )


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
