"""Roles, which are named sets of permissions, and bindings: which principal has which roles on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydanube_core.errors import AlreadyExists, InvalidArgument
from pydanube_core.names import TopicName, check_namespace
from pydanube_core.security.permissions import (
    ACT_FOR,
    BUILT_IN,
    CONSUME,
    FENCE,
    LOOK_UP,
    MIRROR,
    ORIGINAL,
    PRODUCE,
    TAKE_BACK,
    Binding,
    Grants,
    Principal,
    Role,
    Scope,
)
from pydanube_core.security.records import binding_key, encode_binding, encode_role, role_key

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, nothing_left
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import DECLARED, operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.stored_grants import (
    Name,
    PrincipalName,
    PrincipalType,
    RoleName,
    ScopeArgument,
    StoredGrants,
    check_admin_left,
    check_grantable,
    check_holds,
    check_room,
    check_unchanged,
    found_grant,
    found_role,
    grant_forecast,
    names_of,
    shown,
    stored_grants,
    undone_by,
    write_grant,
)


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
    roles = [each for each in (await stored_grants(context)).roles.values() if matches(each.name)]
    return await page_of(
        context,
        RoleItem,
        roles,
        lambda each: RoleItem(**_role(each)),
        key=lambda role: (role.name,),
        request=request,
    )


@operation(
    "roles.get",
    effect=Effect.READ,
    title="Show a role",
    summary="Show a role's permissions.",
    examples=(Example({"role": "viewer"}, "the permissions of a viewer"),),
)
async def get_role(context: Context, request: RoleRequest) -> RoleItem:
    return RoleItem(**_role(found_role(await stored_grants(context), request.role)))


async def forecast_create_role(context: Context, request: CreateRoleRequest) -> Forecast:
    stored = await stored_grants(context)
    made = _new_role(context, stored, request)
    return grant_forecast(f"roles/{made.name}", shown(stored.roles, made.name, _role), _role(made))


async def undo_create_role(context: Context, request: CreateRoleRequest, done: Done) -> Undo:
    made = _role(Role(name=request.role, permissions=names_of(request.permissions)))
    return await _undo(context, "role", request.role, made, done)


async def _undo(
    context: Context, kind: Literal["role", "binding"], name: str, made: Mapping[str, Any] | None, done: Done
) -> Undo:
    """Undo the creation or deletion of a role or a binding by restoring its former value.

    It is a grant, or its end, like any other: the caller of the undo needs the right to make it.
    """
    before: Mapping[str, Any] | None = done.image["before"]
    stored = await stored_grants(context)
    now = shown(stored.roles, name, _role) if kind == "role" else shown(stored.bindings, name, _binding)
    check_unchanged(now, made, before, f"the {kind} {name}")
    if before is not None:
        given = {key: ",".join(value) if isinstance(value, list) else value for key, value in before.items()}
        given.pop("system", None)  # of a role: no argument
        return await undone_by(context, f"{kind}s.create", given)
    if now is None:
        return Undo(act=nothing_left)
    return await undone_by(context, f"{kind}s.delete", {kind: name})


@operation(
    "roles.create",
    effect=Effect.CHANGE,
    ends=True,
    title="Create or change a role",
    summary="Create a role, or give an existing one other permissions.",
    forecast=forecast_create_role,
    undo=undo_create_role,
    required_flags=("permissions",),
    examples=(Example({"role": "auditor", "permissions": "audit:read,topics:read"}, "two permissions"),),
)
async def create_role(context: Context, request: CreateRoleRequest) -> ChangedRole:
    made = _new_role(context, await stored_grants(context), request)
    await write_grant(context, role_key(made.name), encode_role(made))
    return ChangedRole(**_role(made))


def _new_role(context: Context, stored: StoredGrants, request: CreateRoleRequest) -> Role:
    permissions = names_of(request.permissions)
    of_data = {LOOK_UP, PRODUCE, CONSUME, MIRROR, FENCE}
    known = {each.permission for each in DECLARED.values()} | of_data | {ACT_FOR, TAKE_BACK}
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
                f"there is no permission {each[:100]!r}. Write one as topics:read, topics:*, *:read, data:produce, or one "
                f"of {', '.join(ORIGINAL)}",
                field="permissions",
                value=each[:100],
            )
    _check_not_built_in(request.role)
    check_room(stored.roles, request.role, "roles")
    made = Role(name=request.role, permissions=permissions)
    after = replace(stored, roles={**stored.roles, made.name: made})
    check_holds(
        context,
        after.grants if made.name not in stored.roles else _with_probe(stored, made),
        _probe(stored, made),
        Scope.CLUSTER,
        "",
    )
    check_admin_left(stored, after)
    return made


def _probe(stored: StoredGrants, made: Role) -> str:
    """Return the name under which new permissions are checked, so that a caller's own role does not justify itself."""
    return made.name if made.name not in stored.roles else f"{made.name}\0new"


