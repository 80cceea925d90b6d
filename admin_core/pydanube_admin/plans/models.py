"""Requests and results of the operations on plans."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pydanube_admin.models import ListRequest, Request, Result

PlanId = Annotated[str, Field(min_length=1, max_length=64, description="Id of the plan")]


class CreatePlanRequest(Request):
    operation: Annotated[str, Field(max_length=100, description="Name of a change, such as topics.delete")]
    arguments: Annotated[
        dict[str, Any] | None, Field(description="Its arguments, without plan_only and plan_token")
    ] = None


class PlanRequest(Request):
    plan_id: PlanId


class ApplyPlanRequest(Request):
    plan_token: Annotated[
        str, Field(min_length=1, max_length=256, description="plan_token of the plan, which works once")
    ]
    plan_id: Annotated[str | None, Field(max_length=64, description="Id of the plan, to be sure")] = None


class ListPlansRequest(ListRequest):
    pass


class PlanItem(Result):
    plan_id: str
    operation: str
    principal: str
    effect: str
    reversible: bool
    state: str  # open | used | discarded | expired
    created_at: str
    expires_at: str


class ShownPlan(Result):
    """What a change would do."""

    plan_id: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]  # {path, before, after}
    blast_radius: dict[str, int]  # topics, subscriptions, consumers; messages and bytes that go at once
    later: str | None = None  # what may go after that
    state: str
    created_at: str
    expires_at: str
    revision: str  # of what the plan stands on: another one makes it stale
    call_id: str | None = None  # of the change it became


class Plan(ShownPlan):
    """A plan as only its maker gets it: with the token that applies it, once."""

    plan_token: str


class AppliedPlan(Result):
    operation: str
    result: dict[str, Any]
    call_id: str
    plan_id: str
    undo_until: str | None


class DiscardedPlan(Result):
    plan_id: str
    operation: str
    state: str
