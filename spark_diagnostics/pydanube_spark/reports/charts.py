"""Charts as data, and as SVG written by hand: no library, no script, colours from the page's style sheet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from pydanube_spark.reports.markup import escaped

WIDTH: Final = 920
HEIGHT: Final = 260
MARGIN: Final = (58, 34, 30, 16)  # left, right, bottom, top


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one thing, one for each label; None: not known, and left out. `colour` is a name of the style sheet."""

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`stacked`: bars on top of each other; else lines."""

    title: str
    unit: str
    labels: Sequence[str]
    series: Sequence[Series]
    stacked: bool = False

    def __post_init__(self) -> None:
        assert all(len(each.values) == len(self.labels) for each in self.series)


def top_of(chart: Chart) -> float:
    """The highest value that must be shown; never 0."""
    if chart.stacked:
        sums = [sum(each.values[i] or 0 for each in chart.series) for i in range(len(chart.labels))]
    else:
        sums = [value for each in chart.series for value in each.values if value is not None]
    return max([*sums, 1e-9])


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round values from 0 to at least `top`."""
    raw = top / wanted
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [step * i for i in range(ceil(top / step - 1e-9) + 1)]


def short(value: float) -> str:
    """A value as an axis shows it: 1.5k, 20M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def labels_shown(chart: Chart) -> list[int]:
    """Which labels have room."""
    count = len(chart.labels)
    longest = max(map(len, chart.labels), default=1)
    step = max(1, ceil(count / (60 // max(6, longest))))
    return list(range(0, count, step))


def svg(chart: Chart) -> str:
    """The chart as an `<svg>` element with its legend."""
    left, right, bottom, top = MARGIN
    inner_width, inner_height = WIDTH - left - right, HEIGHT - top - bottom
    marks = ticks(top_of(chart))
    scale = inner_height / marks[-1]
    count = len(chart.labels)
    slot = inner_width / max(1, count)

    def y(value: float) -> float:
        return round(top + inner_height - value * scale, 1)

    def x(i: int) -> float:
        return round(left + slot * (i + 0.5), 1)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(chart.title)}">',
        *(
            f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(mark)}" y2="{y(mark)}"/>'
            f'<text class="axis" x="{left - 6}" y="{y(mark) + 4}" text-anchor="end">{short(mark)}</text>'
            for mark in marks
        ),
        *(
            f'<text class="axis" x="{x(i)}" y="{HEIGHT - 8}" text-anchor="middle">{escaped(chart.labels[i])}</text>'
            for i in labels_shown(chart)
        ),
    ]
    if chart.stacked:
        width = max(1.0, min(slot * 0.8, 60))
        floors = [0.0] * count
        for each in chart.series:
            for i, value in enumerate(each.values):
                if value:
                    height = round(value * scale, 1)
                    parts.append(
                        f'<rect class="{each.colour}" x="{round(x(i) - width / 2, 1)}" y="{y(floors[i] + value)}" '
                        f'width="{round(width, 1)}" height="{height}"><title>{escaped(chart.labels[i])} '
                        f"{escaped(each.name)}: {short(value)} {escaped(chart.unit)}</title></rect>"
                    )
                    floors[i] += value
    else:
        for each in chart.series:
            for run in runs(each.values):
                points = " ".join(f"{x(i)},{y(each.values[i] or 0)}" for i in run)
                parts.append(f'<polyline class="{each.colour}" points="{points}"/>')
                parts += [
                    f'<circle class="{each.colour}" cx="{x(i)}" cy="{y(each.values[i] or 0)}" r="2.5"><title>'
                    f"{escaped(chart.labels[i])} {escaped(each.name)}: {short(each.values[i] or 0)} "
                    f"{escaped(chart.unit)}</title></circle>"
                    for i in run
                ]
    legend = "".join(f'<li><i class="{each.colour}"></i>{escaped(each.name)}</li>' for each in chart.series)
    return "\n".join([*parts, "</svg>", f'<ul class="legend">{legend}</ul>'])


def runs(values: Sequence[float | None]) -> list[list[int]]:
    """Indices of neighbours that are known: a line is broken where a value is missing."""
    found: list[list[int]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append(i)
    return [run for run in found if run]
