"""Common measures of how uneven a list of loads is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

_NORMAL: Final = 0.6745  # of a normal distribution's MAD: Iglewicz and Hoaglin, 1993


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """`max_over_mean`, `cv` (standard deviation ÷ mean) and `gini` are None where nothing is loaded."""

    mean: float
    highest: float
    max_over_mean: float | None
    cv: float | None
    gini: float | None


def spread_of(values: Sequence[float]) -> Spread:
    """Compute the measures of a list that is not empty."""
    mean = math.fsum(values) / len(values)
    if mean <= 0:
        return Spread(mean=mean, highest=max(values), max_over_mean=None, cv=None, gini=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return Spread(
        mean=mean,
        highest=max(values),
        max_over_mean=max(values) / mean,
        cv=math.sqrt(variance) / mean,
        gini=gini(values),
    )


def gini(values: Sequence[float]) -> float:
    """Return Gini's coefficient: from 0, all are equal, to (n - 1) ÷ n, one has everything."""
    ordered, total = sorted(values), math.fsum(values)
    if total <= 0:
        return 0.0
    count = len(ordered)
    weighted = math.fsum((2 * i - count + 1) * value for i, value in enumerate(ordered))
    return max(0.0, weighted / (count * total))


def robust_z(values: Sequence[float]) -> list[float | None]:
    """Return how far each value stands out, by median and median deviation. None for all if most are equal."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    if deviation == 0:
        return [None] * len(values)
    return [_NORMAL * (value - middle) / deviation for value in values]
