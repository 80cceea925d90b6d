"""Roles, bindings, tokens and revocations for their operations, and rules that hold for every change of them.

A caller can grant only rights that it has, and the last admin cannot be removed. Grants can be prepared while
authorization is off.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field
from pydanube_core.errors import ConditionNotMet, GrantNotFound, InvalidArgument, PermissionDenied
from pydanube_core.refusals import changed_since
from pydanube_core.security.identity import ANONYMOUS, Identity, Maker, current_identity
from pydanube_core.security.permissions import BUILT_IN, Binding, Grants, Principal, Role, Scope
from pydanube_core.security.records import (
    BINDINGS,
    REVOCATIONS,
    ROLES,
    TOKENS,
    VERSION,
    TokenRecord,
    decode_binding,
    decode_revocation,
    decode_role,
    decode_token,
)
from pydanube_core.security.revocations import Revocation
from pydanube_core.security.scopes import scopes_of

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.forecast import Forecast, Undo, entry
from pydanube_admin.engine.operation import next_call
from pydanube_admin.engine.permission import Sight

MOST_RECORDS: Final = 10_000  # of roles, bindings and tokens, each
MOST_MAKERS: Final = 16  # of a token: each is checked with every call
PAGE: Final = 1000

T = TypeVar("T")

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@:/-]*$")]
RoleName = Annotated[Name, Field(description="Its name")]
PrincipalName = Annotated[str, Field(min_length=1, max_length=256, description="Its name")]
PrincipalType = Annotated[Literal["user", "service_account"], Field(description="Kind of principal")]
ScopeArgument = Annotated[Literal["cluster", "namespace", "topic"], Field(description="Where roles hold")]


@dataclass(frozen=True)
class StoredGrants:
    roles: dict[str, Role]
    bindings: dict[str, Binding]
    tokens: dict[str, TokenRecord]
    revocations: dict[str, Revocation]

    @cached_property
    def grants(self) -> Grants:
        return Grants.of(self.roles.values(), self.bindings.values())


async def stored_grants(context: Context) -> StoredGrants:
    """Read all grants and revocations, including the built-in roles."""

    async def every(prefix: str, decode: Callable[[bytes], T]) -> list[T]:
        return [decode(value) for value in await state_values(context, prefix)]

    return StoredGrants(
        roles={each.name: each for each in (*await every(ROLES, decode_role), *BUILT_IN)},
        bindings={each.id: each for each in await every(BINDINGS, decode_binding)},
        tokens={each.token_id: each for each in await every(TOKENS, decode_token)},
        revocations={each.id: each for each in await every(REVOCATIONS, decode_revocation)},
    )


async def state_values(context: Context, prefix: str) -> list[bytes]:
    """Return every value below a key of the metadata store."""
    found: list[bytes] = []
    after: str | None = None
    while True:
        page = await context.port.list_state(prefix, after=after, limit=PAGE)
        found += [item.value for item in page]
        if len(page) < PAGE:
            return found
        after = page[-1].key


async def undone_by(context: Context, operation: str, arguments: Mapping[str, Any]) -> Undo:
    """Undo a change by another operation, which is checked as a call of its own, with its caller's permission."""
    call = context.executor.parse(operation, arguments)
    assert call.operation.forecast is not None, "a change has a plan"
    return Undo(
        act=partial(call.operation.handler, context, call.request),
        forecast=await call.operation.forecast(context, call.request),
    )


