"""Run a report from request to files: shared by the command, the operations and spark-submit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.errors import CorruptObject, InvalidArgument
from pydanube_core.units import format_time, parse_moment_ms
from pydanube_storage.objects import StoreOptions

from pydanube_spark.reports.pages.output import check_folder, write_report
from pydanube_spark.reports.pages.page import ReportPage
from pydanube_spark.reports.progress import Progress, no_progress

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The reported time: `[since_ms, until_ms)`."""

    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The request of a report, with the names of the command line and the operations."""

    store: StoreOptions
    cluster: str | None = None
    since: str = "24h"
    until: str | None = None
    topic: str | None = None
    out: Path | None = None
    master: str | None = None
    compare: str | None = None  # "previous": compare with the time of the same length before
    # The broker's settings, for equal statuses
    rules: DiagnosisOptions = field(default_factory=DiagnosisOptions)

    def __post_init__(self) -> None:
        if self.compare not in (None, "previous"):
            raise InvalidArgument(
                f"compare: {self.compare!r}: there is only previous", field="compare", value=self.compare
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanResult:
    """The result of a report for one span of time."""

    cluster: str
    engine: str  # python or spark
    oldest_ms: int  # of the first sample, if telemetry begins within the time
    newest_ms: int  # of the newest sample
    summary: dict[str, Any]
    rows: list[dict[str, Any]]  # all of it, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """How a report is written: its page, and the Arrow schema of its rows."""

    page: Callable[[Sequence[Row], Mapping[str, Any]], ReportPage]
    schema: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A kind of report.

    Attributes:
        plan: finds the files of a time and raises errors before anything is started. The returned function reads them.
        shown: returns a row in the form of JSON.
        answered: selects the rows of the answer.
        compared: returns the fields of `previous`, from the rows of both times.
        beside: adds values of the time before to the rows. The rows before are empty if they could not be read.
        files: None if the report has no files.
    """

    name: str
    plan: Callable[[ReportRequest, Span], Callable[[], SpanResult]]
    shown: Callable[[Row], dict[str, Any]] = dict
    answered: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    compared: Callable[[SpanResult, SpanResult], dict[str, Any]] = lambda before, now: {
        "summary": before.summary
    }
    beside: Callable[[list[dict[str, Any]], Sequence[Row]], list[dict[str, Any]]] = lambda rows, before: rows
    files: Files | None = None


def span_of(request: ReportRequest, *, now_ms: int) -> Span:
    """Return the requested time. `since` is a length before `until`, or a time.

    Raises `InvalidArgument` for other texts, and if the time is empty.
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


def run_report(report: Report, request: ReportRequest, progress: Progress = no_progress) -> dict[str, Any]:
    """Run a report and write its files.

    Returns:
        {report, cluster, since, until, known_from, as_of, data_age_s, engine, took_s, rows, summary, files}, and `previous`
        if the request compares. `rows` are the rows of the answer. The files have all rows.

    Raises:
        ClusterError: there is no store, no telemetry of that time, no matching topic, or no Java for Spark.
    """
    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    span = span_of(request, now_ms=now_ms)
    read = report.plan(request, span)
    out = None if report.files is None else request.out
    if out is not None:
        check_folder(out)
    progress("reading telemetry", 0.1)
    found = read()
    rows = found.rows
    body: dict[str, Any] = {
        "report": report.name,
        "cluster": found.cluster,
        "since": format_time(span.since_ms),
        "until": format_time(span.until_ms),
        "known_from": format_time(max(span.since_ms, found.oldest_ms)),
        "as_of": format_time(found.newest_ms),
        "data_age_s": max(0, now_ms - found.newest_ms) / 1000,
        "engine": found.engine,
        "summary": found.summary,
    }
    if request.compare is not None:
        progress("reading the time before", 0.6)
        body["previous"], before = _previous(report, request, span, found)
        rows = report.beside(rows, before)
    progress("writing the report", 0.9)
    body["took_s"] = round(time.monotonic() - begun, 3)
    written = {}
    if out is not None:
        assert report.files is not None
        written = write_report(
            out,
            report.name,
            rows=pa.Table.from_pylist(rows, schema=report.files.schema),
            shown=[report.shown(row) for row in rows],
            report=body,
            page=report.files.page(rows, body),
        )
    progress("done", 1.0)
    return {**body, "rows": [report.shown(row) for row in report.answered(rows)], "files": written}


def _previous(
    report: Report, request: ReportRequest, span: Span, now: SpanResult
) -> tuple[dict[str, Any], Sequence[Row]]:
    """Return {since, until, …} of the time of equal length before, and its rows, or {since, until, reason} and none."""
    before = Span(since_ms=max(0, 2 * span.since_ms - span.until_ms), until_ms=span.since_ms)
    head = {"since": format_time(before.since_ms), "until": format_time(before.until_ms)}
    try:
        found = report.plan(request, before)()
    except (InvalidArgument, CorruptObject) as error:  # no telemetry of that time, or none is readable
        return {**head, "reason": error.message}, ()
    return {**head, **report.compared(found, now)}, found.rows
