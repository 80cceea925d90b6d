"""Bound the work of a comparison of schemas."""

from __future__ import annotations


class TooComplex(Exception):
    """The work would take too long, as between unions of thousands of types."""


class StepBudget:
    """The steps that are left of a computation."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps. Raises `TooComplex` when more are counted than the budget has."""
        self._left -= steps
        if self._left < 0:
            raise TooComplex