def _with_probe(stored: StoredGrants, made: Role) -> Grants:
    name = _probe(stored, made)
    probe = Role(name=name, permissions=made.permissions)
    return Grants.of((*stored.roles.values(), probe), stored.bindings.values())


async def forecast_delete_role(context: Context, request: RoleRequest) -> Forecast:
    stored = await stored_grants(context)
    role = _check_deletable(stored, request.role)
    return grant_forecast(f"roles/{role.name}", _role(role), None)


async def undo_delete_role(context: Context, request: RoleRequest, done: Done) -> Undo:
    return await _undo(context, "role", request.role, None, done)


@operation(
    "roles.delete",
    effect=Effect.DESTROY,
    title="Delete a role",
    summary="Delete a role. Bindings that name it stay and no longer grant it.",
    forecast=forecast_delete_role,
    undo=undo_delete_role,
    examples=(Example({"role": "auditor"}, "no principal is an auditor any more"),),
)
async def delete_role(context: Context, request: RoleRequest) -> DeletedRole:
    role = _check_deletable(await stored_grants(context), request.role)
    await write_grant(context, role_key(role.name), None)
    return DeletedRole(role=role.name)


def _check_deletable(stored: StoredGrants, name: str) -> Role:
    role = found_role(stored, name)
    _check_not_built_in(name)
    rest = {key: value for key, value in stored.roles.items() if key != name}
    check_admin_left(stored, replace(stored, roles=rest))
    return role


def _check_not_built_in(name: str) -> None:
    if any(role.name == name for role in BUILT_IN):
        raise AlreadyExists(
            f"the role {name} is built in and stays as it is. Choose another name", field="role", value=name
        )


def _role(role: Role) -> dict[str, Any]:
    return {"role": role.name, "permissions": list(role.permissions), "system": role.system}


class BindingItem(Result):
    identity: ClassVar = ("binding",)

    binding: str
    principal: str
    principal_type: str
    roles: list[str]
    scope: str
    resource: str


class CreateBindingRequest(Request):
    binding: Annotated[Name, Field(description="Its name")]
    principal: PrincipalName
    roles: Annotated[
        str, Field(min_length=1, max_length=1000, description="Names of roles, with commas between")
    ]
    scope: ScopeArgument = "cluster"
    resource: Annotated[
        str,
        Field(
            max_length=300,
            description="Namespace or /namespace/topic, * for a prefix",
        ),
    ] = ""
    principal_type: PrincipalType = "user"


class BindingRequest(Request):
    binding: Annotated[Name, Field(description="Its name")]


class ChangedBinding(BindingItem, Change):
    pass


class DeletedBinding(Change):
    binding: str


@operation(
    "bindings.list",
    effect=Effect.READ,
    summary="List bindings: the roles of principals on resources. The filter is over principals.",
    examples=(Example({"filter": "ann"}, "what ann has"),),
)
async def list_bindings(context: Context, request: SortedListRequest) -> Page[BindingItem]:
    matches = glob(request.filter)
    bindings = (await stored_grants(context)).bindings.values()
    return await page_of(
        context,
        BindingItem,
        [each for each in bindings if matches(each.principal.name)],
        lambda each: BindingItem(**_binding(each)),
        key=lambda binding: (binding.id,),
        request=request,
    )


async def forecast_create_binding(context: Context, request: CreateBindingRequest) -> Forecast:
    stored = await stored_grants(context)
    made = _new_binding(context, stored, request)
    return grant_forecast(f"bindings/{made.id}", shown(stored.bindings, made.id, _binding), _binding(made))


async def undo_create_binding(context: Context, request: CreateBindingRequest, done: Done) -> Undo:
    return await _undo(context, "binding", request.binding, _binding(_asked_for(request)), done)


