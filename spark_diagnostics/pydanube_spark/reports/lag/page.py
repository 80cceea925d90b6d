"""The page of a lag report. Pure.

A row of its table is a subscription of a topic. A row of a partitioned topic expands into its partitions. Charts show the
stretches of `course`, so that an hour has as many points as a month.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from pydanube_core.charts.chart import Chart, Series
from pydanube_core.cursor_state import joined
from pydanube_core.diagnosis import LagStatus
from pydanube_core.units import counted, human_bytes, parse_time_ms

from pydanube_spark.reports.lag.rows import SEVERITY, STRETCHES, stretch_ms
from pydanube_spark.reports.lag.steps import next_steps
from pydanube_spark.reports.lag.summary import WARNING, offenders, severity, subject_of
from pydanube_spark.reports.pages.page import ReportPage
from pydanube_spark.reports.pages.table import Cell, Strip, TableRow, TableView, comparison_table
from pydanube_spark.reports.pages.time_texts import age_text, as_of_text, time_label
from pydanube_spark.reports.run import Span

Row = Mapping[str, Any]
STATUS_COLOURS: Final = {
    LagStatus.CAUGHT_UP: "good",
    LagStatus.CATCHING_UP: "going",
    LagStatus.SLOW: "slow",
    LagStatus.FALLING_BEHIND: "risk",
    LagStatus.STUCK: "bad",
    LagStatus.AT_RISK: "five",
    LagStatus.DATA_LOST: "lost",
    LagStatus.UNKNOWN: "none",
}
_FINE: Final = (LagStatus.CAUGHT_UP.value, LagStatus.CATCHING_UP.value)
_LINES: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")
_TABLE_ROWS: Final = 500
_HEAD: Final = (
    *("status", "subscription", "unread", "oldest", "in / out per s", "caught up in"),
    *("headroom", "lost", "over time", "why"),
)
#: values that are joined for a whole topic. Steps name the offset and the messages in flight of its worst partition
_JOINED: Final = frozenset(
    (
        *("lag_messages", "lag_bytes", "oldest_unread_age_s", "produce_rate", "consume_rate", "eta_s"),
        "retention_headroom_s",
    )
)


def lag_page(rows: Sequence[Row], report: Mapping[str, Any]) -> ReportPage:
    summary, worst = report["summary"], offenders(rows)
    groups = _groups(worst)
    whole = [_whole(group) for group in groups]
    there = [row for row in whole if row["gone_ms"] is None]
    share = summary["fine_share"]
    tables = [
        TableView(
            title="Subscriptions, the worst first",
            head=_HEAD,
            rows=[_group_row(group) for group in groups[:_TABLE_ROWS]],
            live=True,
            note=f"The first {_TABLE_ROWS} of {len(groups)}." if len(groups) > _TABLE_ROWS else "",
        )
    ]
    if "previous" in report:
        tables.append(comparison_table(report, _compared))
    return ReportPage(
        title="Consumer lag",
        subtitle=as_of_text(report),
        figures=[
            (f"{len(there):,}", "subscriptions"),
            (f"{sum(row['status'] in WARNING for row in there):,}", "in trouble now"),
            (f"{summary['lag_messages']:,}", "unread messages"),
            ("–" if share is None else f"{100 * share:.2f} %", "of the sampled time fine"),
            (f"{summary['newly_lost_messages']:,}", "messages lost"),
        ],
        steps=next_steps(whole, report),
        charts=_charts(whole, worst, report),
        tables=tables,
        remarks=[f"Damaged: {text}" for text in summary["damaged_files"][:10]],
    )


def _compared(summary: Mapping[str, Any]) -> dict[str, str]:
    share = summary["fine_share"]
    return {
        "in trouble, each partition": f"{sum(count for name, count in summary['statuses'].items() if name in WARNING):,}",
        "unread messages": f"{summary['lag_messages']:,}",
        "known time fine": "–" if share is None else f"{100 * share:.2f} %",
        "messages lost": f"{summary['newly_lost_messages']:,}",
    }


# -- the table ---------------------------------------------------------------------------------------------------


def _groups(worst: Sequence[Row]) -> list[list[Row]]:
    """Group rows by topic and subscription, in the order of the worst of each."""
    found: dict[tuple[str, str, bool], list[Row]] = {}
    for row in worst:
        found.setdefault((row["topic"], row["subscription"], row["gone_ms"] is not None), []).append(row)
    return list(found.values())


def _urgency(row: Row) -> tuple[int, int]:
    return -severity(row["status"]), row["lag_messages"] or 0


def _group_row(group: Sequence[Row]) -> TableRow:
    whole = _table_row(_whole(group))
    parts = sorted(group, key=lambda row: row["partition"] or 0) if group[0]["partition"] is not None else ()
    return TableRow(cells=whole.cells, parts=[_table_row(row) for row in parts])


def _whole(group: Sequence[Row]) -> Row:
    """Join a subscription's partitions: known numbers are summed, the latest ETA counts."""
    if len(group) == 1 and group[0]["partition"] is None:
        return group[0]
    worst = max(group, key=_urgency)
    minutes: dict[str, float] = {}
    for row in group:
        for status, count in json.loads(row["minutes"]).items():
            minutes[status] = minutes.get(status, 0.0) + count
    return {
        **worst,
        "log": worst["topic"],
        **joined(group, names=_JOINED, partly=True),
        "newly_lost_messages": _over(sum, group, "newly_lost_messages"),
        "consumers": _over(max, group, "consumers"),
        "minutes": json.dumps(minutes),
        "course": json.dumps(_worst_course(group)),
    }


