"""Charts with a title and figures as a PNG, for use without a browser."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.charts.chart import HEIGHT, MARGIN, WIDTH, Chart, labels_shown, runs, short, ticks, top_of

_PAPER: Final = "#ffffff"
_INK: Final = "#1c2127"
_SOFT: Final = "#5d6670"
_GRID: Final = "#e3e6ea"
_LEGEND_CHARS: Final = 48
_FIGURE: Final = 150  # the width of a figure's place


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The content of a picture. Texts are drawn as they are: their author makes sure that they are printable.

    Args:
        figures: (value, its meaning), six at most.
        colours: of the series, by the names that they give.
    """

    title: str
    subtitle: str
    charts: Sequence[Chart]
    colours: Mapping[str, str]
    figures: Sequence[tuple[str, str]] = ()


def png(picture: Picture, *, scale: float) -> bytes:
    """Draw a picture `WIDTH * scale` pixels wide. Takes about 50 ms of processor time.

    Raises `ImportError` if Pillow is not installed.
    """
    from PIL import Image, ImageDraw, ImageFont

    top = 150 if picture.figures else 80
    height = top + (HEIGHT + 70) * len(picture.charts)
    image = Image.new("RGB", (int(WIDTH * scale), int(height * scale)), _PAPER)
    draw = ImageDraw.Draw(image)
    fonts = {size: ImageFont.load_default(size * scale) for size in (11, 13, 16, 22)}

    def text(at: tuple[float, float], said: str, size: int, colour: str, anchor: str = "la") -> None:
        # The font that comes with Pillow has no dash.
        said = said.replace("–", "-")
        draw.text((at[0] * scale, at[1] * scale), said, font=fonts[size], fill=colour, anchor=anchor)

    text((20, 14), picture.title, 22, _INK)
    text((20, 46), picture.subtitle, 13, _SOFT)
    for number, (value, what) in enumerate(picture.figures[:6]):
        fits = (size for size in (22, 16) if fonts[size].getlength(value) <= (_FIGURE - 10) * scale)
        text((20 + _FIGURE * number, 74), value, next(fits, 11), _INK)
        text((20 + _FIGURE * number, 104), what, 11, _SOFT)
    for number, chart in enumerate(picture.charts):
        _draw(draw, text, chart, picture.colours, top - 10 + (HEIGHT + 70) * number, scale)
    sink = io.BytesIO()
    image.quantize(64).save(sink, "PNG", optimize=True)  # a third of the bytes
    return sink.getvalue()


def _draw(draw: Any, text: Any, chart: Chart, colours: Mapping[str, str], above: float, scale: float) -> None:
    left, right, bottom, top = MARGIN
    text((20, above), f"{chart.title} ({chart.unit})", 16, _INK)
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
        draw.line(scaled(left, y(mark), WIDTH - right, y(mark)), fill=_GRID, width=round(scale))
        text((left - 6, y(mark)), short(mark), 11, _SOFT, "rm")
    for i in labels_shown(chart):
        text((x(i), above + HEIGHT - 12), chart.labels[i], 11, _SOFT, "mm")
    floors = [0.0] * len(chart.labels)
    at, line = 20.0, above + HEIGHT + 4
    for each in chart.series:
        colour = colours[each.colour]
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
                    draw.line(points, fill=colour, width=round(2 * scale))
                else:
                    draw.circle(points, 3 * scale, fill=colour)
        name = each.name[:_LEGEND_CHARS]
        width = 30 + 6.5 * len(name)
        if at + width > WIDTH:
            at, line = 20.0, line + 18
        draw.rectangle(scaled(at, line, at + 10, line + 10), fill=colour)
        text((at + 15, line + 5), name, 11, _INK, "lm")
        at += width