def grant_forecast(path: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Forecast:
    """Forecast the new value of a role or a binding at `path`. None means absent."""
    return Forecast(diff=[entry(path, before, after)], image={"before": before})


async def write_grant(context: Context, key: str, value: bytes | None, **others: bytes | None) -> None:
    """Write a record, or delete it (None), `others` in the same transaction. In effect at this broker on return."""
    # A new value with each write: a reader of this version has read all writes up to it.
    await context.port.write_state({**others, key: value, VERSION: secrets.token_hex(8).encode()})
    if context.port.locks is not None:
        await context.port.locks.reload()


def calling_identity() -> Identity:
    return current_identity.get() or ANONYMOUS


def check_holds(context: Context, grants: Grants, role: str, scope: Scope, resource: str) -> None:
    """Check that the caller, and its actor, have all rights of the role, within the scopes of their tokens.

    While authorization is off every caller has all rights.
    """
    locks = context.port.locks
    if locks is None or not locks.required:
        return
    for principal, scopes, everything in _behind(calling_identity()):
        held = everything or grants.held(principal, role, scope, resource)
        in_scope = scopes is None or scopes_of(grants.permissions_of(role)) <= scopes
        if not (held and in_scope):
            raise _not_held(principal, role, scope, resource, scoped=held)


def check_grantable(
    context: Context, stored: StoredGrants, roles: Sequence[str], scope: Scope, resource: str
) -> None:
    """As `check_holds`, for roles that must exist. Only callers that may read roles learn whether one does.

    Raises `GrantNotFound`, `PermissionDenied`.
    """
    grants, reads_roles = stored.grants, Sight(context.port, "roles:read").everything
    for role in roles:
        if role not in stored.roles and not reads_roles:
            raise _not_held(calling_identity().principal, role, scope, resource, scoped=False)
        found_role(stored, role)
        check_holds(context, grants, role, scope, resource)


def _not_held(
    principal: Principal, role: str, scope: Scope, resource: str, *, scoped: bool
) -> PermissionDenied:
    """Return the refusal of a grant. `scoped`: only the scopes of the token are in the way."""
    what = "shows a token whose scopes do not include" if scoped else "does not hold"
    return PermissionDenied(
        f"{principal} {what} all that {role} gives on {resource or 'the ' + scope}, so it cannot grant it. "
        "Ask a principal that does",
        role=role,
        resource=resource,
    )


def _behind(caller: Identity | None) -> Iterator[tuple[Principal, frozenset[str] | None, bool]]:
    """Yield each principal whose rights limit a caller: itself, its token's makers, its actor and theirs."""
    while caller is not None:
        yield caller.principal, caller.scopes, caller.everything
        yield from ((maker.principal, maker.scopes, False) for maker in caller.makers)
        caller = caller.actor


def ceiling(
    context: Context, grants: Grants, of: Principal, former: Sequence[Maker] = ()
) -> tuple[Maker, ...]:
    """Return the makers of a token that the caller makes for the principal `of`.

    `former`: the makers of the token that it replaces. Raises `InvalidArgument`: they are too many.
    """
    locks = context.port.locks
    if locks is None or not locks.required:
        return tuple(former)
    admins, makers = grants.admins(), dict.fromkeys(former)
    for principal, scopes, everything in _behind(calling_identity()):
        unlimited = everything or principal in admins or principal == of
        if not (unlimited and scopes is None):
            makers[Maker(principal, scopes)] = None
    if len(makers) > MOST_MAKERS:
        raise InvalidArgument(
            f"the token would have {len(makers)} makers, at most {MOST_MAKERS} are kept: have an admin make it",
            field="token_id",
            value=len(makers),
        )
    return tuple(makers)


def check_owner(context: Context, stored: StoredGrants, principal: Principal) -> None:
    """Check that the caller has every permission of a token's principal."""
    grants = stored.grants
    given = {
        (role, binding.scope, binding.resource): None
        for binding in grants.by_principal.get(principal, ())
        for role in binding.roles
    }
    for role, scope, resource in given:
        check_holds(context, grants, role, scope, resource)


def check_admin_left(before: StoredGrants, after: StoredGrants) -> None:
    if before.grants.admins() and not after.grants.admins():
        raise ConditionNotMet(
            "this would take the last admin's rights: bind the role admin to another principal on the cluster first"
        )


def check_unchanged(now: object, made: object, before: object, what: str) -> None:
    """For an undo: check that the change is still in place, or undone already. Raises `Conflict`."""
    if now not in (made, before):
        raise changed_since(what)


def check_room(found: dict[str, Any], key: str, what: str) -> None:
    if key not in found and len(found) >= MOST_RECORDS:
        raise InvalidArgument(f"there are {MOST_RECORDS} {what} already; delete some", field=what, value=key)


def names_of(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))


def found_grant(records: Mapping[str, T], kind: str, name: str, *, field: str | None = None) -> T:
    """Return the binding, token or revocation of that name. Raises `GrantNotFound`."""
    if name not in records:
        raise GrantNotFound(
            f"there is no {kind} {name[:64]!r}; see `danube {kind}s list`",
            field=field or kind,
            value=name[:64],
            next=[next_call(f"{kind}s.list", {}, f"shows each {kind}")],
        )
    return records[name]


def shown(records: Mapping[str, T], name: str, item: Callable[[T], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the record of that name as lists show it, or None."""
    return item(records[name]) if name in records else None


def found_role(stored: StoredGrants, name: str) -> Role:
    if name not in stored.roles:
        raise GrantNotFound(
            f"there is no role {name!r}; there are {', '.join(sorted(stored.roles)[:20])}",
            field="role",
            value=name,
            next=[next_call("roles.list", {}, "shows each role with its permissions")],
        )
    return stored.roles[name]
