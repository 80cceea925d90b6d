"""Charts over MCP: what `topics.chart` answers, with a picture for models and a page for hosts that show pages.

The picture is an image beside the figures, drawn in a thread. The page is a `ui://` resource of the Apps extension
(`io.modelcontextprotocol/ui`): the tool names it in `_meta.ui`, the host shows it in a frame and hands it the result.
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
from pydanube_admin.engine.operation import Operation
from pydanube_core.errors import MissingExtra

from pydanube_mcp.chart_image import draw_chart

CHART: Final = "topics.chart"
CHART_URI: Final = "ui://danube/chart"
TOOL_META: Final[Mapping[str, Mapping[str, Any]]] = {
    CHART: {"ui": {"resourceUri": CHART_URI}}
}  # by operation
_READ_ANY: Final = "operations.read"


def chart_apps() -> Apps:
    """The extension, with the page. It loads nothing from anywhere."""
    apps = Apps()
    apps.add_html_resource(
        CHART_URI,
        Path(__file__).with_name("chart_page.html").read_text(encoding="utf-8"),
        name="topic-chart",
        title="Chart of a topic",
        description="Shows what chart_topic answers",
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
    """The answer, with the picture behind its figures if it is a chart's.

    Args:
        result: as the admin core gave it, whole and not fenced.
        limiter: of pictures that are drawn at a time.
    """
    if operation.name == _READ_ANY and arguments.get("operation") == CHART:
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
