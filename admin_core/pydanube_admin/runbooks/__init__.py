"""Runbooks: the checks for recurring tasks, in order. Data files that name operations.

    runbooks.all()                      # every one, by name
    runbooks.get("plan_capacity")       # InvalidArgument if there is none of that name
    runbook.title, .summary, .parameters, .steps
    runbooks.text(runbook, {"topic": "orders"})         # as a text for people and models

`running.run` carries one out, step by step.
"""

from __future__ import annotations

from pydanube_admin.runbooks.runbook import Check, Parameter, Runbook, RunbookStep, get
from pydanube_admin.runbooks.runbook import all_runbooks as all
from pydanube_admin.runbooks.texts import text

__all__ = ["Check", "Parameter", "Runbook", "RunbookStep", "all", "get", "text"]
