"""A status that is bad has a finding: over random states, whatever the consumers did."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis import DiagnosisOptions, LagStatus, LagWindow, Retention, judge_lag
from pydanube_core.diagnosis.findings import Severity
from pydanube_core.diagnosis.rules import check_view
from pydanube_core.diagnosis.views import Count, Departure, HeadOfLine

from tests.core.diagnosis.test_rules import NOW, consumer, view

OPTIONS = DiagnosisOptions(sample_interval_s=5.0, window_s=60.0, stuck_after_s=30.0)
BAD = (LagStatus.STUCK, LagStatus.AT_RISK, LagStatus.DATA_LOST)
ONE_OF_MANY = re.compile(
    r"(?<![\d.,])1 (messages|consumers|producers|topics|times|publishes|deliveries|others)\b"
)
STEPS = st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=12, max_size=13)


@settings(max_examples=400)
@given(
    steps=STEPS,
    consumers=st.integers(0, 2),
    answered_s=st.integers(0, 400),
    abrupt=st.booleans(),
    left_s=st.none() | st.integers(0, 400),
    failures=st.integers(0, 4),
    policy=st.sampled_from(["block", "dead_letter", "drop"]),
    retention_s=st.none() | st.integers(1, 100),
    start=st.integers(0, 6),
    settled=st.none() | st.sampled_from(BAD),
)
def test_never_healthy_while_stuck_or_at_risk(
    steps: list[tuple[int, int, int, int]], consumers: int, answered_s: int, abrupt: bool, left_s: int | None,
    failures: int, policy: str, retention_s: int | None, start: int, settled: LagStatus | None,
) -> None:  # fmt: skip
    states, head, floor = [], 0, 0
    for at, (produced, acked, above, held) in enumerate(steps):
        head += produced
        floor = min(head, floor + acked)
        room = max(0, head - floor - 1)
        above = min(above, room)
        taken_ms = NOW - 5000 * (len(steps) - at - 1)
        states.append(
            CursorState(taken_ms, min(start, head), head, floor, above, min(held, room - above), consumers)
        )
    last = states[-1]
    lag = judge_lag(
        LagWindow(
            states=states,
            now_ms=NOW,
            interval_s=5.0,
            window_s=60.0,
            oldest_unread_append_ms=NOW - 40_000 if last.lag_messages else None,
            retention=None if retention_s is None else Retention(age_s=retention_s, waits_for_cursors=False),
        ),
        OPTIONS,
    )
    if settled is not None and not last.lag_messages:
        settled = None  # that everything is read counts at once
    worst = HeadOfLine(offset=floor, deliveries=failures, failures=failures, blocked=False, reason="nack")
    left = None if left_s is None else Departure(
        at_ms=NOW - left_s * 1000, name="c", abrupt=abrupt, in_flight=0, unread=0
    )  # fmt: skip
    one = consumer(in_flight=last.in_flight, oldest_in_flight_s=20.0, answered_at_ms=NOW - answered_s * 1000)
    facts = replace(
        view(),
        lag=lag,
        state=last,
        settled=settled,
        consumers=tuple(replace(one, consumer_id=str(i)) for i in range(consumers)),
        departure=None if consumers else left,
        head_of_line=worst if failures else None,
        poison_policy=policy,
        acknowledged=Count(
            total=floor, in_window=floor - states[0].next_unacked, last_ms=NOW - answered_s * 1000
        ),
    )
    findings = check_view(facts, OPTIONS)
    said = [
        each for found in findings for each in (found.summary, *(each.because for each in found.ruled_out))
    ]
    assert not [each for each in said if ONE_OF_MANY.search(each)]
    worst_found = max((found.severity for found in findings), default=Severity.INFO)
    if facts.status in BAD:
        assert worst_found >= Severity.WARNING, (facts.status, facts.lag.evidence)
