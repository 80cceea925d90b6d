"""The calls that an error or a finding offers as its next step.

Handlers of one area name operations of another: they ask for them by name, when all are declared, and nobody imports in
a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_admin.engine.operation import DECLARED, Operation


def is_known(operation: str) -> bool:
    """Whether this version has the operation."""
    return operation in DECLARED


def next_call(operation: str, arguments: Mapping[str, Any], why: str) -> dict[str, Any]:
    """An entry of an error's `next`, for an operation that exists."""
    return DECLARED[operation].next_call(arguments, why)


def known(operation: str) -> Operation:
    """The operation of that name, which exists."""
    return DECLARED[operation]


def every() -> list[Operation]:
    """Return all operations, by name."""
    return [DECLARED[name] for name in sorted(DECLARED)]
