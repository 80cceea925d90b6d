"""A report beside that of the time before, of the same length: what became better and what became worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydanube_core.errors import CorruptObject, InvalidArgument
from pydanube_core.units import format_time

from pydanube_spark.reports.lag_rows import Span
from pydanube_spark.reports.lag_view import offenders, severity, subject_of
from pydanube_spark.reports.table import TableView, plain_rows

_SHOWN: Final = 100


def previous(span: Span, make: Callable[[Span], dict[str, Any]]) -> dict[str, Any]:
    """{since, until, …} of the time before, or why there is nothing to compare with: {since, until, reason}."""
    before = Span(since_ms=max(0, 2 * span.since_ms - span.until_ms), until_ms=span.since_ms)
    head = {"since": format_time(before.since_ms), "until": format_time(before.until_ms)}
    try:
        return {**head, **make(before)}
    except (InvalidArgument, CorruptObject) as error:  # none of that time, or none that can be read
        return {**head, "reason": error.message}


def comparison_table(
    report: Mapping[str, Any], figures: Callable[[Mapping[str, Any]], dict[str, str]]
) -> TableView:
    """The figures of both times, and what changed its status."""
    before = report["previous"]
    title = "Compared with the time before"
    head = ("", f"{before['since'][:16]} to {before['until'][:16]}".replace("T", " "), "now")
    if "reason" in before:
        return TableView(title=title, head=head, rows=(), note=f"Nothing to compare with: {before['reason']}")
    was, now = figures(before["summary"]), figures(report["summary"])
    rows = [(name, was[name], now[name]) for name in now]
    rows += [
        (f"{each['subscription']} of {each['topic']}", each["before"], each["now"])
        for each in before.get("changed", ())
    ]
    more = before.get("changed_total", 0) - len(before.get("changed", ()))
    return TableView(
        title=title, head=head, rows=plain_rows(rows), note=f"{more} more changed." if more else ""
    )


def compare_lag(
    summary: Mapping[str, Any], before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """{summary, changed}: the subscriptions whose status is another one, those that became worse first."""
    were = {subject_of(row): row for row in offenders(before)}
    changed = []
    for row in offenders(now):
        was = were.get(subject_of(row))
        if was is not None and was["status"] != row["status"]:
            changed.append(
                {
                    "topic": row["topic"],
                    "subscription": row["subscription"],
                    "before": was["status"],
                    "now": row["status"],
                    "worse": severity(row["status"]) < severity(was["status"]),
                    "lag_before": was["lag_messages"],
                    "lag_now": row["lag_messages"],
                }
            )
    changed.sort(key=lambda each: not each["worse"])
    return {"summary": dict(summary), "changed": changed[:_SHOWN], "changed_total": len(changed)}
