"""The lag report of one subscription of one log: a row an hour, and one for the whole time. No Spark in here.

Every window is judged by `pydanube_core.diagnosis`, the rules that the broker and its alerts use, and settles by the
same hysteresis; so a report says of last month what the broker said then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydanube_core.diagnosis import DiagnosisOptions, LagJudgement, LagStatus, Settling, judge_lag
from pydanube_core.lag import AgeQuality
from pydanube_core.telemetry.files import HOUR_MS

from pydanube_spark.reports.history import Grid, History

_LONGEST: Final = (1 << 63) - 1  # what the column holds: a product of two counters may be anything
#: offset of the oldest unread message → its append time, by the Parquet statistics of the cold tier; None: not there
AppendTime = Callable[[int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What is reported: `[since_ms, until_ms)`."""

    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """One subscription in one hour, `hour_ms`, or in the whole time (None), as of its end.

    Ages in seconds, rates in messages a second. What is None has a reason in `reasons`, under its name. `minutes`:
    status → minutes in it. Percentiles are of the age over time, 0 where nothing was unread.
    """

    hour_ms: int | None
    as_of_ms: int
    consumers: int | None
    next_offset: int | None
    next_unacked: int | None
    lag_messages: int | None
    lag_bytes: int | None  # by the mean size of the log's messages
    oldest_unread_age_s: float | None
    age_quality: str
    in_flight: int | None
    redelivered: int | None
    dead_lettered: int | None
    produce_rate: float | None
    consume_rate: float | None
    velocity: float | None
    eta_s: float | None
    retention_headroom_s: float | None
    lost_messages: int | None
    status: str
    since_ms: int | None
    stuck_reason: str | None
    rewound: bool
    gone_ms: int | None  # the broker went on, and told nothing of it after that: it was deleted
    evidence: str  # JSON: the numbers that decided
    reasons: str  # JSON
    p50_age_s: float | None
    p95_age_s: float | None
    max_age_s: float | None
    minutes: str  # JSON
    samples: int
    expected_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    end_ms: int
    judgement: LagJudgement
    status: LagStatus  # settled
    since_ms: int | None


