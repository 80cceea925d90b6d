"""The rows of one subscription of one log: one for each hour, and one for the whole time. Without Spark.

Every window is judged by `pydanube_core.diagnosis`, the rules of the broker and its alerts, with the same settling. So a
report on last month shows the statuses that the broker reported then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from pydanube_core.cursor_state import REPORTED
from pydanube_core.diagnosis import (
    AgeQuality,
    DiagnosisOptions,
    LagJudgement,
    LagStatus,
    SettledStatus,
    UnreadAge,
    judge_lag,
)
from pydanube_core.diagnosis.settled_status import counts_at_once
from pydanube_core.telemetry.files import HOUR_MS

from pydanube_spark.reports.lag.history import Grid, History
from pydanube_spark.reports.run import Span

_LONGEST: Final = (1 << 63) - 1  # maximum of the column, which a product of two counters may exceed
#: worst first, the order of a report
SEVERITY: Final = (
    LagStatus.DATA_LOST, LagStatus.AT_RISK, LagStatus.STUCK, LagStatus.FALLING_BEHIND, LagStatus.SLOW,
    LagStatus.UNKNOWN, LagStatus.CATCHING_UP, LagStatus.CAUGHT_UP,
)  # fmt: skip
STRETCHES: Final = 48  # parts of the whole time in charts
#: offset of the oldest unread message → its append time by the cold tier, None if it is not there
AppendTime = Callable[[int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """One subscription in one hour (`hour_ms`) or in the whole time (None), as of its newest sample there.

    Ages are in seconds, rates in messages per second. A field that is None has a reason in `reasons`, under its name.
    `minutes`: status → minutes in it. Time without samples counts as UNKNOWN, so that the sum is the whole time.
    Percentiles are of the age over time, with 0 where nothing was unread.
    """

    hour_ms: int | None
    as_of_ms: int
    consumers: int | None
    next_offset: int | None
    next_unacked: int | None
    lag_messages: int | None
    lag_bytes: int | None  # estimated by the mean size of the log's messages
    oldest_unread_age_s: float | None
    age_quality: str
    in_flight: int | None
    rises: Mapping[str, int | None]  # of each of `REPORTED` in this time
    produce_rate: float | None
    consume_rate: float | None
    velocity: float | None
    eta_s: float | None
    retention_headroom_s: float | None
    lost_messages: int | None  # trimmed before they were read, and still ahead of the cursor
    newly_lost_messages: int | None  # in this time
    status: str
    since_ms: int | None
    stuck_reason: str | None
    rewound: bool
    # Last sample of a deleted subscription: the broker reported later, but not on it
    gone_ms: int | None
    evidence: str  # JSON: the numbers that decided the status
    reasons: str  # JSON
    p50_age_s: float | None
    p95_age_s: float | None
    max_age_s: float | None
    minutes: str  # JSON
    # JSON, only for the whole time: [stretch, worst status, unread at its end, highest age] each
    course: str | None
    samples: int
    expected_samples: int

    def columns(self) -> dict[str, Any]:
        """Return the values of the report's columns, in order."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            found |= value if each.name == "rises" else {each.name: value}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The judgement of a window. `begin_ms` is the end of the previous one."""

    begin_ms: int
    end_ms: int
    newest: LagJudgement
    decided: LagJudgement  # the judgement behind the settled status
    since_ms: int

    @property
    def status(self) -> LagStatus:
        return self.decided.status


