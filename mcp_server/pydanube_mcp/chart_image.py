"""The chart of a topic as a picture: two panels, rates above and lag below, as PNG.

Names that are no plain names are not drawn: a model reads a picture as it reads a text, and a subscription may be
named like an instruction. Their lines are numbered; the names stand under `untrusted` of the result beside the picture.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil, floor, log10
from typing import Any, Final

from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

from pydanube_mcp.fencing import is_plain

MAX_PNG_BYTES: Final = 100_000  # 20 kB is usual
WIDTH: Final = 1200
PANEL: Final = 330
TOP: Final = 64
LEFT: Final = 90
RIGHT: Final = 20
MAX_NAME_CHARS: Final = 48
_COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)  # Okabe and Ito: for every eye
_PAPER: Final = "#ffffff"
_INK: Final = "#1b1f24"
_SOFT: Final = "#5c6670"
_RULE: Final = "#d9dee3"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    title: str
    lines: Sequence[_Line]

    @property
    def top(self) -> float:
        return max((value for line in self.lines for value in line.values if value is not None), default=0.0)


def draw_chart(chart: Mapping[str, Any]) -> bytes:
    """The PNG of a `topics.chart` result; some 50 ms of processor.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    try:
        image_module = import_module("PIL.Image")
        draw_module = import_module("PIL.ImageDraw")
        font_module = import_module("PIL.ImageFont")
    except ImportError as error:
        raise MissingExtra(
            f"no picture is drawn without Pillow; the figures are complete: {install_command('mcp')}",
            extra="mcp",
        ) from error
    panels = _panels(chart)
    image = image_module.new("RGB", (WIDTH, TOP + PANEL * len(panels)), _PAPER)
    draw = draw_module.Draw(image)
    fonts = {size: font_module.load_default(size) for size in (16, 18, 26)}

    def text(at: tuple[float, float], said: str, size: int, colour: str, anchor: str = "la") -> None:
        draw.text(at, said, font=fonts[size], fill=colour, anchor=anchor)

    text((20, 14), _named(str(chart["topic"]), "a topic"), 26, _INK)
    text((WIDTH - RIGHT, 22), f"until {chart['as_of']}", 16, _SOFT, "ra")
    for number, panel in enumerate(panels):
        _draw_panel(draw, text, panel, chart["age_s"], TOP + PANEL * number)
    sink = io.BytesIO()
    image.quantize(64).save(sink, format="PNG", optimize=True)
    return sink.getvalue()


def _panels(chart: Mapping[str, Any]) -> list[_Panel]:
    rates = [_Line(name="published", colour=_COLOURS[0], values=chart["publish_rate"])]
    lags = []
    for number, each in enumerate(chart["subscriptions"], start=1):
        name = _named(str(each["subscription"]), f"subscription {number}")
        colour = _COLOURS[number % len(_COLOURS)]
        rates.append(_Line(name=f"{name} acknowledged", colour=colour, values=each["acknowledge_rate"]))
        lags.append(_Line(name=name, colour=colour, values=each["lag_messages"]))
    return [_Panel(title="messages a second", lines=rates), _Panel(title="unread messages", lines=lags)]


def _named(name: str, otherwise: str) -> str:
    if not is_plain(name):
        return f"{otherwise} (its name: see untrusted)"
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."


def _draw_panel(draw: Any, text: Any, panel: _Panel, ages_s: Sequence[float], y: int) -> None:
    text((20, y), panel.title, 18, _INK)
    x_key = 230.0
    for line in panel.lines:
        width = draw.textlength(line.name, font_size=16) + 50
        if x_key + width > WIDTH - RIGHT:
            text((x_key, y + 1), "...", 16, _SOFT)
            break
        draw.line(((x_key, y + 10), (x_key + 22, y + 10)), fill=line.colour, width=4)
        text((x_key + 28, y + 1), line.name, 16, _SOFT)
        x_key += width
    begin, end = y + 36, y + PANEL - 44
    marks = _marks(panel.top)
    for mark in marks:
        at = end - (end - begin) * mark / marks[-1]
        draw.line(((LEFT, at), (WIDTH - RIGHT, at)), fill=_RULE, width=1)
        text((LEFT - 8, at), _short(mark), 16, _SOFT, "rm")
    span = max(ages_s[0], 1e-3)
    inner = WIDTH - LEFT - RIGHT

    def x_of(age: float) -> float:
        return LEFT + inner * (1 - age / span)

    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        anchor = "la" if share == 1.0 else "ra" if share == 0.0 else "ma"
        said = "now" if share == 0.0 else f"-{_time(span * share)}"
        text((x_of(span * share), end + 8), said, 16, _SOFT, anchor)
    for line in panel.lines:
        for run in _runs(ages_s, line.values):
            points = [(x_of(age), end - (end - begin) * value / marks[-1]) for age, value in run]
            if len(points) == 1:
                x, at = points[0]
                draw.ellipse((x - 3, at - 3, x + 3, at + 3), fill=line.colour)
            else:
                draw.line(points, fill=line.colour, width=3, joint="curve")
    if not any(value is not None for line in panel.lines for value in line.values):
        text((LEFT + inner / 2, (begin + end) / 2), "nothing was seen yet", 18, _SOFT, "mm")


def _runs(ages_s: Sequence[float], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for age, value in zip(ages_s, values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((age, value))
    return [run for run in runs if run]


def _marks(top: float) -> list[float]:
    """Round values from 0 to at least `top`, four steps or so."""
    if top <= 0:
        return [0.0, 1.0]
    unit = 10.0 ** floor(log10(top / 4))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor * 4 >= top * 0.999)
    return [step * i for i in range(ceil(top / step - 1e-9) + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"
