"""The lag report: from the request to its rows, and the comparison with the time before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydanube_core.errors import CorruptObject, InvalidArgument

from pydanube_spark.reports.engine import rows_of
from pydanube_spark.reports.lag.page import lag_page
from pydanube_spark.reports.lag.summary import lag_summary, offenders, severity, shown_row, subject_of
from pydanube_spark.reports.lag.work import DAMAGED, LAG_SCHEMA, LagRequest, LagWork
from pydanube_spark.reports.run import Files, Report, ReportRequest, Span, SpanResult, run_report

_ROWS_SHOWN: Final = 1000
_CHANGES_SHOWN: Final = 100


def _plan(request: ReportRequest, span: Span) -> Callable[[], SpanResult]:
    work = LagWork.plan(
        LagRequest(
            store=request.store,
            cluster=request.cluster,
            span=span,
            topic=request.topic,
            options=request.rules,
        )
    )
    return partial(_find, work, request)


def _find(work: LagWork, request: ReportRequest) -> SpanResult:
    """Return a row for each hour and one for the whole time, by topic and subscription.

    Raises:
        CorruptObject: no file of the time can be read.
        InvalidArgument: no matching subscription was sampled in the time.
    """
    found, engine = rows_of(work, request.master)
    damaged = [row["evidence"] for row in found if row["status"] == DAMAGED]
    rows = sorted(
        (row for row in found if row["status"] != DAMAGED),
        key=lambda row: (row["log"], row["subscription"], row["hour_ms"] is None, row["hour_ms"] or 0),
    )
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
    return SpanResult(
        cluster=work.telemetry.cluster,
        engine=engine,
        oldest_ms=work.telemetry.oldest_ms,
        newest_ms=max(row["as_of_ms"] for row in rows),
        summary=lag_summary(rows, damaged),
        rows=rows,
    )


def _worst(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return offenders(rows)[:_ROWS_SHOWN]


def _compared(before: SpanResult, now: SpanResult) -> dict[str, Any]:
    """Return {summary, changed, changed_total}. `changed`: subscriptions with another status, the worsened ones first."""
    were = {subject_of(row): row for row in offenders(before.rows)}
    changed = []
    for row in offenders(now.rows):
        was = were.get(subject_of(row))
        if was is not None and was["status"] != row["status"]:
            changed.append(
                {
                    "topic": row["topic"],
                    "partition": row["partition"],
                    "log": row["log"],
                    "subscription": row["subscription"],
                    "before": was["status"],
                    "now": row["status"],
                    "worse": severity(row["status"]) < severity(was["status"]),
                    "lag_before": was["lag_messages"],
                    "lag_now": row["lag_messages"],
                }
            )
    changed.sort(key=lambda each: not each["worse"])
    return {
        "summary": before.summary,
        "changed": changed[:_CHANGES_SHOWN],
        "changed_total": len(changed),
    }


LAG: Final = Report(
    name="lag",
    plan=_plan,
    shown=shown_row,
    answered=_worst,
    compared=_compared,
    files=Files(page=lag_page, schema=LAG_SCHEMA),
)
#: the answer has the rows of the whole time, worst first, at most a thousand
run_lag: Final = partial(run_report, LAG)
