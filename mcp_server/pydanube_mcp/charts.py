"""Charts over MCP: the answer of `topics.chart`, with a picture for models and a page for hosts.

The picture is an image beside the figures, drawn in a thread. The page is a `ui://` resource of the Apps
extension (`io.modelcontextprotocol/ui`): the tool names it in `_meta.ui`, the host shows it in a frame and
hands it the result.

Names that are no plain names are not drawn: a model reads a picture as it reads a text, and a subscription's
name may be an instruction. Their lines are numbered, and the names stand under `untrusted` of the result
beside the picture.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from mcp.server.apps import Apps, ResourceCsp
from mcp.types import CallToolResult, ImageContent, TextContent
from pydanube_admin.engine.operation import READ_ANY, Operation
from pydanube_core.charts.chart import Chart, Series
from pydanube_core.charts.picture import Picture, png
from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

from pydanube_mcp.fencing import is_plain

CHART: Final = "topics.chart"
CHART_URI: Final = "ui://danube/chart"
# Metadata of tools, by operation
TOOL_META: Final[Mapping[str, Mapping[str, Any]]] = {CHART: {"ui": {"resourceUri": CHART_URI}}}


def chart_apps() -> Apps:
    """Return the extension, with the page, which loads nothing from elsewhere."""
    apps = Apps()
    apps.add_html_resource(
        CHART_URI,
        Path(__file__).with_name("chart_page.html").read_text(encoding="utf-8"),
        name="topic-chart",
        title="Chart of a topic",
        description="Shows the answer of chart_topic",
        csp=ResourceCsp(connect_domains=[], resource_domains=[]),
        prefers_border=True,
    )
    return apps


async def with_picture(
    answer: CallToolResult,
    operation: Operation,
    arguments: Mapping[str, Any],
    result: Mapping[str, Any],
    *,
    limiter: anyio.CapacityLimiter,
) -> CallToolResult:
    """Return the answer. A chart's has the picture after its figures.

    Args:
        result: as the admin core gave it, whole and not fenced.
        limiter: of concurrently drawn pictures.
    """
    if operation.name == READ_ANY and arguments.get("operation") == CHART:
        chart: Any = result.get("result")
    elif operation.name == CHART:
        chart = result
    else:
        return answer
    if not isinstance(chart, Mapping) or "age_s" not in chart:  # an answer about the operation, or of a task
        return answer
    try:
        png = await anyio.to_thread.run_sync(draw_chart, chart, limiter=limiter)
    except MissingExtra as error:
        note = json.dumps({"picture": None, "error": error.to_dict()}, ensure_ascii=False)
        return answer.model_copy(update={"content": [*answer.content, TextContent(type="text", text=note)]})
    image = ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png")
    return answer.model_copy(update={"content": [*answer.content, image]})


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
                title=named(str(chart["topic"]), "a topic"),
                subtitle=f"until {chart['as_of']}",
                charts=_charts(chart),
                colours={colour: colour for colour in _COLOURS},
            ),
            scale=_SCALE,
        )
    except ImportError as error:
        raise MissingExtra(
            f"no picture is drawn without Pillow. The figures are complete: {install_command('mcp')}",
            extra="mcp",
        ) from error


def _charts(chart: Mapping[str, Any]) -> list[Chart]:
    labels = ["now" if age_s <= 0 else f"-{age_label(age_s)}" for age_s in chart["age_s"]]
    rates = [Series(name="published", colour=_COLOURS[0], values=chart["publish_rate"])]
    lags = []
    for number, each in enumerate(chart["subscriptions"], start=1):
        name = named(str(each["subscription"]), f"subscription {number}")
        colour = _COLOURS[number % len(_COLOURS)]
        rates.append(Series(name=f"{name} acknowledged", colour=colour, values=each["acknowledge_rate"]))
        lags.append(Series(name=name, colour=colour, values=each["lag_messages"]))
    return [
        Chart(title="Rates", unit="messages a second", labels=labels, series=rates),
        Chart(title="Lag", unit="unread messages", labels=labels, series=lags),
    ]


def named(name: str, otherwise: str) -> str:
    if not is_plain(name):
        return f"{otherwise} (its name: see untrusted)"
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."


def age_label(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
