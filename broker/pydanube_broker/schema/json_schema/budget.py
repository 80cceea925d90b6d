"""How much work a comparison may be: proofs branch, and schemas are anybody's."""

from __future__ import annotations

from typing import Final

MAX_WORK: Final = 1_000_000  # steps of about a microsecond; in a thread


class TooComplex(Exception):
    """The comparison would take too long to be worth it."""


class Budget:
    __slots__ = ("_left",)

    def __init__(self, steps: int = MAX_WORK) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Raises `TooComplex` when all is spent."""
        self._left -= steps
        if self._left < 0:
            raise TooComplex
