"""Plans as everybody may see them, and as their maker does."""

from __future__ import annotations

from typing import Any

from pydanube_core.units import format_time

from pydanube_admin.engine.models import Result
from pydanube_admin.engine.plan_records import PlanRecord


class ShownPlan(Result):
    """A plan as it is shown: what a change would do."""

    plan_id: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]  # {path, before, after}
    # Topics, subscriptions, consumers; messages and bytes that go at once; null: unknown
    blast_radius: dict[str, int | None]
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


def shown_plan(record: PlanRecord, now_ms: int) -> ShownPlan:
    """A plan as everybody may see it."""
    return ShownPlan.of(
        record,
        state=record.state_at(now_ms),
        created_at=format_time(record.created_ms),
        expires_at=format_time(record.expires_ms),
    )