def rows_of_history(
    history: History,
    span: Span,
    grid: Grid,
    options: DiagnosisOptions,
    append_time: AppendTime | None = None,
    *,
    gone: bool = False,
) -> Iterator[LagRow]:
    """The rows of one subscription, hours first; of one that is gone, until its last sample."""
    if gone:
        span = Span(since_ms=span.since_ms, until_ms=min(span.until_ms, history.last_ms + 1))
        if span.until_ms <= span.since_ms:
            return
    judged = list(_judged(history, span, grid, options))
    by_hour: dict[int, list[_Judged]] = {}
    for each in judged:
        by_hour.setdefault((each.end_ms - 1) // HOUR_MS * HOUR_MS, []).append(each)
    for hour_ms, windows in by_hour.items():
        part = Span(since_ms=max(span.since_ms, hour_ms), until_ms=min(span.until_ms, hour_ms + HOUR_MS))
        yield _row(
            history, part, hour_ms, windows, grid, append_time, gone=gone and windows[-1] is judged[-1]
        )
    if judged:
        yield _row(history, span, None, judged, grid, append_time, gone=gone)


def _judged(history: History, span: Span, grid: Grid, options: DiagnosisOptions) -> Iterator[_Judged]:
    """Windows end at whole steps behind `since`; the last one ends with the span, if it is not whole."""
    settling: Settling[LagStatus] | None = None
    ends = list(range(span.since_ms + grid.window_ms, span.until_ms + 1, grid.window_ms))
    if not ends or ends[-1] < span.until_ms:
        ends.append(span.until_ms)
    # Before its first sample a subscription was not there: that is no time without telemetry.
    began_ms = int(history.times[0]) if len(history.times) else span.until_ms
    for end_ms in ends:
        if end_ms <= began_ms:
            continue
        found = judge_lag(history.window(end_ms, grid), options)
        if settling is None:
            settling = Settling(found.status, end_ms)
        else:
            settling.observe(
                found.status, end_ms, enter_after=options.open_after, leave_after=options.close_after
            )
        same = settling.value is found.status
        since_ms = found.since_ms if same and found.since_ms is not None else settling.since_ms
        yield _Judged(end_ms=end_ms, judgement=found, status=settling.value, since_ms=since_ms)


def _row(
    history: History,
    span: Span,
    hour_ms: int | None,
    windows: Sequence[_Judged],
    grid: Grid,
    append_time: AppendTime | None,
    *,
    gone: bool,
) -> LagRow:
    last = windows[-1]
    found = last.judgement
    at = int(history.at(np.array([last.end_ms]), grid)[0])
    known = at >= 0
    moments = np.arange(span.since_ms + grid.step_ms, span.until_ms + 1, grid.step_ms, dtype=np.int64)
    ages = history.ages_s(moments, grid)
    first, end = np.searchsorted(history.times, [span.since_ms, span.until_ms])
    age_s, quality = found.age.age_s, found.age.quality
    reasons = dict(found.reasons)
    if found.age.reason is not None:
        reasons["oldest_unread_age_s"] = found.age.reason
    cursor = int(history.cursor[at]) if known else None
    if (
        append_time is not None
        and cursor is not None
        and found.lag_messages
        and quality is not AgeQuality.EXACT
    ):
        appended_ms = append_time(cursor)
        if appended_ms is not None:
            age_s, quality = max(0, last.end_ms - appended_ms) / 1000, AgeQuality.EXACT
            reasons.pop("oldest_unread_age_s", None)
    if not known:
        reasons.setdefault("next_offset", "no_sample")
    lag = int(history.lag[at]) if known else None
    size = history.log.message_bytes
    lag_bytes = None if lag is None or (size is None and lag) else min(round(lag * (size or 0.0)), _LONGEST)
    if lag_bytes is None:
        reasons["lag_bytes"] = "no_sample" if lag is None else "message_size_not_known"
    if not len(ages):
        reasons["p50_age_s"] = "no_age_known"
    # Every held moment counts, also where a sample was told once and held for several: a quiet subscription is not
    # one that lacks samples.
    held = int((history.at(moments, grid) >= 0).sum())
    minutes: dict[str, float] = {}
    begun = span.since_ms
    for each in windows:
        minutes[each.status.value] = minutes.get(each.status.value, 0.0) + (each.end_ms - begun) / 60_000
        begun = each.end_ms
    return LagRow(
        hour_ms=hour_ms,
        as_of_ms=last.end_ms,
        consumers=int(history.members[at]) if known else None,
        next_offset=int(history.head[at]) if known else None,
        next_unacked=cursor,
        lag_messages=lag,
        lag_bytes=lag_bytes,
        oldest_unread_age_s=None if age_s is None else float(age_s),
        age_quality=quality.value,
        in_flight=int(history.in_flight[at]) if known else None,
        redelivered=_difference(history.redelivered, first, end),
        dead_lettered=_difference(history.dead_lettered, first, end),
        produce_rate=found.produce_rate,
        consume_rate=found.consume_rate,
        velocity=None if found.velocity is None else found.velocity.per_s,
        eta_s=found.eta_s,
        retention_headroom_s=found.retention_headroom_s,
        lost_messages=max(0, int(history.start[at]) - int(history.cursor[at])) if known else None,
        status=last.status.value,
        since_ms=last.since_ms,
        stuck_reason=None if found.stuck_reason is None else found.stuck_reason.value,
        rewound=any(each.judgement.rewind is not None for each in windows),
        gone_ms=history.last_ms if gone else None,
        evidence=json.dumps(dict(found.evidence), default=float),
        reasons=json.dumps(reasons),
        p50_age_s=_percentile(ages, 50),
        p95_age_s=_percentile(ages, 95),
        max_age_s=float(ages.max()) if len(ages) else None,
        minutes=json.dumps({status: round(count, 3) for status, count in sorted(minutes.items())}),
        samples=held,
        expected_samples=len(moments),
    )


def _difference(counter: Any, first: int, end: int) -> int | None:
    """How much a counter rose in a range of samples; a fall is a restart, from 0."""
    if end <= first:
        return None
    values = counter[max(0, first - 1) : end]
    steps = np.diff(values)
    return int(np.where(steps >= 0, steps, values[1:]).sum())


def _percentile(ages: Any, share: float) -> float | None:
    return float(np.percentile(ages, share)) if len(ages) else None
