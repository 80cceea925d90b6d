"""Run a report from question to files: what the command, the operations and spark-submit share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.errors import CorruptObject, InvalidArgument
from pydanube_core.units import format_time, parse_moment_ms
from pydanube_storage.objects import StoreOptions

from pydanube_spark.reports.comparison import compare_lag, previous
from pydanube_spark.reports.engine import rows_of
from pydanube_spark.reports.lag_page import lag_page
from pydanube_spark.reports.lag_rows import Span
from pydanube_spark.reports.lag_view import lag_summary, offenders, shown_row
from pydanube_spark.reports.lag_work import DAMAGED, LAG_SCHEMA, LagQuestion, LagWork, rows_here
from pydanube_spark.reports.output import check_folder, write_report
from pydanube_spark.reports.progress import Progress, no_progress

_ROWS_SHOWN: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The question of a report, as the command line and the operations say it."""

    store: StoreOptions
    cluster: str | None = None
    since: str = "24h"
    until: str | None = None
    topic: str | None = None
    out: Path | None = None
    master: str | None = None
    compare: str | None = None  # previous: with the time of the same length before
    # As the broker has them, for its statuses
    rules: DiagnosisOptions = field(default_factory=DiagnosisOptions)

    def __post_init__(self) -> None:
        if self.compare not in (None, "previous"):
            raise InvalidArgument(
                f"compare: {self.compare!r}: there is only previous", field="compare", value=self.compare
            )


def span_of(request: ReportRequest, *, now_ms: int) -> Span:
    """The time asked for; `since` is a length before `until`, or a time.

    Raises `InvalidArgument`: neither, or nothing lies in between.
    """
    until_ms = (
        now_ms if request.until is None else parse_moment_ms(request.until, now_ms=now_ms, field="until")
    )
    since_ms = parse_moment_ms(request.since, now_ms=until_ms, field="since")
    if since_ms >= until_ms:
        raise InvalidArgument(
            f"the time to report is empty: since {request.since} is not before {format_time(until_ms)}",
            field="since",
            value=request.since,
        )
    return Span(since_ms=max(0, since_ms), until_ms=until_ms)


def run_lag(request: ReportRequest, progress: Progress = no_progress) -> dict[str, Any]:
    """The lag report: {report, cluster, since, until, as_of, data_age_s, engine, took_s, rows, summary, files}, and
    `previous` if it is to be compared; rows of the whole time, the worst first, a thousand at most; all of them are in
    the files.

    Raises `ClusterError`: no store, no telemetry, none of that time, no such topic, no Java.
    """
    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    span = span_of(request, now_ms=now_ms)
    work = _plan(request, span)
    if request.out is not None:
        check_folder(request.out)
    progress("reading telemetry", 0.1)
    rows, damaged, engine = _lag_rows(work, request)
    if not rows and damaged:
        raise CorruptObject(f"no file of that time can be read: {damaged[0]}", files=damaged[:20])
    if not rows:
        raise InvalidArgument(
            f"no subscription of {request.topic!r} was sampled in that time"
            if request.topic
            else "no subscription was sampled in that time",
            field="topic" if request.topic else "since",
            value=request.topic or request.since,
        )
    summary = lag_summary(rows, damaged)
    newest_ms = max(row["as_of_ms"] for row in rows)
    report: dict[str, Any] = {
        "report": "lag",
        "cluster": work.telemetry.cluster,
        "since": format_time(span.since_ms),
        "until": format_time(span.until_ms),
        "as_of": format_time(newest_ms),
        "data_age_s": max(0, now_ms - newest_ms) / 1000,
        "engine": engine,
        "summary": summary,
    }
    if request.compare is not None:
        progress("reading the time before", 0.6)
        report["previous"] = previous(span, lambda before: _lag_before(request, before, rows))
    progress("writing the report", 0.9)
    report["took_s"] = round(time.monotonic() - begun, 3)
    files = {}
    if request.out is not None:
        table = pa.Table.from_pylist(rows, schema=LAG_SCHEMA)
        shown = [shown_row(row) for row in rows]
        files = write_report(
            request.out, "lag", rows=table, shown=shown, report=report, page=lag_page(rows, report)
        )
    progress("done", 1.0)
    return {**report, "rows": [shown_row(row) for row in offenders(rows)[:_ROWS_SHOWN]], "files": files}


def _plan(request: ReportRequest, span: Span) -> LagWork:
    return LagWork.plan(
        LagQuestion(
            store=request.store,
            cluster=request.cluster,
            span=span,
            topic=request.topic,
            options=request.rules,
        )
    )


def _lag_rows(work: LagWork, request: ReportRequest) -> tuple[list[dict[str, Any]], list[str], str]:
    """(rows in order, texts of damaged files, what made them)."""

    def spark(session: Any) -> Any:
        from pydanube_spark.reports.lag import lag_table

        return lag_table(session, work)

    found, engine = rows_of(
        work.telemetry.stored_bytes, request.master, here=lambda: rows_here(work), spark=spark
    )
    damaged = [row["evidence"] for row in found if row["status"] == DAMAGED]
    rows = sorted(
        (row for row in found if row["status"] != DAMAGED),
        key=lambda row: (row["topic"], row["subscription"], row["hour_ms"] is None, row["hour_ms"] or 0),
    )
    return rows, damaged, engine


def _lag_before(request: ReportRequest, span: Span, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    before, damaged, _ = _lag_rows(_plan(request, span), request)
    return compare_lag(lag_summary(before, damaged), before, rows)
