"""The balance report: from the request to its rows and their summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydanube_core.diagnosis import theil_sen
from pydanube_core.errors import CorruptObject, InvalidArgument
from pydanube_core.units import format_time

from pydanube_spark.reports.balance.page import balance_page
from pydanube_spark.reports.balance.work import BALANCE_SCHEMA, DAMAGED, BalanceWork, with_missing
from pydanube_spark.reports.engine import rows_of
from pydanube_spark.reports.run import Files, Report, ReportRequest, Span, SpanResult, run_report

Row = Mapping[str, Any]
FULL: Final = 0.8
_DAY_S: Final = 86_400.0
_JSON: Final = ("moves", "rejected", "resources", "hot_topics", "what_if", "deductions", "missing")


def _plan(request: ReportRequest, span: Span) -> Callable[[], SpanResult]:
    return partial(_find, BalanceWork.plan(request.store, request.cluster, span, request.topic), request)


def _find(work: BalanceWork, request: ReportRequest) -> SpanResult:
    """Return a row for each stretch of the time.

    Raises:
        CorruptObject: no file of the time can be read.
        InvalidArgument: no broker, or no matching topic, was sampled in the time.
    """
    found, engine = rows_of(work, request.master)
    damaged = [row["because"] for row in found if row["verdict"] == DAMAGED]
    rows = with_missing(
        sorted((row for row in found if row["verdict"] != DAMAGED), key=lambda row: row["hour_ms"])
    )
    if not rows and damaged:
        raise CorruptObject(f"no file of that time can be read: {damaged[0]}", files=damaged[:20])
    if not rows:
        raise InvalidArgument("no broker was sampled in that time", field="since", value=request.since)
    if request.topic is not None and not any(row["topics"] for row in rows):
        raise InvalidArgument(
            f"no topic {request.topic!r} was sampled in that time", field="topic", value=request.topic
        )
    return SpanResult(
        cluster=work.brokers.cluster,
        engine=engine,
        oldest_ms=work.brokers.oldest_ms,
        newest_ms=work.brokers.newest_ms,
        summary=balance_summary(rows, damaged),
        rows=rows,
    )


def shown_row(row: Row) -> dict[str, Any]:
    """Return a row in the form of JSON."""
    shown = {name: value for name, value in row.items() if name not in ("hour_ms", "as_of_ms", "told")}
    shown |= {name: json.loads(row[name]) for name in _JSON}
    return {"hour": format_time(row["hour_ms"]), "as_of": format_time(row["as_of_ms"]), **shown}


def balance_summary(rows: Sequence[Row], damaged: Sequence[str]) -> dict[str, Any]:
    """Return the summary: the last stretch, the newest judged one before it if it is undecided, counts, and a forecast."""
    judged = [row for row in rows if row["score"] is not None]
    last = rows[-1]
    before = judged[-1] if judged and last["score"] is None else None
    verdicts: dict[str, int] = {}
    for row in rows:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    return {
        "verdict": last["verdict"],
        "because": last["because"],
        "score": last["score"],
        "before": None
        if before is None
        else {
            "as_of": format_time(before["as_of_ms"]),
            **{name: before[name] for name in ("verdict", "because", "score")},
        },
        "bottleneck": last["bottleneck"],
        "brokers": last["brokers"],
        "missing": json.loads(last["missing"]),
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
    """Return the days until the bottleneck's mean and the fullest disk are 80 % used, by their slopes, or None and why."""
    found: dict[str, Any] = {}
    bottleneck = rows[-1]["bottleneck"] if rows else None
    known = bottleneck is not None and json.loads(rows[-1]["resources"])[bottleneck]["capacity_known"]
    for name, column, possible in (("load", "mean_used", known), ("disk", "disk_used", True)):
        points = [
            (row["as_of_ms"], row[column])
            for row in rows
            if row[column] is not None and (column != "mean_used" or row["bottleneck"] == bottleneck)
        ]
        unknown = "nothing_used" if bottleneck is None else "capacity_not_known"
        days, reason = (None, unknown) if not possible else days_to_full(points)
        found[f"days_to_full_{name}"] = days
        if reason is not None:
            found[f"days_to_full_{name}_reason"] = reason
    return found


def days_to_full(points: Sequence[tuple[int, float]]) -> tuple[float | None, str | None]:
    """Return (days until a share reaches 80 %, reason), by the Theil-Sen slope. Days are None unless its lower bound is above 0."""
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


BALANCE: Final = Report(
    name="balance", plan=_plan, shown=shown_row, files=Files(page=balance_page, schema=BALANCE_SCHEMA)
)
run_balance: Final = partial(run_report, BALANCE)
