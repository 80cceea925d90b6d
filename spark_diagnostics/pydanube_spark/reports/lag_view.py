"""From the rows of a lag report to what people read: summary, page, the lines of a terminal. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_core.diagnosis import LagStatus, eta_of_partitions
from pydanube_core.names import TopicName
from pydanube_core.units import format_time

from pydanube_spark.reports.charts import Chart, Series
from pydanube_spark.reports.page import Page, TableView

Row = Mapping[str, Any]

#: worst first: what a report begins with
SEVERITY: Final = (
    LagStatus.DATA_LOST,
    LagStatus.AT_RISK,
    LagStatus.STUCK,
    LagStatus.FALLING_BEHIND,
    LagStatus.SLOW,
    LagStatus.UNKNOWN,
    LagStatus.CATCHING_UP,
    LagStatus.CAUGHT_UP,
)
WARNING: Final = frozenset(SEVERITY[:5])
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
_LINES: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")
_TABLE_ROWS: Final = 100
_MOMENTS: Final = ("hour_ms", "as_of_ms", "since_ms", "gone_ms")


def subject_of(row: Row) -> str:
    return f"{row['topic']} {row['subscription']}"


def severity(status: str) -> int:
    """Place of a status among all, the worst is 0."""
    return SEVERITY.index(LagStatus(status))


def offenders(rows: Sequence[Row]) -> list[Row]:
    """Rows of the whole time, the worst first: by status, then by what is unread; what is gone comes last."""
    whole = [row for row in rows if row["hour_ms"] is None]
    return sorted(
        whole,
        key=lambda row: (
            row["gone_ms"] is not None,
            severity(row["status"]),
            -(row["lag_messages"] or 0),
            subject_of(row),
        ),
    )


def shown_row(row: Row) -> dict[str, Any]:
    """A row as JSON shows it: times as text, what is JSON in the table as objects."""
    shown = {name: value for name, value in row.items() if name not in _MOMENTS}
    for name in ("evidence", "reasons", "minutes"):
        shown[name] = json.loads(row[name])
    for name in _MOMENTS:
        value = row[name]
        shown[name.removesuffix("_ms")] = None if value is None else format_time(value)
    return shown


def lag_summary(rows: Sequence[Row], damaged: Sequence[str]) -> dict[str, Any]:
    """The report in a few numbers: the known are summed, the unknown counted beside them."""
    everyone = offenders(rows)
    worst = [row for row in everyone if row["gone_ms"] is None]
    lags = [row["lag_messages"] for row in worst]
    statuses: dict[str, int] = {}
    minutes: dict[str, float] = {}
    for row in worst:
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    for row in everyone:
        for status, count in json.loads(row["minutes"]).items():
            minutes[status] = round(minutes.get(status, 0.0) + count, 3)
    total = sum(minutes.values()) - minutes.get(LagStatus.UNKNOWN, 0.0)
    fine = sum(minutes.get(status.value, 0.0) for status in (LagStatus.CAUGHT_UP, LagStatus.CATCHING_UP))
    return {
        "subscriptions": len(worst),
        "gone": len(everyone) - len(worst),
        "statuses": dict(sorted(statuses.items())),
        "lag_messages": sum(lag for lag in lags if lag is not None),
        "lag_unknown": sum(lag is None for lag in lags),
        "lost_messages": sum(row["lost_messages"] or 0 for row in worst),
        "minutes": dict(sorted(minutes.items())),
        "fine_share": round(fine / total, 4) if total else None,
        "worst": [
            {
                "topic": row["topic"],
                "subscription": row["subscription"],
                "status": row["status"],
                "lag_messages": row["lag_messages"],
            }
            for row in worst[:10]
            if row["status"] in WARNING
        ],
        "partitioned": _partitioned(worst),
        "damaged_files": list(damaged),
    }


def _partitioned(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each subscription of a partitioned topic as a whole: when it is caught up, and how uneven its partitions are."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["partition"] is not None:
            topic = str(TopicName.parse(row["topic"]).base)
            groups.setdefault((topic, row["subscription"]), []).append(row)
    found = []
    for (topic, subscription), parts in sorted(groups.items()):
        etas = [0.0 if row["lag_messages"] == 0 else row["eta_s"] for row in parts]
        eta_s, skew = eta_of_partitions(etas)
        known = [row["lag_messages"] for row in parts if row["lag_messages"] is not None]
        found.append(
            {
                "topic": topic,
                "subscription": subscription,
                "partitions": len(parts),
                "lag_messages": sum(known),
                "lag_unknown": len(parts) - len(known),
                "eta_s": eta_s,
                "eta_skew": skew,
            }
        )
    return found


def lag_page(rows: Sequence[Row], report: Mapping[str, Any]) -> Page:
    summary = report["summary"]
    worst = offenders(rows)
    hours = sorted({row["hour_ms"] for row in rows if row["hour_ms"] is not None})
    labels = [format_time(hour)[11:16] for hour in hours]
    place = {hour: i for i, hour in enumerate(hours)}
    by_status = {status: [0.0] * len(hours) for status in LagStatus}
    for row in rows:
        if row["hour_ms"] is not None:
            for status, count in json.loads(row["minutes"]).items():
                by_status[LagStatus(status)][place[row["hour_ms"]]] += count
    bars = Chart(
        title="Minutes in each status, all subscriptions",
        unit="minutes",
        labels=labels,
        stacked=True,
        series=[
            Series(name=status.value, colour=STATUS_COLOURS[status], values=by_status[status])
            for status in reversed(SEVERITY)
            if any(by_status[status])
        ],
    )
    behind = [row for row in worst if row["lag_messages"] and row["gone_ms"] is None][: len(_LINES)]
    charts = [bars]
    for title, unit, column in (
        ("Unread messages of those furthest behind", "messages", "lag_messages"),
        ("Age of their oldest unread message", "seconds", "oldest_unread_age_s"),
    ):
        if behind:
            charts.append(
                Chart(
                    title=title,
                    unit=unit,
                    labels=labels,
                    series=[
                        Series(
                            name=subject_of(row),
                            colour=_LINES[number],
                            values=_over_time(rows, row, column, place),
                        )
                        for number, row in enumerate(behind)
                    ],
                )
            )
    table = TableView(
        title="Subscriptions, the worst first",
        head=("status", "topic", "subscription", "unread", "oldest", "in", "out", "caught up in", "why"),
        rows=[_cells(row) for row in worst[:_TABLE_ROWS]],
        marks={status.value: colour for status, colour in STATUS_COLOURS.items()},
        note=f"The first {_TABLE_ROWS} of {len(worst)}." if len(worst) > _TABLE_ROWS else "",
    )
    share = summary["fine_share"]
    remarks = [f"Damaged: {text}" for text in summary["damaged_files"][:10]]
    return Page(
        title="Consumer lag",
        subtitle=f"{report['cluster']}, {report['since']} to {report['until']}",
        figures=[
            (f"{summary['subscriptions']:,}", "subscriptions"),
            (
                f"{sum(count for name, count in summary['statuses'].items() if name in WARNING):,}",
                "in trouble now",
            ),
            (f"{summary['lag_messages']:,}", "unread messages"),
            ("–" if share is None else f"{100 * share:.2f} %", "of the time fine"),
            (f"{summary['lost_messages']:,}", "messages lost"),
        ],
        charts=charts,
        tables=[table],
        remarks=remarks,
    )


def _over_time(
    rows: Sequence[Row], subject: Row, column: str, place: Mapping[int, int]
) -> list[float | None]:
    values: list[float | None] = [None] * len(place)
    for row in rows:
        if row["hour_ms"] is not None and (row["topic"], row["subscription"]) == (
            subject["topic"],
            subject["subscription"],
        ):
            value = row[column]
            values[place[row["hour_ms"]]] = 0.0 if value is None and row["lag_messages"] == 0 else value
    return values


def _cells(row: Row) -> tuple[str, ...]:
    def number(value: float | None, form: str = ",.0f") -> str:
        return "–" if value is None else format(value, form)

    why = row["stuck_reason"] or (
        "rewound" if row["rewound"] else json.loads(row["reasons"]).get("status", "")
    )
    if row["gone_ms"] is not None:
        why = "deleted"
    return (
        row["status"],
        row["topic"],
        row["subscription"],
        number(row["lag_messages"]),
        age_text(row["oldest_unread_age_s"]),
        number(row["produce_rate"], ",.1f"),
        number(row["consume_rate"], ",.1f"),
        "–" if row["status"] == LagStatus.CAUGHT_UP else age_text(row["eta_s"]),
        str(why),
    )


def age_text(seconds: float | None) -> str:
    """A time span as people say it; – where it is not known."""
    if seconds is None:
        return "–"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
