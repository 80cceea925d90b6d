"""The mark of a port's methods that change nothing, by which a caller knows what a lost answer means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

_READS: Final = "__reads__"
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def reads(method: MethodT) -> MethodT:
    """Mark a method that changes nothing. Without the mark a method counts as a change, which is not repeated by itself."""
    setattr(method, _READS, True)
    return method


def is_read(port: type, name: str) -> bool:
    """Return whether the method of that name is marked with `reads`."""
    return bool(getattr(getattr(port, name, None), _READS, False))
