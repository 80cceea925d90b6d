"""Making, showing, applying and discarding plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from pydanube_core.errors import InvalidArgument, TopicNotFound
from pydanube_core.units import format_time

from pydanube_admin.engine.call import Call
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.many_plans import apply_many, plan_many, topics_named
from pydanube_admin.engine.models import Page, Request, Result, SortedListRequest
from pydanube_admin.engine.next_calls import known
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.permission import Sight
from pydanube_admin.engine.plan_records import PlanRecord, no_plan
from pydanube_admin.engine.shown_plan import AppliedPlan, Plan, ShownPlan, shown_plan
from pydanube_admin.engine.spelling import shown

_ID: Final = "p019b0c1d2e3f4a5b6c7d8e9f"


PlanId = Annotated[str, Field(min_length=1, max_length=64, description="Id of the plan")]


class CreatePlanRequest(Request):
    operation: Annotated[str, Field(max_length=100, description="Name of a change, such as topics.delete")]
    arguments: Annotated[
        dict[str, Any] | None, Field(description="Its arguments, without plan_only and plan_token")
    ] = None
    topics: Annotated[
        str | None,
        Field(
            max_length=16_384, description="For each topic of these globs or names, commas between: one plan"
        ),
    ] = None


class PlanRequest(Request):
    plan_id: PlanId


class ApplyPlanRequest(Request):
    plan_token: Annotated[
        str, Field(min_length=1, max_length=256, description="plan_token of the plan, which works once")
    ]
    plan_id: Annotated[str | None, Field(max_length=64, description="Id of the plan, to be sure")] = None


class PlanItem(Result):
    identity: ClassVar = ("plan_id",)

    plan_id: str
    operation: str
    principal: str
    effect: str
    reversible: bool
    state: str  # open | used | discarded | expired
    created_at: str
    expires_at: str


class DiscardedPlan(Result):
    plan_id: str
    operation: str
    state: str


@operation(
    "plans.create",
    effect=Effect.CREATE,
    tool="plan_operation",
    title="Plan a change",
    summary="Say exactly what a change would do, and get the token that does it once. Nothing changes.",
    idempotent=False,
    plans_itself=True,
    default_profile=True,
    examples=(
        Example(
            {"operation": "topics.delete", "arguments": {"topic": "orders"}},
            "what deleting a topic would take away",
        ),
        Example(
            {"operation": "topics.delete", "topics": "test-*,old-*"},
            "the same of every topic of two globs, with one token",
        ),
    ),
)
async def create_plan(context: Context, request: CreatePlanRequest) -> Plan:
    if request.topics is not None:
        return await plan_many(context, await _for_each(context, request, request.topics))
    return await context.desk.plan(context, _plannable(context, request.operation, request.arguments or {}))


async def _for_each(context: Context, request: CreatePlanRequest, globs: str) -> list[Call]:
    """The change of each topic that is named."""
    arguments = request.arguments or {}
    if "topic" in arguments or "topic" not in known(request.operation).request_names:
        raise InvalidArgument(
            "topics: the change is planned for each of them, so it takes a topic, and arguments has none",
            field="topics",
            value=globs[:200],
        )
    names = await topics_named(context, globs)
    if not names:
        raise TopicNotFound(
            f"topics: no topic is named by {shown(globs)!r}", field="topics", value=shown(globs)
        )
    return [_plannable(context, request.operation, {**arguments, "topic": name}) for name in names]


def _plannable(context: Context, operation: str, arguments: Mapping[str, Any]) -> Call:
    call = context.desk.parse(operation, arguments)
    if not call.operation.planned or call.plan_token:
        raise InvalidArgument(
            f"{operation} cannot be planned: it is no change, or is itself about plans. Call it as it is",
            field="operation",
            value=operation,
        ).followed_by(call.operation.next_call(call.arguments, "does it"))
    return call


@operation(
    "plans.list",
    effect=Effect.READ,
    summary="List plans, the oldest first, with what became of them.",
    examples=(Example({}, "every plan that is kept"),),
)
async def list_plans(context: Context, request: SortedListRequest) -> Page[PlanItem]:
    matches, sight = glob(request.filter), Sight(context.port, "plans:read")
    now = context.now_ms()
    plans = await context.desk.plans.list()
    found = [plan for plan in plans if matches(plan.operation) and sight.made_by(plan)]
    return await page_of(
        context,
        PlanItem,
        found,
        lambda plan: PlanItem.of(
            plan,
            state=plan.state_at(now),
            created_at=format_time(plan.created_ms),
            expires_at=format_time(plan.expires_ms),
        ),
        key=lambda plan: (plan.plan_id,),
        operation="plans.list",
        request=request,
    )


async def _seen(context: Context, request: PlanRequest, permission: str) -> PlanRecord:
    """The plan; of others only with the permission, and what is hidden is said not to be there."""
    record, _ = await context.desk.plans.get(request.plan_id)
    if not Sight(context.port, permission).made_by(record):
        raise no_plan(request.plan_id)
    return record


@operation(
    "plans.show",
    effect=Effect.READ,
    title="Show a plan",
    summary="Show what a plan would change; not its token.",
    examples=(Example({"plan_id": _ID}, "as it was made"),),
)
async def show_plan(context: Context, request: PlanRequest) -> ShownPlan:
    record = await _seen(context, request, "plans:read")
    return shown_plan(record, context.now_ms())


@operation(
    "plans.apply",
    effect=Effect.DESTROY,
    title="Apply a plan",
    summary="Do what a plan says, once; refused if what it stands on has changed.",
    plans_itself=True,
    default_profile=True,
    examples=(Example({"plan_token": f"{_ID}.secret"}, "the token of plans.create"),),
)
async def apply_plan(context: Context, request: ApplyPlanRequest) -> AppliedPlan:
    many = await context.desk.plans.many(request.plan_token)
    if many is not None and request.plan_id in (None, many[0].plan_id):
        return await apply_many(context, *many, request.plan_token)
    return await context.desk.apply(context, request.plan_token, request.plan_id)


@operation(
    "plans.discard",
    effect=Effect.CHANGE,
    title="Discard a plan",
    summary="Take a plan out of use before its time.",
    plans_itself=True,
    examples=(Example({"plan_id": _ID}, "nobody can apply it any more"),),
)
async def discard_plan(context: Context, request: PlanRequest) -> DiscardedPlan:
    await _seen(context, request, "plans:discard")
    record = await context.desk.discard(context, request.plan_id)
    return DiscardedPlan(plan_id=record.plan_id, operation=record.operation, state=record.state)
