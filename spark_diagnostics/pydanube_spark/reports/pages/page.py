"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydanube_core.charts.chart import Chart

from pydanube_spark.reports.pages.charts import svg
from pydanube_spark.reports.pages.markup import escaped
from pydanube_spark.reports.pages.style import SCRIPT, style
from pydanube_spark.reports.pages.table import TableView, table_html


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A next step: a sentence, and the command that begins it."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    title: str
    subtitle: str
    figures: Sequence[tuple[str, str]]  # (value, label)
    steps: Sequence[NextStep]
    charts: Sequence[Chart]
    tables: Sequence[TableView]
    remarks: Sequence[str] = ()


def html(page: ReportPage) -> str:
    """Return the page. All texts are escaped."""
    figures = "".join(
        f"<li><b>{escaped(value)}</b><span>{escaped(what)}</span></li>" for value, what in page.figures
    )
    steps = "".join(
        f"<li>{escaped(step.text)}{f'<code>{escaped(step.command)}</code>' if step.command else ''}</li>"
        for step in page.steps
    )
    charts = "".join(
        f'<div><h2>{escaped(chart.title)} <small>({escaped(chart.unit)})</small></h2><div class="wide">{svg(chart)}'
        "</div></div>"
        for chart in page.charts
    )
    first, *others = map(table_html, page.tables)
    remarks = "".join(f"<p>{escaped(text)}</p>" for text in page.remarks)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escaped(page.title)}</title><style>{style()}</style>'
        f"</head><body><h1>{escaped(page.title)}</h1><p>{escaped(page.subtitle)}</p>{remarks}"
        f'<ul class="figures">{figures}</ul><h2>What to do next</h2><ol class="steps">{steps}</ol>'
        f'{first}<div class="charts">{charts}</div>{"".join(others)}<script>{SCRIPT}</script></body></html>\n'
    )
