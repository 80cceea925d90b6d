"""The page of a balance report. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_core.charts.chart import Chart, Series
from pydanube_core.units import parse_time_ms

from pydanube_spark.reports.pages.page import NextStep, ReportPage
from pydanube_spark.reports.pages.table import TableView, comparison_table, plain_rows
from pydanube_spark.reports.pages.time_texts import as_of_text, time_label

Row = Mapping[str, Any]
_COLOURS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")
_RESOURCES: Final = {"cpu": "Processor", "network_in": "Network in", "network_out": "Network out"}
_STEPS: Final = 5
_SOON_DAYS: Final = 30


def balance_page(rows: Sequence[Row], report: Mapping[str, Any]) -> ReportPage:
    summary = report["summary"]
    since_ms, until_ms = (parse_time_ms(report[name], field=name) for name in ("known_from", "until"))
    labels = [time_label(row["hour_ms"], until_ms - since_ms) for row in rows]
    known = _known(rows)
    tables = _tables(summary, known)
    if "previous" in report:
        tables.append(comparison_table(report, _compared))
    return ReportPage(
        title="Cluster balance",
        subtitle=as_of_text(report),
        figures=figures_of(summary),
        steps=next_steps_of(summary, known),
        charts=[
            chart
            for chart in (_busiest(rows, labels), *_by_broker(rows, labels))
            if any(value is not None for line in chart.series for value in line.values)
        ],
        tables=tables,
        remarks=[summary["because"], *(f"Damaged: {text}" for text in summary["damaged_files"][:10])],
    )


def _busiest(rows: Sequence[Row], labels: Sequence[str]) -> Chart:
    lines = (
        ("busiest", "bad", "highest_used"),
        ("mean", "going", "mean_used"),
        ("busiest after the moves", "good", "highest_after"),
    )
    return Chart(
        title="Busiest broker beside the mean, and after the moves",
        unit="share of capacity" if _known(rows) else "load a second",
        labels=labels,
        series=[
            Series(name=name, colour=colour, values=[row[column] for row in rows])
            for name, colour, column in lines
        ],
    )


def _by_broker(rows: Sequence[Row], labels: Sequence[str]) -> list[Chart]:
    """Return a chart for each resource that counts in the last judged hour, or for each resource if none counts."""
    resources = [json.loads(row["resources"]) for row in rows]
    judged = [each for each, row in zip(resources, rows, strict=True) if row["score"] is not None]
    if not judged:
        return []
    charts = []
    last = judged[-1]
    for name in [name for name, view in last.items() if view["counts"]] or last:
        brokers = sorted({broker for each in judged for broker in each[name]["used"]})
        charts.append(
            Chart(
                title=f"{_RESOURCES.get(name, name)} by broker",
                unit="share of capacity"
                if last[name]["capacity_known"]
                else "bytes a second"
                if name.startswith("network")
                else "a second",
                labels=labels,
                series=[
                    Series(
                        name=broker,
                        colour=_COLOURS[number],
                        values=[each.get(name, {}).get("used", {}).get(broker) for each in resources],
                    )
                    for number, broker in enumerate(brokers[: len(_COLOURS)])
                ],
            )
        )
    return charts


def _tables(summary: Mapping[str, Any], known: bool) -> list[TableView]:
    moves = [
        (
            move["topic"],
            move["source"],
            move["target"],
            f"{_used(move['source_before'], known)} → {_used(move['source_after'], known)}",
            f"{_used(move['target_before'], known)} → {_used(move['target_after'], known)}",
            f"{move['unread_messages']:,}",
        )
        for move in summary["moves"]
    ]
    what_if = [
        (
            str(each["brokers"]),
            "–" if each["mean_used"] is None else f"{each['mean_used']:.1%}",
            _fits(each["fits"]),
        )
        for each in summary["what_if"]
    ]
    rejected = [
        (reason.replace("_", " "), f"{count:,}") for reason, count in sorted(summary["rejected"].items())
    ]
    return [
        TableView(
            title="Moves that would help",
            head=("topic", "from", "to", "source", "target", "unread"),
            rows=plain_rows(moves),
            live=True,
        ),
        TableView(
            title="Moves that were examined and not made", head=("reason", "times"), rows=plain_rows(rejected)
        ),
        TableView(
            title="With other numbers of brokers",
            head=("brokers", "mean used", "fits"),
            rows=plain_rows(what_if),
        ),
    ]


def figures_of(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    score = summary["score"]
    days, disk = summary.get("days_to_full_load"), summary.get("days_to_full_disk")
    return [
        (summary["verdict"], "now"),
        ("–" if score is None else f"{score:.0f}", "of 100 points"),
        (f"{summary['brokers']}", "broker" if summary["brokers"] == 1 else "brokers"),
        (f"{len(summary['moves'])}", "move would help" if len(summary["moves"]) == 1 else "moves would help"),
        ("–" if days is None else f"{days:.0f}", "days to 80 % of the bottleneck"),
        ("–" if disk is None else f"{disk:.0f}", "days to 80 % of the fullest disk"),
    ]


def _used(value: float, known: bool) -> str:
    """Return a share of the bottleneck's capacity, or its load per second if the capacity is unknown."""
    return f"{100 * value:.1f} %" if known else f"{value:,.3g}"


def next_steps_of(summary: Mapping[str, Any], known: bool) -> list[NextStep]:
    """Return the next steps, most useful first."""
    bottleneck = _RESOURCES.get(summary["bottleneck"], "").lower()
    steps = [
        NextStep(
            text=f"Move {move['topic']} from {move['source']} to {move['target']}: the {bottleneck} of the busier of both "
            f"goes from {_used(max(move['source_before'], move['target_before']), known)} to "
            f"{_used(max(move['source_after'], move['target_after']), known)}.",
            command=shlex.join(["danube", "topics", "move", move["topic"], "--to-broker", move["target"]]),
        )
        for move in summary["moves"][:_STEPS]
    ]
    for name, what in (("load", "The bottleneck"), ("disk", "The fullest disk")):
        days = summary.get(f"days_to_full_{name}")
        if days is not None and days < _SOON_DAYS:
            when = f"in {days:.0f} days" if days else "already"
            steps.append(NextStep(text=f"{what} is 80 % used {when}: add a broker, or take load away."))
    return steps or [NextStep(text=f"Nothing: {summary['because']}")]


def _compared(summary: Mapping[str, Any]) -> dict[str, str]:
    score = summary["score"]
    highest = summary["highest_before"]
    return {
        "verdict": summary["verdict"],
        "points of 100": "–" if score is None else f"{score:.0f}",
        "brokers": str(summary["brokers"]),
        "topics": f"{summary['topics']:,}",
        "busiest broker": "–" if highest is None else f"{highest:.3g}",
        "changes of owner": f"{summary['owner_changes']:,}",
    }


def _known(rows: Sequence[Row]) -> bool:
    for row in reversed(rows):
        if row["bottleneck"] is not None:
            return bool(json.loads(row["resources"])[row["bottleneck"]]["capacity_known"])
    return False


def _fits(fits: bool | None) -> str:
    return "not known" if fits is None else "yes" if fits else "no"
