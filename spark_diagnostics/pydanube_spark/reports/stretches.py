"""The words of the pages about their time: since when, until when, how old the data is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.telemetry.files import DAY_MS
from pydanube_core.units import format_time

from pydanube_spark.reports.lag_rows import STRETCHES, Span, stretch_ms
from pydanube_spark.reports.lag_view import age_text


def as_of_text(report: Mapping[str, Any]) -> str:
    """Cluster, time, and the age of the newest sample."""
    since, until, as_of = (minute_text(report[name]) for name in ("since", "until", "as_of"))
    return (
        f"{report['cluster']} · {since} to {until} UTC · newest sample {as_of}, "
        f"{age_text(report['data_age_s'])} old when this was made"
    )


def minute_text(time: str) -> str:
    """A time as it is read: without fractions of a second."""
    return f"{time[:10]} {time[11:19]}"


def stretch_labels(since_ms: int, until_ms: int) -> list[str]:
    """The end of each stretch, with its day where there are several."""
    span = Span(since_ms=since_ms, until_ms=until_ms)
    ends = [min(until_ms, since_ms + stretch_ms(span) * (i + 1)) for i in range(STRETCHES)]
    return [time_label(end, until_ms - since_ms) for end in ends]


def time_label(time_ms: int, length_ms: int) -> str:
    """A time on an axis that is so long."""
    text = format_time(time_ms)
    return (
        text[11:16]
        if length_ms <= DAY_MS
        else text[5:16].replace("T", " ")
        if length_ms <= 7 * DAY_MS
        else text[5:10]
    )
