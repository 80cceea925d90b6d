"""Quotas: how much a namespace, or a principal, may take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import SYSTEM_NAMESPACE, check_namespace
from pydanube_core.quotas import QUOTAS, Quota, QuotaKind, check_quota, quota_key
from pydanube_core.refusals import changed_since
from pydanube_core.security.permissions import Principal

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, changes
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.stored_grants import PrincipalType, state_values, write_grant
from pydanube_admin.operations.present_use import holders_over, not_measured, refused_then

QuotaName = Literal[
    "topics",
    "subscriptions",
    "stored_bytes",
    "connections",
    "requests_per_s",
    "changes_per_h",
    "destroyed_messages_per_h",
    "producers",
    "messages_in_per_s",
    "bytes_in_per_s",
    "messages_out_per_s",
    "bytes_out_per_s",
]
# A map, as policies are: the names need no description.
Amounts = dict[QuotaName, Annotated[int, Field(ge=0)] | None]


class QuotaItem(Result):
    identity: ClassVar = ("kind", "name")

    kind: str  # namespace, principal
    name: str  # of a principal with its type. Empty: principals without a quota of their own
    limits: dict[str, int]
    warnings: dict[str, int]


class Felt(Result):
    """How often a quota took effect at the answering broker since it started."""

    quota: str
    what: str  # slowed, refused, warned
    times: int
    waited_ms: int


class QuotaListItem(QuotaItem):
    own: bool  # False: the limits are those of all principals, or of the settings
    used: dict[str, int]  # the use at the answering broker
    felt: list[Felt]


class SetQuotaRequest(Request):
    limits: Annotated[
        Amounts | None,
        Field(description="0: no limit, null: not set. Rates are each broker's"),
    ] = None
    warnings: Annotated[Amounts | None, Field(description="Only reported")] = None
    namespace: Annotated[
        str | None,
        Field(max_length=128, description="In place of principal. *: each without its own"),
    ] = None
    principal: Annotated[
        str | None,
        Field(max_length=256, description="In place of namespace. *: each without its own"),
    ] = None
    principal_type: PrincipalType = "user"


class ChangedQuota(QuotaItem, Change):
    pass


@operation(
    "quotas.list",
    effect=Effect.READ,
    summary="List quotas of namespaces and principals, with their use, and how often they slowed, refused or warned.",
    examples=(Example({}, "every quota"),),
)
async def list_quotas(context: Context, request: SortedListRequest) -> Page[QuotaListItem]:
    matches = glob(request.filter)
    own = {(each.kind, each.name): each for each in await _quotas(context)}
    uses = {(each.kind, each.name): each for each in context.port.quotas.uses()}
    felt = {key for key, use in uses.items() if use.slowed or use.refused or use.warned}

    def item(key: tuple[QuotaKind, str]) -> QuotaListItem:
        use, holds = uses.get(key), own.get(key) or context.port.quotas.of(*key)
        told = {} if use is None else {"slowed": use.slowed, "refused": use.refused, "warned": use.warned}
        return QuotaListItem(
            kind=key[0],
            name=key[1],
            limits=dict(holds.limits),
            warnings=dict(holds.warnings),
            own=key in own,
            used={} if use is None else dict(use.used),
            felt=[
                Felt(quota=quota, what=what, times=times, waited_ms=waited_ms)
                for what, found in told.items()
                for quota, (times, waited_ms) in sorted(found.items())
            ],
        )

    return await page_of(
        context,
        QuotaListItem,
        [key for key in {*own, *felt} if matches(key[1])],
        item,
        key=lambda key: key,
        request=request,
    )


async def forecast_set_quota(context: Context, request: SetQuotaRequest) -> Forecast:
    kind, name = _whose(request)
    before, after = await _before_and_after(context, request)
    path = f"quotas/{kind}/{name or '*'}"
    return Forecast(
        diff=[
            *changes(f"{path}/limits", before.limits, _given(request.limits)),
            *changes(f"{path}/warnings", before.warnings, _given(request.warnings)),
        ],
        image={"limits": dict(before.limits), "warnings": dict(before.warnings)},
        basis=[before.to_bytes().decode(), after.to_bytes().decode()],
        later=". ".join(await _refused_then(context, before, after, _given(request.limits))) or None,
    )


async def _refused_then(
    context: Context, before: Quota, after: Quota, given: Mapping[str, int | None]
) -> list[str]:
    """Return a sentence for each given limit that is below the present use of a holder that it applies to."""
    own = {quota.name for quota in await _quotas(context) if quota.kind == after.kind}

    def applies(holder: str) -> bool:
        if after.kind == "namespace" and holder == SYSTEM_NAMESPACE:
            return False
        return holder == after.name if after.name else holder not in own

    limits = {key: after.limits.get(key) for key in given}
    over = await holders_over(context, after.kind, applies, limits)
    return [*refused_then(over), *not_measured(before.limits, limits, over)]


async def undo_set_quota(context: Context, request: SetQuotaRequest, done: Done) -> Undo:
    now, _ = await _before_and_after(context, request)
    back: dict[str, dict[str, int | None]] = {}
    for part, found, given in (
        ("limits", now.limits, _given(request.limits)),
        ("warnings", now.warnings, _given(request.warnings)),
    ):
        former = {key: done.image[part].get(key) for key in given}
        if {key: found.get(key) for key in given} not in (given, former):
            raise changed_since(f"a quota of {now.label}")
        back[part] = former
    again = request.model_copy(update=back)
    return Undo(act=partial(set_quota, context, again), forecast=await forecast_set_quota(context, again))


@operation(
    "quotas.set",
    effect=Effect.CHANGE,
    title="Set a quota",
    tool="set_quota",
    permission="quotas:change",
    summary="Limit the use of a namespace or a principal immediately. A limit that is not named stays, null removes it.",
    forecast=forecast_set_quota,
    undo=undo_set_quota,
    examples=(
        Example(
            {"namespace": "shop", "limits": {"topics": 100, "bytes_in_per_s": 10_000_000}},
            "at most 100 topics and 10 MB a second",
        ),
        Example(
            {"principal": "ann", "limits": {"connections": 50}, "warnings": {"connections": 40}},
            "a warning from the 41st on, refused from the 51st",
        ),
    ),
)
async def set_quota(context: Context, request: SetQuotaRequest) -> ChangedQuota:
    _, made = await _before_and_after(context, request)
    empty = not made.limits and not made.warnings
    await write_grant(context, quota_key(made.kind, made.name), None if empty else made.to_bytes())
    await context.port.quotas.look()
    return ChangedQuota(
        kind=made.kind, name=made.name, limits=dict(made.limits), warnings=dict(made.warnings)
    )


async def _before_and_after(context: Context, request: SetQuotaRequest) -> tuple[Quota, Quota]:
    kind, name = _whose(request)
    for part, given in (("limits", _given(request.limits)), ("warnings", _given(request.warnings))):
        check_quota(kind, {key: value or 0 for key, value in given.items()}, field=part)
    if not request.limits and not request.warnings:
        raise InvalidArgument(
            "nothing is set: give limits or warnings, as --limits '{\"topics\": 100}'",
            field="limits",
            value={},
        )
    found = await context.port.read_state(quota_key(kind, name))
    before = Quota(kind=kind, name=name) if found is None else Quota.from_bytes(found.value)
    return before, Quota(
        kind=kind,
        name=name,
        limits=_changed(before.limits, _given(request.limits)),
        warnings=_changed(before.warnings, _given(request.warnings)),
    )


def _changed(before: Mapping[str, int], given: Mapping[str, int | None]) -> dict[str, int]:
    after: dict[str, int | None] = {**before, **given}
    return {key: value for key, value in sorted(after.items()) if value is not None}


def _given(amounts: Amounts | None) -> dict[str, int | None]:
    return {str(key): value for key, value in (amounts or {}).items()}


def _whose(request: SetQuotaRequest) -> tuple[QuotaKind, str]:
    """Return the kind and the stored name, which is empty for the quota of those without one."""
    if (request.namespace is None) == (request.principal is None):
        raise InvalidArgument(
            "name the owner of the quota: a namespace, or a principal",
            field="namespace",
            value=request.namespace,
        )
    if request.namespace is not None:
        return "namespace", "" if request.namespace == "*" else check_namespace(request.namespace)
    assert request.principal is not None, "one of both is there"
    principal = Principal(request.principal, request.principal_type)
    return "principal", "" if request.principal == "*" else str(principal)


async def _quotas(context: Context) -> list[Quota]:
    return [Quota.from_bytes(value) for value in await state_values(context, QUOTAS)]
