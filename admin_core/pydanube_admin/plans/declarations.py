"""The operations on plans."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation
from pydanube_admin.plans.handlers import apply_plan, create_plan, discard_plan, list_plans, show_plan
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

_ID: Final = "p019b0c1d2e3f4a5b6c7d8e9f"

PLAN_OPERATIONS: Final = (
    Operation(
        name="plans.create",
        idempotent=False,
        tool="plan_operation",
        title="Plan a change",
        effect=Effect.CREATE,
        permission="plans:create",
        reversible=False,
        summary="Say exactly what a change would do, and get the token that does it once. Nothing changes.",
        request=CreatePlanRequest,
        result=Plan,
        handler=create_plan,
        plans_itself=True,
        examples=(
            Example(
                arguments={"operation": "topics.delete", "arguments": {"topic": "orders"}},
                note="what deleting a topic would take away",
            ),
        ),
        default_profile=True,
    ),
    Operation(
        name="plans.list",
        tool="list_plans",
        title="List plans",
        effect=Effect.READ,
        permission="plans:read",
        reversible=None,
        summary="List plans, the oldest first, with what became of them.",
        request=ListPlansRequest,
        result=Page[PlanItem],
        handler=list_plans,
        examples=(Example(arguments={}, note="every plan that is kept"),),
        default_profile=False,
    ),
    Operation(
        name="plans.show",
        tool="show_plan",
        title="Show a plan",
        effect=Effect.READ,
        permission="plans:read",
        reversible=None,
        summary="Show what a plan would change; not its token.",
        request=PlanRequest,
        result=ShownPlan,
        handler=show_plan,
        examples=(Example(arguments={"plan_id": _ID}, note="as it was made"),),
        default_profile=False,
    ),
    Operation(
        name="plans.apply",
        tool="apply_plan",
        title="Apply a plan",
        effect=Effect.DESTROY,
        permission="plans:apply",
        reversible=False,
        summary="Do what a plan says, once; refused if what it stands on has changed.",
        request=ApplyPlanRequest,
        result=AppliedPlan,
        handler=apply_plan,
        plans_itself=True,
        examples=(Example(arguments={"plan_token": f"{_ID}.secret"}, note="the token of plans.create"),),
        default_profile=True,
    ),
    Operation(
        name="plans.discard",
        tool="discard_plan",
        title="Discard a plan",
        effect=Effect.CHANGE,
        permission="plans:discard",
        reversible=False,
        summary="Take a plan out of use before its time.",
        request=PlanRequest,
        result=DiscardedPlan,
        handler=discard_plan,
        plans_itself=True,
        examples=(Example(arguments={"plan_id": _ID}, note="nobody can apply it any more"),),
        default_profile=False,
    ),
)
