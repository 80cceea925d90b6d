"""A report as a PNG: title, figures and charts, for where no browser is at hand."""

from __future__ import annotations

import io
from typing import Any

from pydanube_spark.reports.charts import (
    HEIGHT,
    MARGIN,
    WIDTH,
    Chart,
    labels_shown,
    runs,
    short,
    ticks,
    top_of,
)
from pydanube_spark.reports.markup import seen
from pydanube_spark.reports.page import Page
from pydanube_spark.reports.style import COLOURS, GRID, INK, PAPER, SOFT


def png(page: Page) -> bytes:
    """Title, figures and charts, for where no browser is at hand.

    Raises:
        ImportError: Pillow is not installed.
    """
    from PIL import Image, ImageDraw, ImageFont

    scale = 2
    height = 150 + (HEIGHT + 70) * len(page.charts)
    image = Image.new("RGB", (WIDTH * scale, height * scale), PAPER[0])
    draw = ImageDraw.Draw(image)
    fonts = {size: ImageFont.load_default(size * scale) for size in (11, 13, 16, 22)}

    def text(at: tuple[float, float], said: str, size: int, colour: str, anchor: str = "la") -> None:
        # The font that comes with Pillow has no dash.
        said = seen(said).replace("–", "-")
        draw.text((at[0] * scale, at[1] * scale), said, font=fonts[size], fill=colour, anchor=anchor)

    text((20, 14), page.title, 22, INK[0])
    text((20, 46), page.subtitle, 13, SOFT[0])
    for number, (value, what) in enumerate(page.figures[:6]):
        text((20 + 150 * number, 74), value, 22, INK[0])
        text((20 + 150 * number, 104), what, 11, SOFT[0])
    for number, chart in enumerate(page.charts):
        _draw(draw, text, chart, 140 + (HEIGHT + 70) * number, scale)
    sink = io.BytesIO()
    image.save(sink, "PNG", optimize=True)
    return sink.getvalue()


def _draw(draw: Any, text: Any, chart: Chart, above: float, scale: int) -> None:
    left, right, bottom, top = MARGIN
    text((20, above), f"{chart.title} ({chart.unit})", 16, INK[0])
    above += 26
    inner_width, inner_height = WIDTH - left - right, HEIGHT - top - bottom
    marks = ticks(top_of(chart))
    unit = inner_height / marks[-1]
    slot = inner_width / max(1, len(chart.labels))

    def y(value: float) -> float:
        return above + top + inner_height - value * unit

    def x(i: int) -> float:
        return left + slot * (i + 0.5)

    def scaled(*numbers: float) -> list[float]:
        return [number * scale for number in numbers]

    for mark in marks:
        draw.line(scaled(left, y(mark), WIDTH - right, y(mark)), fill=GRID[0], width=scale)
        text((left - 6, y(mark)), short(mark), 11, SOFT[0], "rm")
    for i in labels_shown(chart):
        text((x(i), above + HEIGHT - 12), chart.labels[i], 11, SOFT[0], "mm")
    floors = [0.0] * len(chart.labels)
    at, line = 20.0, above + HEIGHT + 4
    for each in chart.series:
        colour = COLOURS[each.colour][0]
        if chart.stacked:
            width = max(1.0, min(slot * 0.8, 60))
            for i, value in enumerate(each.values):
                if value:
                    box = scaled(x(i) - width / 2, y(floors[i] + value), x(i) + width / 2, y(floors[i]))
                    draw.rectangle(box, fill=colour)
                    floors[i] += value
        else:
            for run in runs(each.values):
                points = [coordinate for i in run for coordinate in scaled(x(i), y(each.values[i] or 0))]
                if len(run) > 1:
                    draw.line(points, fill=colour, width=2 * scale)
                else:
                    draw.circle(points, 3 * scale, fill=colour)
        name = each.name[:40]
        width = 30 + 6.5 * len(name)
        if at + width > WIDTH:
            at, line = 20.0, line + 18
        draw.rectangle(scaled(at, line, at + 10, line + 10), fill=colour)
        text((at + 15, line + 5), name, 11, INK[0], "lm")
        at += width
