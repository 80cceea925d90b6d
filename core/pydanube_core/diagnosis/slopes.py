"""Slopes that are robust against single outliers: Theil-Sen, with the interval of Kendall's rank correlation.

The slope is the median of the slopes between all pairs of samples (Sen, 1968: "Estimates of the regression
coefficient based on Kendall's tau"). Its interval comes from the ranks alone: of the sorted pair slopes, those so
many places from the middle as Kendall's S deviates by chance. A sawtooth that goes nowhere has an interval that
holds 0, a queue that grows in spite of a dip has one that does not: that is the test for "falling behind".

Differs from the paper in one thing: more than `MOST_SAMPLES` are thinned first, since pairs go with the square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FEWEST_SAMPLES: Final = 5  # with fewer the interval is meaningless
MOST_SAMPLES: Final = 24  # 276 pairs: 0.1 ms. The newest and the oldest are always among them
_NORMAL_95: Final = 1.959964  # two-sided 95 % of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A rate of change in units per second. The true rate lies between `low` and `high` in 95 of 100 cases."""

    per_s: float
    low: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.per_s <= self.high

    @property
    def gaining(self) -> bool:
        """Whether a quantity such as lag surely shrinks."""
        return self.per_s < 0 and self.high <= 0


def thinned(count: int, most: int = MOST_SAMPLES) -> list[int]:
    """Return which of `count` ascending samples to use: at most `most`, evenly spread, with both ends."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def theil_sen(times_ms: Sequence[int], values: Sequence[float]) -> Slope | None:
    """Return the slope of values over time, in units per second.

    Args:
        times_ms: ascending. Pairs of samples of the same moment have no slope.
        values: as many.

    Returns:
        None for fewer than `FEWEST_SAMPLES`, or where all are of one moment.
    """
    assert len(times_ms) == len(values)
    if len(times_ms) < FEWEST_SAMPLES:
        return None
    picked = thinned(len(times_ms))
    times = [times_ms[i] for i in picked]
    heights = [values[i] for i in picked]
    if min(heights) == max(heights):
        return Slope(per_s=0.0, low=0.0, high=0.0) if times[0] < times[-1] else None
    pairs: list[float] = []
    for i in range(1, len(times)):
        time, height = times[i], heights[i]
        pairs += [(height - heights[j]) / (time - times[j]) for j in range(i) if times[j] < time]
    if not pairs:
        return None
    pairs.sort()
    count, n = len(pairs), len(times)
    half_width = _NORMAL_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((count - half_width) / 2) - 1)
    high = min(count - 1, math.ceil((count + half_width) / 2))
    middle = pairs[count // 2] if count % 2 else (pairs[count // 2 - 1] + pairs[count // 2]) / 2
    # pair slopes are a millisecond
    return Slope(per_s=middle * 1000, low=pairs[low] * 1000, high=pairs[high] * 1000)
