"""Making, showing, applying and discarding plans."""

from __future__ import annotations

from pydanube_core.errors import InvalidArgument
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.models import Page
from pydanube_admin.paging import cut, glob
from pydanube_admin.plans.desk import shown_plan
from pydanube_admin.plans.models import (
    AppliedPlan,
    ApplyPlanRequest,
    CreatePlanRequest,
    DiscardedPlan,
    ListPlansRequest,
    Plan,
    PlanItem,
    PlanRequest,
    ShownPlan,
)


async def create_plan(context: Context, request: CreatePlanRequest) -> Plan:
    call = context.desk.parse(request.operation, request.arguments or {})
    if not call.operation.planned or call.plan_token:
        raise InvalidArgument(
            f"{request.operation} cannot be planned: it is no change, or is itself about plans. Call it as it is",
            field="operation",
            value=request.operation,
        ).followed_by(call.operation.next_call(call.arguments, "does it"))
    return await context.desk.plan(context, call)


async def list_plans(context: Context, request: ListPlansRequest) -> Page[PlanItem]:
    matches = glob(request.filter)
    now = context.now_ms()
    found = [plan for plan in await context.desk.plans.list() if matches(plan.operation)]
    page = cut(found, key=lambda plan: (plan.plan_id,), operation="plans.list", request=request)
    return Page[PlanItem](
        items=[
            PlanItem(
                plan_id=plan.plan_id,
                operation=plan.operation,
                principal=plan.principal,
                effect=plan.effect,
                reversible=plan.reversible,
                state=plan.state_at(now),
                created_at=format_time(plan.created_ms),
                expires_at=format_time(plan.expires_ms),
            )
            for plan in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(now),
    )


async def show_plan(context: Context, request: PlanRequest) -> ShownPlan:
    record, _ = await context.desk.plans.get(request.plan_id)
    return shown_plan(record, context.now_ms())


async def apply_plan(context: Context, request: ApplyPlanRequest) -> AppliedPlan:
    return await context.desk.apply(context, request.plan_token, request.plan_id)


async def discard_plan(context: Context, request: PlanRequest) -> DiscardedPlan:
    record = await context.desk.discard(context, request.plan_id)
    return DiscardedPlan(plan_id=record.plan_id, operation=record.operation, state=record.state)