def rows_of_history(
    history: History,
    span: Span,
    grid: Grid,
    options: DiagnosisOptions,
    append_time: AppendTime | None = None,
    *,
    end_ms: int | None = None,
    drawn: Span | None = None,
    gone: bool = False,
) -> Iterator[LagRow]:
    """Return the rows of one subscription, hours first. The rows of a deleted one end with its last sample.

    `end_ms`: the end of telemetry as a whole, if it is within the time. Later time is not judged. `drawn`: the time of
    `course`, from the begin of telemetry, so that a few minutes of telemetry fill the chart.
    """
    drawn = drawn or span
    if gone:
        span = Span(since_ms=span.since_ms, until_ms=min(span.until_ms, history.last_ms + 1))
        if span.until_ms <= span.since_ms:
            return
    judged = list(_judged(history, span, grid, options, span.until_ms if end_ms is None else end_ms))
    if not judged:
        return
    first_hour, last_hour = judged[0].end_ms - 1, judged[-1].end_ms - 1
    for hour_ms in range(first_hour // HOUR_MS * HOUR_MS, last_hour + 1, HOUR_MS):
        part = Span(since_ms=max(span.since_ms, hour_ms), until_ms=min(span.until_ms, hour_ms + HOUR_MS))
        windows = [each for each in judged if each.begin_ms < part.until_ms and each.end_ms > part.since_ms]
        ended = gone and windows[-1] is judged[-1]
        yield _row(history, part, hour_ms, windows, grid, append_time, drawn=drawn, gone=ended)
    yield _row(history, span, None, judged, grid, append_time, drawn=drawn, gone=gone)


def _judged(
    history: History, span: Span, grid: Grid, options: DiagnosisOptions, end_ms: int
) -> Iterator[_Judged]:
    """Judge windows that end at whole multiples of their length. The last one ends with the known samples."""
    until_ms = min(span.until_ms, end_ms)
    if history.known_until_ms < until_ms <= history.known_until_ms + grid.hold_ms:
        until_ms = max(history.known_until_ms, span.since_ms + 1)  # later samples are not stored yet
    first_ms = span.since_ms // grid.window_ms * grid.window_ms + grid.window_ms
    ends = [*range(first_ms, until_ms, grid.window_ms), until_ms]
    looks = max(options.open_after, options.close_after)
    settled: SettledStatus | None = None
    begin_ms = span.since_ms
    for end_ms in ends:
        if end_ms < history.first_ms:
            begin_ms = end_ms
            continue
        # Only the last window of an hour and of the whole time needs rates.
        rates = begin_ms // HOUR_MS != end_ms // HOUR_MS or end_ms == ends[-1]
        found = judge_lag(history.window(end_ms), options, rates=rates)
        if settled is None:
            settled = SettledStatus(found, end_ms)
        elif found.status is not settled.status and not counts_at_once(found, after=settled.status):
            for back in range(looks - 1, 0, -1):  # the broker judged in each of its rounds
                before_ms = end_ms - back * grid.interval_ms
                settled.observe(
                    judge_lag(history.window(before_ms), options, rates=False), before_ms, options
                )
        settled.observe(found, end_ms, options)
        yield _Judged(
            begin_ms=begin_ms,
            end_ms=end_ms,
            newest=found,
            decided=settled.judgement,
            since_ms=settled.since_ms,
        )
        begin_ms = end_ms


def _row(
    history: History,
    span: Span,
    hour_ms: int | None,
    windows: Sequence[_Judged],
    grid: Grid,
    append_time: AppendTime | None,
    *,
    drawn: Span,
    gone: bool,
) -> LagRow:
    last = windows[-1]
    as_of_ms = min(last.end_ms, span.until_ms)
    found = last.newest
    at = int(history.at(np.array([as_of_ms]))[0])
    known = at >= 0
    moments = np.arange(span.since_ms + grid.step_ms, as_of_ms + 1, grid.step_ms, dtype=np.int64)
    ages = history.ages_s(moments)
    time = span.since_ms, span.until_ms
    cursor = int(history.cursor[at]) if known else None
    # Messages below the start are deleted.
    oldest = int(max(history.cursor[at], history.start[at])) if known else None
    age = _exact_age(found, oldest, append_time, as_of_ms)
    reasons = dict(found.reasons)
    if age.reason is not None:
        reasons["oldest_unread_age_s"] = age.reason
    if not known:
        reasons.setdefault("next_offset", "no_sample")
    lag = int(history.lag[at]) if known else None
    size = history.log.message_bytes
    lag_bytes = None if lag is None or (size is None and lag) else min(round(lag * (size or 0.0)), _LONGEST)
    if lag_bytes is None:
        reasons["lag_bytes"] = "no_sample" if lag is None else "message_size_not_known"
    if not len(ages):
        reasons["p50_age_s"] = "no_age_known"
    # Count the moments for which a sample holds. One sample may hold for several, so a quiet subscription lacks none.
    held = int((history.at(moments) >= 0).sum())
    return LagRow(
        hour_ms=hour_ms,
        as_of_ms=as_of_ms,
        consumers=int(history.members[at]) if known else None,
        next_offset=int(history.head[at]) if known else None,
        next_unacked=cursor,
        lag_messages=lag,
        lag_bytes=lag_bytes,
        oldest_unread_age_s=None if age.age_s is None else float(age.age_s),
        age_quality=age.quality.value,
        in_flight=int(history.in_flight[at]) if known else None,
        rises={name: history.rise(name, *time) for name in REPORTED},
        produce_rate=found.produce_rate,
        consume_rate=found.consume_rate,
        velocity=None if found.velocity is None else found.velocity.per_s,
        eta_s=found.eta_s,
        retention_headroom_s=found.retention_headroom_s,
        lost_messages=int(history.lost[at]) if known else None,
        newly_lost_messages=history.newly_lost(*time),
        status=last.status.value,
        since_ms=last.since_ms,
        stuck_reason=None if last.decided.stuck_reason is None else last.decided.stuck_reason.value,
        rewound=any(each.newest.rewind is not None for each in windows),
        gone_ms=history.last_ms if gone else None,
        evidence=json.dumps(dict(last.decided.evidence), default=float),
        reasons=json.dumps(reasons),
        p50_age_s=_percentile(ages, 50),
        p95_age_s=_percentile(ages, 95),
        max_age_s=float(ages.max()) if len(ages) else None,
        minutes=json.dumps(_minutes(history, span, windows)),
        course=json.dumps(_course(drawn, windows)) if hour_ms is None else None,
        samples=held,
        expected_samples=len(moments),
    )


def _exact_age(
    found: LagJudgement, oldest: int | None, append_time: AppendTime | None, as_of_ms: int
) -> UnreadAge:
    """Return the age of the oldest unread message, which is exact if its object can be read."""
    if (
        append_time is None
        or oldest is None
        or not found.lag_messages
        or found.age.quality is AgeQuality.EXACT
    ):
        return found.age
    appended_ms = append_time(oldest)
    if appended_ms is None:
        return found.age
    age_s = max(0, as_of_ms - appended_ms) / 1000
    return UnreadAge(age_s=age_s, reason=None, quality=AgeQuality.EXACT)


def _minutes(history: History, span: Span, windows: Sequence[_Judged]) -> dict[str, float]:
    """Return the minutes in each status: the covered part of each window, and the rest as UNKNOWN."""
    spent_ms: dict[str, int] = {}
    begins = np.array([max(each.begin_ms, span.since_ms) for each in windows], np.int64)
    ends = np.array([min(each.end_ms, span.until_ms) for each in windows], np.int64)
    for each, known_ms in zip(windows, history.known_ms(begins, ends).tolist(), strict=True):
        spent_ms[each.status.value] = spent_ms.get(each.status.value, 0) + known_ms
    unknown = LagStatus.UNKNOWN.value
    rest_ms = span.until_ms - span.since_ms - sum(spent_ms.values())
    spent_ms[unknown] = spent_ms.get(unknown, 0) + rest_ms
    minutes = {status: round(spent / 60_000, 3) for status, spent in sorted(spent_ms.items())}
    return {status: spent for status, spent in minutes.items() if spent}


def stretch_ms(span: Span) -> int:
    """Return the length of a stretch of `course`. The last one may be shorter."""
    return -(-(span.until_ms - span.since_ms) // STRETCHES)


def _course(span: Span, windows: Sequence[_Judged]) -> list[list[Any]]:
    """Return a point for each stretch with a judged window. A long window counts in each stretch that it covers."""
    points: dict[int, list[Any]] = {}
    step_ms = stretch_ms(span)
    for each in windows:
        found = each.newest
        age_s = 0.0 if found.lag_messages == 0 else found.age.age_s
        first, last = max(0, each.begin_ms - span.since_ms), max(0, each.end_ms - 1 - span.since_ms)
        for stretch in range(-(-first // step_ms), last // step_ms + 1) or (last // step_ms,):
            point = points.setdefault(stretch, [stretch, each.status.value, None, None])
            point[1] = min(point[1], each.status.value, key=lambda name: SEVERITY.index(LagStatus(name)))
            point[2] = found.lag_messages
            point[3] = age_s if point[3] is None else max(point[3], age_s or 0.0)
    return [points[stretch] for stretch in sorted(points)]


def _percentile(ages: Any, share: float) -> float | None:
    return float(np.percentile(ages, share)) if len(ages) else None