@operation(
    "bindings.create",
    effect=Effect.CHANGE,
    ends=True,
    title="Create or change a binding",
    summary="Give a principal roles on the cluster, a namespace or a topic. A binding of that name is replaced.",
    forecast=forecast_create_binding,
    undo=undo_create_binding,
    required_flags=("roles",),
    examples=(
        Example(
            {"binding": "ann-orders", "principal": "ann", "roles": "producer,consumer", "scope": "topic",
             "resource": "/shop/orders*"},
            "ann writes and reads topics that begin with orders",
        ),
    ),
)  # fmt: skip
async def create_binding(context: Context, request: CreateBindingRequest) -> ChangedBinding:
    made = _new_binding(context, await stored_grants(context), request)
    await write_grant(context, binding_key(made.id), encode_binding(made))
    return ChangedBinding(**_binding(made))


def _new_binding(context: Context, stored: StoredGrants, request: CreateBindingRequest) -> Binding:
    made = _asked_for(request)
    check_room(stored.bindings, made.id, "bindings")
    check_grantable(context, stored, made.roles, made.scope, made.resource)
    check_admin_left(stored, replace(stored, bindings={**stored.bindings, made.id: made}))
    return made


def _asked_for(request: CreateBindingRequest) -> Binding:
    scope = Scope(request.scope)
    return Binding(
        id=request.binding,
        principal=Principal(request.principal, request.principal_type),
        roles=names_of(request.roles),
        scope=scope,
        resource=_scoped(scope, request.resource),
    )


def _scoped(scope: Scope, resource: str) -> str:
    """Return the resource in its stored form: "", a namespace or /namespace/topic. The latter two may end in a star."""
    star = "*" if resource.endswith("*") else ""
    bare = resource.removesuffix("*")
    match scope:
        case Scope.CLUSTER:
            if resource:
                raise InvalidArgument(
                    "a binding on the cluster names no resource", field="resource", value=resource
                )
            return ""
        case Scope.NAMESPACE:
            return (
                (check_namespace(bare, field="resource") if bare.strip("/") else "") + star
                if resource
                else _none(scope)
            )
        case Scope.TOPIC:
            namespace, _, topic = bare.removeprefix("/").rpartition("/")
            if not resource or not namespace or (not topic and not star):
                return _none(scope)
            check_namespace(namespace, field="resource")
            return (
                str(TopicName.parse(f"/{namespace}/{topic}", field="resource")) + star
                if topic
                else f"/{namespace}/*"
            )


def _none(scope: Scope) -> str:
    form = "shop or shop*" if scope is Scope.NAMESPACE else "/shop/orders or /shop/orders*"
    raise InvalidArgument(f"a binding on a {scope.value} names one: write {form}", field="resource", value="")


async def forecast_delete_binding(context: Context, request: BindingRequest) -> Forecast:
    going = _check_removable(await stored_grants(context), request.binding)
    return grant_forecast(f"bindings/{going.id}", _binding(going), None)


async def undo_delete_binding(context: Context, request: BindingRequest, done: Done) -> Undo:
    return await _undo(context, "binding", request.binding, None, done)


@operation(
    "bindings.delete",
    effect=Effect.CHANGE,
    ends=True,
    title="Delete a binding",
    summary="Delete a binding. Streams that it permitted end within 5 s.",
    forecast=forecast_delete_binding,
    undo=undo_delete_binding,
    examples=(Example({"binding": "ann-orders"}, "ann no longer has the binding's roles"),),
)
async def delete_binding(context: Context, request: BindingRequest) -> DeletedBinding:
    going = _check_removable(await stored_grants(context), request.binding)
    await write_grant(context, binding_key(going.id), None)
    return DeletedBinding(binding=going.id)


def _check_removable(stored: StoredGrants, name: str) -> Binding:
    binding = found_grant(stored.bindings, "binding", name)
    rest = {key: value for key, value in stored.bindings.items() if key != name}
    check_admin_left(stored, replace(stored, bindings=rest))
    return binding


def _binding(binding: Binding) -> dict[str, Any]:
    return {
        "binding": binding.id, "principal": binding.principal.name, "principal_type": binding.principal.type,
        "roles": list(binding.roles), "scope": binding.scope.value, "resource": binding.resource,
    }  # fmt: skip
