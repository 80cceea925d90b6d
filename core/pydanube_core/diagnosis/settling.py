"""Hysteresis: a value counts once it has held for a while, and a fault ends only after being gone for longer."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Settling(Generic[T]):
    """The settled value of a stream of observations. `since_ms` is when the settled one was first observed.

    A new value settles after `enter_after` observations in a row. The old one is left only after `leave_after`
    observations that differ from it. The first observation settles immediately, because there is nothing to leave.
    """

    __slots__ = ("_away", "_candidate", "_candidate_ms", "_count", "since_ms", "value")

    def __init__(self, value: T, now_ms: int) -> None:
        self.value = value
        self.since_ms = now_ms
        self._candidate = value
        self._candidate_ms = now_ms
        self._count = 0
        self._away = 0

    @property
    def pending(self) -> bool:
        """Whether the last observation differed from the settled value."""
        return self._away > 0

    def observe(self, value: T, now_ms: int, *, enter_after: int, leave_after: int) -> bool:
        """Take an observation, and return whether the settled value changed."""
        if value == self.value:
            self._away = self._count = 0
            self._candidate = value
            return False
        self._away += 1
        if value == self._candidate:
            self._count += 1
        else:
            self._candidate, self._candidate_ms, self._count = value, now_ms, 1
        if self._count < enter_after or self._away < leave_after:
            return False
        self.value, self.since_ms = value, self._candidate_ms
        self._away = self._count = 0
        return True
