"""Bounds of numbers and lengths, and implication between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`sign` is 1 for a lower bound, -1 for an upper one."""

    value: float
    exclusive: bool
    sign: int

    def implies(self, other: Bound) -> bool:
        mine, theirs = self.sign * self.value, other.sign * other.value
        return mine > theirs or (mine == theirs and (self.exclusive or not other.exclusive))


def lower_bound(parts: Iterable[Mapping[str, Any]]) -> Bound | None:
    """Return the strongest lower bound of all parts."""
    return _strongest(parts, "minimum", "exclusiveMinimum", 1)


def upper_bound(parts: Iterable[Mapping[str, Any]]) -> Bound | None:
    return _strongest(parts, "maximum", "exclusiveMaximum", -1)


def _strongest(parts: Iterable[Mapping[str, Any]], word: str, strict: str, sign: int) -> Bound | None:
    found: Bound | None = None
    for part in parts:
        limit, extra = part.get(word), part.get(strict)
        # In draft 4 the exclusive keyword is a boolean that modifies the limit
        if limit is not None and _is_number(limit):
            found = _stronger(found, Bound(value=limit, exclusive=extra is True, sign=sign))
        if extra is not None and _is_number(extra):
            found = _stronger(found, Bound(value=extra, exclusive=True, sign=sign))
    return found


def _stronger(one: Bound | None, other: Bound) -> Bound:
    return other if one is None or other.implies(one) else one


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def lowest_count(parts: Iterable[Mapping[str, Any]], word: str) -> float:
    """Return the largest lower bound of a length, 0 if there is none."""
    return max((part[word] for part in parts if _is_number(part.get(word))), default=0)


def highest_count(parts: Iterable[Mapping[str, Any]], word: str) -> float | None:
    return min((part[word] for part in parts if _is_number(part.get(word))), default=None)


def is_multiple(step: float, of: float) -> bool:
    """Return whether every multiple of `step` is one of `of`. Unequal fractions count as no, because division rounds."""
    if step == of:
        return True
    whole = [int(x) for x in (step, of) if isinstance(x, int) or x.is_integer()]
    return len(whole) == 2 and whole[1] != 0 and whole[0] % whole[1] == 0
