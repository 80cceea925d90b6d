"""Broker and report are fed the same history, and say the same words: one engine of statuses, two ways to its windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydanube_broker.observation.tracks import CursorTrack, Rounds
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis import DiagnosisOptions, LagWindow, Retention, SettledStatus, judge_lag
from pydanube_spark.reports.lag.history import ARRAYS, Grid, History, LogFacts
from pydanube_spark.reports.lag.rows import rows_of_history
from pydanube_spark.reports.run import Span

OPTIONS = DiagnosisOptions()
GRID = Grid.of(5000)
START = 472_222 * 3_600_000
ROUNDS = 720  # an hour
TICKS = np.arange(ROUNDS)
TIMES = START + 5000 * TICKS
RATE = 100  # messages a round


def columns(**given: Any) -> dict[str, Any]:
    """What a broker sampled: each column is a value or one for each round; `age`: milliseconds, -1 nothing is unread."""
    names = ("start", "head", "cursor", "above", "in_flight", "members", "failed", "unanswered", "age")
    default = {"start": 0, "head": RATE * TICKS, "cursor": RATE * TICKS, "above": 0, "in_flight": 0}
    filled = {**default, "members": 1, "failed": 0, "unanswered": 0, "age": -1, **given}
    return {name: np.broadcast_to(np.asarray(filled[name], np.int64), (ROUNDS,)) for name in names}


def behind(since: int, cursor: Any = None, **given: Any) -> dict[str, Any]:
    """The cursor stands from a round on, or goes on as given; ages follow from it."""
    head = RATE * TICKS
    cursor = np.minimum(head, RATE * since) if cursor is None else np.minimum(head, cursor)
    age = np.where(head > cursor, (TICKS - cursor // RATE) * 5000, -1)
    return columns(head=head, cursor=cursor, age=age, **given)


HISTORIES: dict[str, tuple[dict[str, Any], LogFacts | None]] = {
    "CAUGHT_UP": (columns(), None),
    "CAUGHT_UP after it was done": (behind(300, np.where(TICKS < 650, 300 * RATE, RATE * TICKS)), None),
    "STUCK without a member": (behind(400, members=(TICKS < 400)), None),
    "STUCK on what is not answered": (behind(400, in_flight=10), None),
    "STUCK on a poison message": (behind(400, in_flight=1, failed=np.maximum(0, TICKS - 400)), None),
    "STUCK on a consumer that lets deliveries expire": (
        behind(400, in_flight=1, failed=np.maximum(0, TICKS - 400), unanswered=np.maximum(0, TICKS - 400)),
        None,
    ),
    "STUCK behind one message": (behind(400, above=np.maximum(0, RATE * (TICKS - 400) - 1)), None),
    "FALLING_BEHIND": (behind(100, 9 * RATE * TICKS // 10), None),
    "FALLING_BEHIND from far behind": (
        columns(head=10**9 + RATE * TICKS, cursor=10**9 - 10**6 + 80 * TICKS, age=10**7),
        None,
    ),
    "CATCHING_UP": (
        columns(head=10**6 + RATE * TICKS, cursor=10**6 + 4 * RATE * TICKS - 3000 * RATE, age=600_000),
        None,
    ),
    "SLOW": (columns(head=10**9 + RATE * TICKS, cursor=10**9 - 10**7 + 101 * TICKS, age=10**7), None),
    "DATA_LOST": (
        behind(400, start=np.where(TICKS > 600, 450 * RATE, 0)),
        LogFacts(message_bytes=400.0, retention_age_s=600, drop_unread=True),
    ),
    "AT_RISK": (
        behind(400, 400 * RATE + 10 * TICKS),
        LogFacts(message_bytes=400.0, retention_age_s=1500, drop_unread=True),
    ),
    "UNKNOWN": (columns(head=0, cursor=0), None),
}


def states(found: dict[str, Any]) -> list[CursorState]:
    positions = ("start", "head", "cursor", "above", "in_flight", "members")
    return [
        CursorState(
            int(TIMES[i]),
            *(int(found[name][i]) for name in positions),
            failed=int(found["failed"][i] - found["unanswered"][i]),  # as `worst_failure` tells it
        )
        for i in range(ROUNDS)
    ]


def as_the_broker(found: dict[str, Any], log: LogFacts | None, ends: set[int]) -> dict[int, tuple[Any, ...]]:
    """Every round seen and judged as `Watch` does it: end of a window → (status, since, reason, lag, lost)."""
    rounds, track = Rounds(interval_s=5.0, window_s=OPTIONS.window_s), CursorTrack(1, START)
    settled: SettledStatus | None = None
    said: dict[int, tuple[Any, ...]] = {}
    for i, state in enumerate(states(found)):
        now = state.taken_at_ms
        track.see(state, keep=rounds.note(i, now))
        age = int(found["age"][i])
        standing = track.cursor_moved_ms or START
        counted = found["failed"] - found["unanswered"]
        failures = state.failed - int(counted[max(0, int(np.searchsorted(TIMES, standing)) - 1)])
        window = LagWindow(
            states=track.window(rounds, state),
            now_ms=now,
            interval_s=rounds.interval_s,
            window_s=rounds.window_s,
            oldest_unread_append_ms=None if age < 0 else now - age,
            cursor_moved_ms=standing,
            unread_since_ms=track.unread_since_ms,
            head_of_line_failures=failures,
            retention=None
            if log is None
            else Retention(age_s=log.retention_age_s, waits_for_cursors=not log.drop_unread),
        )
        judged = judge_lag(window, OPTIONS)
        if settled is None:
            settled = SettledStatus(judged, now)
        else:
            settled.observe(judged, now, OPTIONS)
        if now in ends:
            reason = settled.judgement.stuck_reason
            said[now] = (
                settled.status.value,
                settled.since_ms,
                None if reason is None else reason.value,
                state.lag_messages,
                state.lost_messages,
            )
    return said


def as_the_report(found: dict[str, Any], log: LogFacts | None, end_ms: int) -> tuple[Any, ...]:
    """The last row of a report until then."""
    kept = end_ms >= TIMES
    arrays = {name: np.zeros(int(kept.sum()), np.int64) for name in ARRAYS} | {
        "taken_at": TIMES[kept],
        "start_offset": found["start"][kept],
        "next_offset": found["head"][kept],
        "unread_offsets": (found["head"] - found["cursor"])[kept],
        "acked_above": found["above"][kept],
        "in_flight": found["in_flight"][kept],
        "members": found["members"][kept],
        "failed": found["failed"][kept],
        "unanswered": found["unanswered"][kept],
        "oldest_unread_age_ms": found["age"][kept],
    }
    history = History(arrays, GRID, log, last_round_ms=end_ms)
    row = list(rows_of_history(history, Span(since_ms=START, until_ms=end_ms + 1), GRID, OPTIONS))[-1]
    return row.status, row.since_ms, row.stuck_reason, row.lag_messages, row.lost_messages


@pytest.mark.parametrize("name", HISTORIES)
def test_broker_and_report_say_the_same_words_of_the_same_history(name: str) -> None:
    found, log = HISTORIES[name]
    ends = {int(time) for time in TIMES[47::24]}  # every two minutes from the fourth on
    broker = as_the_broker(found, log, ends)
    for end_ms in sorted(ends):
        theirs, ours = broker[end_ms], as_the_report(found, log, end_ms)
        assert (theirs[0], *theirs[2:]) == (ours[0], *ours[2:]), (name, (end_ms - START) / 60_000)
        assert theirs[1] == pytest.approx(ours[1], abs=GRID.window_ms), (name, (end_ms - START) / 60_000)
    words = name.split()[0]
    assert ("poison message" in name) == any(said[2] == "poison" for said in broker.values())
    assert words == "UNKNOWN" or words in {said[0] for said in broker.values()}, broker
