"""The calls that an error or a finding offers as its next step.

Handlers of one area name operations of another, and the registry is made of all areas: so it announces the
operations here when it has gathered them, and nobody imports in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube_admin.operation import Operation


_operations: dict[str, Operation] = {}


def announce(operations: Mapping[str, Operation]) -> None:
    """Make operations known by name; called once, by the registry."""
    _operations.update(operations)


def is_known(operation: str) -> bool:
    """Whether this version has the operation."""
    return operation in _operations


def next_call(operation: str, arguments: Mapping[str, Any], why: str) -> dict[str, Any]:
    """An entry of an error's `next`, for an operation that exists."""
    return _operations[operation].next_call(arguments, why)


def known(operation: str) -> Operation:
    """The operation of that name, which exists."""
    return _operations[operation]


def every() -> list[Operation]:
    """All operations, by name."""
    return [_operations[name] for name in sorted(_operations)]
