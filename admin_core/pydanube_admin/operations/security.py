"""Operations that answer questions about permissions: `whoami`, `explain`."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName, check_namespace
from pydanube_core.security.permissions import CONSUME, LOOK_UP, PRODUCE, Principal, Resource
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Request, Result
from pydanube_admin.engine.operation import DECLARED, operation
from pydanube_admin.engine.stored_grants import PrincipalName, PrincipalType, calling_identity, stored_grants

_NOT_ENFORCED: Final = {
    "off": "authentication is off, so every caller may do this",
    "optional": "authentication is optional, so every caller may do this, and calls that would fail are counted",
}
DATA: Final = {"look_up": LOOK_UP, "produce": PRODUCE, "consume": CONSUME}


class Whoami(Result):
    principal: str
    principal_type: str
    method: str  # token, jwt, certificate, socket, or none: authentication is off, or no credential came
    credential: str | None  # its id, never the secret
    expires_at: str | None
    mode: str  # off, optional, required
    everything: bool  # may do all
    bindings: list[str]
    permissions: list[str]  # permissions on any resource. "*" is everything


class ExplainRequest(Request):
    principal: PrincipalName
    operation: Annotated[
        str, Field(max_length=100, description="Such as topics.delete, or look_up, produce, consume")
    ]
    resource: Annotated[
        str | None, Field(max_length=300, description="/namespace/topic or a namespace. Default: the cluster")
    ] = None
    principal_type: PrincipalType = "user"


class Explanation(Result):
    mode: str  # off, optional, required
    enforced: bool  # false: refusals are not made, with optional only counted
    allowed: bool  # the present decision
    by_bindings: bool  # the decision by the bindings, which applies once they are enforced
    principal: str
    permission: str
    resource: str
    binding: str | None  # the binding that allows it
    role: str | None
    why: str


@operation(
    "security.whoami",
    effect=Effect.READ,
    title="Who am I",
    summary="Show the principal of this call, how it was proven, and its permissions.",
    examples=(Example({}, "your principal, as the broker sees it"),),
)
async def whoami(context: Context, request: Request) -> Whoami:
    caller = calling_identity()
    stored = await stored_grants(context)
    mine = [each.id for each in stored.bindings.values() if each.principal == caller.principal]
    mode = _mode(context)
    claimed = mode == "off"
    everything = mode != "required" or caller.everything
    return Whoami(
        principal=context.principal if claimed else caller.principal.name,
        principal_type="claimed" if claimed else caller.principal.type,
        method=caller.method,
        credential=caller.credential or None,
        expires_at=None if caller.expires_at_s is None else format_time(int(caller.expires_at_s * 1000)),
        mode=mode,
        everything=everything,
        bindings=sorted(mine),
        permissions=["*"] if everything else sorted(stored.grants.permissions(caller.principal)),
    )


@operation(
    "security.explain",
    effect=Effect.READ,
    title="Explain a permission",
    summary="Check whether a principal may carry out an operation on a resource, and which binding decides it.",
    required_flags=("operation",),
    examples=(
        Example(
            {"principal": "ann", "operation": "produce", "resource": "/shop/orders"}, "may ann write orders"
        ),
    ),
)
async def explain_permission(context: Context, request: ExplainRequest) -> Explanation:
    permission = _permission(request.operation)
    resource = _resource(request.resource)
    principal = Principal(request.principal, request.principal_type)
    stored = await stored_grants(context)
    decision = stored.grants.decide(principal, permission, resource)
    bound = [each for each in stored.bindings.values() if each.principal == principal]
    if decision.allowed:
        why = f"the binding {decision.binding} gives the role {decision.role}, which holds {permission}"
    elif not bound:
        why = f"no binding names {principal}"
    elif not any(each.covers(resource) for each in bound):
        why = f"no binding of {principal} covers {resource}: there are {', '.join(each.id for each in bound[:10])}"
    else:
        why = f"no role that {principal} has on {resource} holds {permission}"
    mode = _mode(context)
    if mode != "required":
        why = f"{_NOT_ENFORCED[mode]}. By the bindings: {why}"
    return Explanation(
        mode=mode,
        enforced=mode == "required",
        allowed=decision.allowed or mode != "required",
        by_bindings=decision.allowed,
        principal=str(principal),
        permission=permission,
        resource=str(resource) if resource.namespace else "cluster",
        binding=decision.binding or None,
        role=decision.role or None,
        why=why,
    )


def _mode(context: Context) -> str:
    locks = context.port.locks
    return "off" if locks is None else "required" if locks.required else "optional"


def _permission(name: str) -> str:
    if name in DATA:
        return DATA[name]
    known = DECLARED.get(name)
    if known is None:
        raise InvalidArgument(
            f"there is no operation {name[:100]!r}. Write one as topics.list, or {', '.join(DATA)}",
            field="operation",
            value=name[:100],
        )
    return known.permission


def _resource(text: str | None) -> Resource:
    if not text:
        return Resource()
    if text.strip("/").count("/"):
        return Resource.of(TopicName.parse(text))
    return Resource(check_namespace(text, field="resource"))
