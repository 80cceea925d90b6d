"""Run the balance report from question to files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pydanube_core.diagnosis import theil_sen
from pydanube_core.errors import CorruptObject, InvalidArgument
from pydanube_core.units import format_time

from pydanube_spark.reports.balance_page import balance_page
from pydanube_spark.reports.balance_work import BALANCE_SCHEMA, DAMAGED, BalanceWork, rows_here
from pydanube_spark.reports.comparison import previous
from pydanube_spark.reports.engine import rows_of
from pydanube_spark.reports.lag_rows import Span
from pydanube_spark.reports.output import check_folder, write_report
from pydanube_spark.reports.progress import Progress, no_progress
from pydanube_spark.reports.run import ReportRequest, span_of

Row = Mapping[str, Any]
FULL: Final = 0.8
_DAY_S: Final = 86_400.0
_JSON: Final = ("moves", "rejected", "resources", "hot_topics", "what_if", "deductions")


def run_balance(request: ReportRequest, progress: Progress = no_progress) -> dict[str, Any]:
    """The balance report: as that of lag, with a row a stretch of time.

    Raises `ClusterError`: no store, no telemetry, none of that time, no Java.
    """
    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    span = span_of(request, now_ms=now_ms)
    work = BalanceWork.plan(request.store, request.cluster, span, request.topic)
    if request.out is not None:
        check_folder(request.out)
    progress("reading telemetry", 0.1)
    rows, damaged, engine = _rows(work, request)
    if not rows and damaged:
        raise CorruptObject(f"no file of that time can be read: {damaged[0]}", files=damaged[:20])
    if not rows:
        raise InvalidArgument("no broker was sampled in that time", field="since", value=request.since)
    if request.topic is not None and not any(row["topics"] for row in rows):
        raise InvalidArgument(
            f"no topic {request.topic!r} was sampled in that time", field="topic", value=request.topic
        )
    newest_ms = work.brokers.newest_ms
    report: dict[str, Any] = {
        "report": "balance",
        "cluster": work.brokers.cluster,
        "since": format_time(span.since_ms),
        "until": format_time(span.until_ms),
        "as_of": format_time(newest_ms),
        "data_age_s": max(0, now_ms - newest_ms) / 1000,
        "engine": engine,
        "summary": balance_summary(rows, damaged),
    }
    if request.compare is not None:
        progress("reading the time before", 0.6)
        report["previous"] = previous(span, lambda before: _before(request, before))
    progress("writing the report", 0.9)
    report["took_s"] = round(time.monotonic() - begun, 3)
    shown = [shown_row(row) for row in rows]
    files = {}
    if request.out is not None:
        page = balance_page(rows, report)
        table = pa.Table.from_pylist(rows, schema=BALANCE_SCHEMA)
        files = write_report(request.out, "balance", rows=table, shown=shown, report=report, page=page)
    progress("done", 1.0)
    return {**report, "rows": shown, "files": files}


def _rows(work: BalanceWork, request: ReportRequest) -> tuple[list[dict[str, Any]], list[str], str]:
    """(rows in order, texts of damaged files, what made them)."""

    def spark(session: Any) -> Any:
        from pydanube_spark.reports.balance import balance_table

        return balance_table(session, work)

    size = work.brokers.stored_bytes + work.topics.stored_bytes
    found, engine = rows_of(size, request.master, here=lambda: rows_here(work), spark=spark)
    damaged = [row["because"] for row in found if row["verdict"] == DAMAGED]
    rows = sorted((row for row in found if row["verdict"] != DAMAGED), key=lambda row: row["hour_ms"])
    return rows, damaged, engine


def _before(request: ReportRequest, span: Span) -> dict[str, Any]:
    work = BalanceWork.plan(request.store, request.cluster, span, request.topic)
    rows, damaged, _ = _rows(work, request)
    return {"summary": balance_summary(rows, damaged)}


def shown_row(row: Row) -> dict[str, Any]:
    """A row as JSON shows it."""
    shown = {name: value for name, value in row.items() if name not in ("hour_ms", "as_of_ms")}
    shown |= {name: json.loads(row[name]) for name in _JSON}
    return {"hour": format_time(row["hour_ms"]), "as_of": format_time(row["as_of_ms"]), **shown}


def balance_summary(rows: Sequence[Row], damaged: Sequence[str]) -> dict[str, Any]:
    """The last judged state, and how it came to be."""
    judged = [row for row in rows if row["score"] is not None]
    last = judged[-1] if judged else rows[-1]
    verdicts: dict[str, int] = {}
    for row in rows:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    return {
        "verdict": last["verdict"],
        "because": last["because"],
        "score": last["score"],
        "bottleneck": last["bottleneck"],
        "brokers": last["brokers"],
        "topics": last["topics"],
        "moves": json.loads(last["moves"]),
        "rejected": json.loads(last["rejected"]),
        "highest_before": last["highest_used"],
        "highest_after": last["highest_after"],
        "what_if": json.loads(last["what_if"]),
        "hot_topics": json.loads(last["hot_topics"]),
        "hot_keys": None,
        "hot_keys_reason": "keys_are_not_sampled",
        "owner_changes": sum(row["owner_changes"] for row in rows),
        "flapping": sum(row["flapping"] for row in rows),
        "verdicts": verdicts,
        **forecast(judged),
        "damaged_files": list(damaged),
    }


def forecast(rows: Sequence[Row]) -> dict[str, Any]:
    """Days until the bottleneck's mean and the fullest disk are 80 % used, by their slopes; None with a reason."""
    found: dict[str, Any] = {}
    bottleneck = rows[-1]["bottleneck"] if rows else None
    known = bottleneck is not None and json.loads(rows[-1]["resources"])[bottleneck]["capacity_known"]
    for name, column, possible in (("load", "mean_used", known), ("disk", "disk_used", True)):
        points = [
            (row["as_of_ms"], row[column])
            for row in rows
            if row[column] is not None and (column != "mean_used" or row["bottleneck"] == bottleneck)
        ]
        days, reason = (None, "capacity_not_known") if not possible else days_to_full(points)
        found[f"days_to_full_{name}"] = days
        if reason is not None:
            found[f"days_to_full_{name}_reason"] = reason
    return found


def days_to_full(points: Sequence[tuple[int, float]]) -> tuple[float | None, str | None]:
    """(days, reason): when a share reaches 80 %, by Theil and Sen's slope; only if it surely rises."""
    if not points:
        return None, "not_known"
    if points[-1][1] >= FULL:
        return 0.0, None
    slope = theil_sen([time_ms for time_ms, _ in points], [value for _, value in points])
    if slope is None:
        return None, "too_few_samples"
    if slope.low <= 0:
        return None, "not_rising"
    return (FULL - points[-1][1]) / slope.per_s / _DAY_S, None
