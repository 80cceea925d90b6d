"""Charts as data: series over labels, round values for their axis, and gaps in lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 920
HEIGHT: Final = 260
MARGIN: Final = (58, 34, 30, 16)  # left, right, bottom, top


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One value for each label. None: unknown, and left out. `colour`: a name that the drawing code maps."""

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of series, stacked as bars if `stacked`, else as lines."""

    title: str
    unit: str
    labels: Sequence[str]
    series: Sequence[Series]
    stacked: bool = False

    def __post_init__(self) -> None:
        assert all(len(each.values) == len(self.labels) for each in self.series)


def top_of(chart: Chart) -> float:
    """Return the highest value to be shown, never 0."""
    if chart.stacked:
        sums = [sum(each.values[i] or 0 for each in chart.series) for i in range(len(chart.labels))]
    else:
        sums = [value for each in chart.series for value in each.values if value is not None]
    return max(sums, default=0.0) or 1.0


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Return round values from 0 to at least `top`."""
    raw = top / wanted
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [step * i for i in range(ceil(top / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Return a value as an axis shows it: 1.5k, 20M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def labels_shown(chart: Chart) -> list[int]:
    """Return which labels have room."""
    count = len(chart.labels)
    longest = max(map(len, chart.labels), default=1)
    step = max(1, ceil(count / (60 // max(6, longest))))
    return list(range(0, count, step))


def runs(values: Sequence[float | None]) -> list[list[int]]:
    """Yield runs of indices whose values are known: a line has a gap at a missing value."""
    found: list[list[int]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append(i)
    return [run for run in found if run]
