"""A call of an operation whose arguments are sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydanube_admin.engine.models import Request
from pydanube_admin.engine.operation import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`arguments` are as they were given, without what is about plans and tasks; `request` is what they mean."""

    operation: Operation
    request: Request
    arguments: Mapping[str, Any]
    plan_only: bool = False
    plan_token: str = ""
    detach: bool = False  # answer with the task, and go on when the caller is gone
