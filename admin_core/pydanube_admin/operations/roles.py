"""Roles: named sets of permissions."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydanube_core.errors import AlreadyExists, InvalidArgument
from pydanube_core.security.permissions import (
    ACT_FOR,
    BUILT_IN,
    CONSUME,
    LOOK_UP,
    ORIGINAL,
    PRODUCE,
    TAKE_BACK,
    Grants,
    Role,
    Scope,
)
from pydanube_core.security.records import encode_role, role_key

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Done, Forecast, Undo
from pydanube_admin.engine.grant_book import (
    GrantBook,
    RoleName,
    check_admin_left,
    check_holds,
    check_room,
    found_role,
    grant_book,
    grant_forecast,
    names_of,
    undo_grant,
    write_grant,
)
from pydanube_admin.engine.models import Change, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import DECLARED, Example, operation
from pydanube_admin.engine.paging import glob, page_of


class RoleItem(Result):
    identity: ClassVar = ("role",)

    role: str
    permissions: list[str]
    system: bool  # built in


class RoleRequest(Request):
    role: RoleName


class CreateRoleRequest(Request):
    role: RoleName
    permissions: Annotated[
        str,
        Field(
            max_length=4000,
            description="With commas between: topics:read, topics:*, *:read, data:produce, Produce",
        ),
    ]


class ChangedRole(RoleItem, Change):
    pass


class DeletedRole(Change):
    role: str


@operation(
    "roles.list",
    effect=Effect.READ,
    summary="List roles with their permissions.",
    examples=(Example({}, "every role"),),
)
async def list_roles(context: Context, request: SortedListRequest) -> Page[RoleItem]:
    matches = glob(request.filter)
    found = [each for each in (await grant_book(context)).roles.values() if matches(each.name)]
    return await page_of(
        context,
        RoleItem,
        found,
        lambda each: RoleItem(**_role(each)),
        key=lambda role: (role.name,),
        operation="roles.list",
        request=request,
    )


@operation(
    "roles.get",
    effect=Effect.READ,
    title="Show a role",
    summary="Show a role's permissions.",
    examples=(Example({"role": "viewer"}, "what a viewer may do"),),
)
async def get_role(context: Context, request: RoleRequest) -> RoleItem:
    return RoleItem(**_role(found_role(await grant_book(context), request.role)))


async def forecast_create_role(context: Context, request: CreateRoleRequest) -> Forecast:
    book = await grant_book(context)
    made = _new_role(context, book, request)
    before = book.roles.get(request.role)
    return grant_forecast(f"roles/{made.name}", None if before is None else _role(before), _role(made))


async def undo_create_role(context: Context, request: CreateRoleRequest, done: Done) -> Undo:
    made = _role(Role(name=request.role, permissions=names_of(request.permissions)))
    return await _undo(context, request.role, made, done)


async def _undo(context: Context, name: str, made: dict[str, Any] | None, done: Done) -> Undo:
    found = (await grant_book(context)).roles.get(name)
    now = None if found is None else _role(found)
    return await undo_grant(context, "role", name, now=now, made=made, before=done.image["before"])


@operation(
    "roles.create",
    effect=Effect.CHANGE,
    title="Create or change a role",
    summary="Create a role, or give an existing one other permissions.",
    forecast=forecast_create_role,
    undo=undo_create_role,
    required_flags=("permissions",),
    examples=(Example({"role": "auditor", "permissions": "audit:read,topics:read"}, "two permissions"),),
)
async def create_role(context: Context, request: CreateRoleRequest) -> ChangedRole:
    made = _new_role(context, await grant_book(context), request)
    await write_grant(context, role_key(made.name), encode_role(made))
    return ChangedRole(**_role(made))


def _new_role(context: Context, book: GrantBook, request: CreateRoleRequest) -> Role:
    permissions = names_of(request.permissions)
    known = {each.permission for each in DECLARED.values()} | {LOOK_UP, PRODUCE, CONSUME, ACT_FOR, TAKE_BACK}
    areas, verbs = ({each.split(":")[at] for each in known} for at in (0, 1))
    for each in permissions:
        area, _, verb = each.partition(":")
        if not (
            each in ORIGINAL
            or each in known
            or each == "*"
            or (area in areas and verb == "*")
            or (area == "*" and verb in verbs)
        ):
            raise InvalidArgument(
                f"there is no permission {each[:100]!r}; write one as topics:read, topics:*, *:read, data:produce, or one "
                f"of {', '.join(ORIGINAL)}",
                field="permissions",
                value=each[:100],
            )
    _check_not_built_in(request.role)
    check_room(book.roles, request.role, "roles")
    made = Role(name=request.role, permissions=permissions)
    after = replace(book, roles={**book.roles, made.name: made})
    check_holds(
        context,
        after.grants if made.name not in book.roles else _with_probe(book, made),
        _probe(book, made),
        Scope.CLUSTER,
        "",
    )
    check_admin_left(book, after)
    return made


def _probe(book: GrantBook, made: Role) -> str:
    """The name under which the new permissions are looked at: a role that the caller may have must not vouch for itself."""
    return made.name if made.name not in book.roles else f"{made.name}\0new"


def _with_probe(book: GrantBook, made: Role) -> Grants:
    name = _probe(book, made)
    probe = Role(name=name, permissions=made.permissions)
    return Grants.of((*book.roles.values(), probe), book.bindings.values())


async def forecast_delete_role(context: Context, request: RoleRequest) -> Forecast:
    book = await grant_book(context)
    role = _check_deletable(book, request.role)
    return grant_forecast(f"roles/{role.name}", _role(role), None)


async def undo_delete_role(context: Context, request: RoleRequest, done: Done) -> Undo:
    return await _undo(context, request.role, None, done)


@operation(
    "roles.delete",
    effect=Effect.DESTROY,
    title="Delete a role",
    summary="Delete a role; bindings that name it stay and give nothing by it.",
    forecast=forecast_delete_role,
    undo=undo_delete_role,
    examples=(Example({"role": "auditor"}, "nobody is an auditor any more"),),
)
async def delete_role(context: Context, request: RoleRequest) -> DeletedRole:
    role = _check_deletable(await grant_book(context), request.role)
    await write_grant(context, role_key(role.name), None)
    return DeletedRole(role=role.name)


def _check_deletable(book: GrantBook, name: str) -> Role:
    role = found_role(book, name)
    _check_not_built_in(name)
    rest = {key: value for key, value in book.roles.items() if key != name}
    check_admin_left(book, replace(book, roles=rest))
    return role


def _check_not_built_in(name: str) -> None:
    if any(role.name == name for role in BUILT_IN):
        raise AlreadyExists(
            f"the role {name} is built in and stays as it is; choose another name", field="role", value=name
        )


def _role(role: Role) -> dict[str, Any]:
    return {"role": role.name, "permissions": list(role.permissions), "system": role.system}
