"""The chart of a topic as a picture: two panels, rates above and lag below, as PNG.

Names that are no plain names are not drawn: a model reads a picture as it reads a text, and a subscription may be
named like an instruction. Their lines are numbered; the names stand under `untrusted` of the result beside the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydanube_core.charts.chart import Chart, Series
from pydanube_core.charts.picture import Picture, png
from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

from pydanube_mcp.fencing import is_plain

MAX_PNG_BYTES: Final = 100_000  # 20 kB is usual
MAX_NAME_CHARS: Final = 32
_SCALE: Final = 1.3  # a model pays for each pixel
_COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)  # Okabe and Ito: for every eye


def draw_chart(chart: Mapping[str, Any]) -> bytes:
    """Return the PNG of a `topics.chart` result.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    try:
        return png(
            Picture(
                title=_named(str(chart["topic"]), "a topic"),
                subtitle=f"until {chart['as_of']}",
                charts=_charts(chart),
                colours={colour: colour for colour in _COLOURS},
            ),
            scale=_SCALE,
        )
    except ImportError as error:
        raise MissingExtra(
            f"no picture is drawn without Pillow; the figures are complete: {install_command('mcp')}",
            extra="mcp",
        ) from error


def _charts(chart: Mapping[str, Any]) -> list[Chart]:
    labels = ["now" if age_s <= 0 else f"-{_time(age_s)}" for age_s in chart["age_s"]]
    rates = [Series(name="published", colour=_COLOURS[0], values=chart["publish_rate"])]
    lags = []
    for number, each in enumerate(chart["subscriptions"], start=1):
        name = _named(str(each["subscription"]), f"subscription {number}")
        colour = _COLOURS[number % len(_COLOURS)]
        rates.append(Series(name=f"{name} acknowledged", colour=colour, values=each["acknowledge_rate"]))
        lags.append(Series(name=name, colour=colour, values=each["lag_messages"]))
    return [
        Chart(title="Rates", unit="messages a second", labels=labels, series=rates),
        Chart(title="Lag", unit="unread messages", labels=labels, series=lags),
    ]


def _named(name: str, otherwise: str) -> str:
    if not is_plain(name):
        return f"{otherwise} (its name: see untrusted)"
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"
