"""Texts about the time of a report: from, to, the age of the data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.telemetry.files import DAY_MS
from pydanube_core.units import format_time


def as_of_text(report: Mapping[str, Any]) -> str:
    """Return cluster, time, and the age of the newest sample."""
    since, until, begin, as_of = (
        minute_text(report[name]) for name in ("since", "until", "known_from", "as_of")
    )
    begins = "" if begin == since else f"telemetry begins {begin} · "
    return (
        f"{report['cluster']} · {since} to {until} UTC · {begins}newest sample {as_of}, "
        f"{age_text(report['data_age_s'])} old when this was made"
    )


def minute_text(time: str) -> str:
    """Return a time for people: without fractions of a second."""
    return f"{time[:10]} {time[11:19]}"


def time_label(time_ms: int, length_ms: int) -> str:
    """Return a time for an axis of that length."""
    text = format_time(time_ms)
    return (
        text[11:16]
        if length_ms <= DAY_MS
        else text[5:16].replace("T", " ")
        if length_ms <= 7 * DAY_MS
        else text[5:10]
    )


def age_text(seconds: float | None) -> str:
    """Return a length of time for people, – if unknown."""
    if seconds is None:
        return "–"
    for least, size, unit in ((100 * 3600, 86_400, "days"), (3600, 3600, "h"), (60, 60, "min")):
        if seconds >= least:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
