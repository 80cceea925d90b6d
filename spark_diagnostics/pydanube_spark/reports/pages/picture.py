"""A report as a PNG: title, figures and charts, for use without a browser."""

from __future__ import annotations

from dataclasses import replace

from pydanube_core.charts import picture
from pydanube_core.charts.chart import Chart

from pydanube_spark.reports.pages.markup import seen
from pydanube_spark.reports.pages.page import ReportPage
from pydanube_spark.reports.pages.style import COLOURS


def png(page: ReportPage) -> bytes:
    """Draw title, figures and charts, with control characters of others' texts made visible.

    Raises `ImportError`: Pillow is not installed.
    """
    return picture.png(
        picture.Picture(
            title=seen(page.title),
            subtitle=seen(page.subtitle),
            figures=[(seen(value), seen(what)) for value, what in page.figures],
            charts=[_seen(chart) for chart in page.charts],
            colours={name: light for name, (light, _) in COLOURS.items()},
        ),
        scale=2,
    )


def _seen(chart: Chart) -> Chart:
    series = [replace(each, name=seen(each.name)) for each in chart.series]
    return replace(chart, title=seen(chart.title), labels=list(map(seen, chart.labels)), series=series)