def _over(make: Any, group: Sequence[Row], column: str) -> Any:
    known = [row[column] for row in group if row[column] is not None]
    return make(known) if known else None


def _worst_course(group: Sequence[Row]) -> list[list[Any]]:
    worst: dict[int, str] = {}
    for row in group:
        for stretch, status, *_ in json.loads(row["course"] or "[]"):
            worst[stretch] = min(worst.get(stretch, status), status, key=severity)
    return [[stretch, status] for stretch, status in sorted(worst.items())]


def _table_row(row: Row) -> TableRow:
    topic = row["log"]
    consumers = row["consumers"]
    members = None if consumers is None else counted(consumers, "consumer")
    about = [topic, row["type"], members]
    quality = row["age_quality"]
    since = "" if row["since_ms"] is None else f"for {age_text((row['as_of_ms'] - row['since_ms']) / 1000)}"
    bytes_text = "" if not row["lag_bytes"] else human_bytes(row["lag_bytes"])
    lost = row["newly_lost_messages"]
    eta = 0.0 if row["lag_messages"] == 0 else row["eta_s"]
    return TableRow(
        cells=[
            Cell(
                text=row["status"],
                under="deleted" if row["gone_ms"] is not None else since,
                mark=STATUS_COLOURS[LagStatus(row["status"])],
                sort=severity(row["status"]) + 100 * (row["gone_ms"] is not None),
            ),
            Cell(text=row["subscription"], under=" · ".join(text for text in about if text)),
            _number(row["lag_messages"], under=bytes_text),
            _age(row["oldest_unread_age_s"], under="" if quality in ("exact", "unknown") else quality),
            _number(row["produce_rate"], ",.1f", under=f"{_text(row['consume_rate'], ',.1f')} out"),
            _age(eta) if eta else Cell(text="–", sort=eta, number=True),
            _age(row["retention_headroom_s"]),
            _number(lost),
            _strip_cell(row),
            Cell(text=_why(row), under=_evidence(row)),
        ]
    )


def _text(value: float | None, form: str = ",.0f") -> str:
    return "–" if value is None else format(value, form)


def _number(value: float | None, form: str = ",.0f", *, under: str = "") -> Cell:
    return Cell(text=_text(value, form), under=under, sort=value, number=True)


def _age(seconds: float | None, *, under: str = "") -> Cell:
    return Cell(text=age_text(seconds), under=under, sort=seconds, number=True)


def _strip_cell(row: Row) -> Cell:
    """Return the cell with statuses over the whole time, and the length of each in words."""
    minutes = json.loads(row["minutes"])
    known = sum(count for status, count in minutes.items() if status != LagStatus.UNKNOWN)
    fine = sum(minutes.get(status, 0.0) for status in _FINE)
    said = ", ".join(f"{age_text(60 * count)} {status}" for status, count in minutes.items())
    share = "–" if not known else f"{100 * fine / known:.1f} % fine"
    return Cell(text=said, under=share, sort=fine / known if known else None, strip=_strip(row["course"]))


