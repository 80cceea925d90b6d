"""Typed administration: every operation is a method, its result an object, and its changes a plan.

    from pydanube.admin import connect_admin

    async with connect_admin() as admin:
        page = await admin.topics.list(filter="orders*")
        plan = await admin.topics.plan_delete("orders")
        print(plan.diff, plan.blast_radius)
        deleted = await plan.apply()
        await admin.changes.undo(deleted.call_id)

Destructive operations raise `PlanRequired` without a plan. Every change has a `plan_…` beside it, which changes
nothing. `pydanube.sync.connect_admin` is the same without await. The methods are written by tools/gen_admin_client.py
from the declarations of the operations.
"""

from __future__ import annotations

from pydanube.admin.connecting import connect_admin
from pydanube.admin.generated.operations import Admin
from pydanube.admin.plans import Plan, SyncPlan
from pydanube.admin.values import Page, Result

__all__ = ["Admin", "Page", "Plan", "Result", "SyncPlan", "connect_admin"]