def _strip(course: str | None) -> Strip:
    statuses: list[str | None] = [None] * STRETCHES
    for stretch, status, *_ in json.loads(course or "[]"):
        statuses[min(stretch, STRETCHES - 1)] = status
    return [
        (STATUS_COLOURS[LagStatus(status)] if status else "empty", len(list(run)))
        for status, run in groupby(statuses)
    ]


def _why(row: Row) -> str:
    if row["stuck_reason"]:
        return str(row["stuck_reason"]).replace("_", " ")
    if row["rewound"]:
        return "rewound"
    return str(json.loads(row["reasons"]).get("status", "")).replace("_", " ")


def _evidence(row: Row) -> str:
    """Return the numbers behind the status, in words."""
    evidence, shown = json.loads(row["evidence"]), []
    slope = [evidence.pop(f"lag_per_s{end}", None) for end in ("", "_low", "_high")]
    if None not in slope:
        shown.append("lag changes by {:,.1f} a second ({:,.1f} to {:,.1f})".format(*slope))
    for name, value in evidence.items():
        if value is None or name in ("because", "lag_messages", "samples", "expected_samples"):
            continue
        if name.endswith("_s"):
            shown.append(f"{name.removesuffix('_s').replace('_', ' ')} {age_text(value)}")
        elif isinstance(value, bool):
            shown.append(f"{'' if value else 'not '}{name.replace('_', ' ')}")
        else:
            text = (
                f"{value:,.1f}"
                if isinstance(value, float)
                else f"{value:,}"
                if isinstance(value, int)
                else value
            )
            shown.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(shown)


# -- charts ------------------------------------------------------------------------------------------------------


def _charts(whole: Sequence[Row], worst: Sequence[Row], report: Mapping[str, Any]) -> list[Chart]:
    since_ms, until_ms = (parse_time_ms(report[name], field=name) for name in ("known_from", "until"))
    labels = _stretch_labels(since_ms, until_ms)
    by_status = {status: [0.0] * STRETCHES for status in LagStatus}
    for row in whole:
        for stretch, status, *_ in json.loads(row["course"] or "[]"):
            by_status[LagStatus(status)][min(stretch, STRETCHES - 1)] += 1
    charts = [
        Chart(
            title="Subscriptions in each status",
            unit="subscriptions",
            labels=labels,
            stacked=True,
            series=[
                Series(name=status.value, colour=STATUS_COLOURS[status], values=by_status[status])
                for status in reversed(SEVERITY)
                if any(by_status[status])
            ],
        )
    ]
    behind = [row for row in worst if row["lag_messages"] and row["gone_ms"] is None][: len(_LINES)]
    if not behind:
        return charts
    courses = [_points(row) for row in behind]
    longest_s = max((age or 0.0 for course in courses for _, age in course), default=0.0)
    unit, seconds = next(
        (name, size)
        for name, size in (("hours", 3600), ("minutes", 60), ("seconds", 1))
        if longest_s >= size or size == 1
    )
    for title, what, place, scale in (
        ("Unread messages of those furthest behind", "messages", 0, 1),
        ("Age of their oldest unread message", unit, 1, seconds),
    ):
        series = [
            Series(
                name=subject_of(row),
                colour=_LINES[number],
                values=[
                    None if (value := point[place]) is None else value / scale for point in courses[number]
                ],
            )
            for number, row in enumerate(behind)
        ]
        charts.append(Chart(title=title, unit=what, labels=labels, series=series))
    return charts


def _points(row: Row) -> list[tuple[float | None, float | None]]:
    """Return (unread, age) for each stretch."""
    found: list[tuple[float | None, float | None]] = [(None, None)] * STRETCHES
    for stretch, _, lag, age_s in json.loads(row["course"] or "[]"):
        found[min(stretch, STRETCHES - 1)] = (lag, age_s)
    return found


def _stretch_labels(since_ms: int, until_ms: int) -> list[str]:
    """Return the end of each stretch, with its day if there are several."""
    span = Span(since_ms=since_ms, until_ms=until_ms)
    ends = [min(until_ms, since_ms + stretch_ms(span) * (i + 1)) for i in range(STRETCHES)]
    return [time_label(end, until_ms - since_ms) for end in ends]
