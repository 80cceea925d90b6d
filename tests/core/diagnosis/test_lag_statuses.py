"""The lag statuses, on the cases in which known tools answer wrongly (T1 to T12), and what must always hold."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis import (
    AgeQuality,
    DiagnosisOptions,
    LagJudgement,
    LagStatus,
    LagWindow,
    Retention,
    StuckReason,
    eta_of_partitions,
    judge_lag,
    theil_sen,
)
from pydanube_core.diagnosis.lag_status import Pace
from pydanube_core.diagnosis.skew import hot_parts

OPTIONS = DiagnosisOptions()


def window(
    heads: Sequence[int],
    cursors: Sequence[int],
    *,
    interval_s: float = 10.0,
    members: int = 1,
    in_flight: int = 0,
    start: int = 0,
    late_s: float = 0.0,
    acked_above: Sequence[int] | None = None,
    **more: Any,
) -> LagWindow:
    count = len(heads)
    times = [int(1000 * interval_s * (i + 1)) for i in range(count)]
    columns: dict[str, Any] = {
        "states": [
            CursorState(time, start, head, cursor, above, in_flight, members)
            for time, head, cursor, above in zip(
                times, heads, cursors, acked_above or [0] * count, strict=True
            )
        ],
        "now_ms": (times[-1] if times else 0) + int(late_s * 1000),
        "interval_s": interval_s,
        "window_s": interval_s * count if count else 300.0,
    }
    return LagWindow(**columns | more)


def judged(*arguments: Any, **options: Any) -> LagJudgement:
    return judge_lag(window(*arguments, **options), OPTIONS)


def falling(samples: int = 30, dip: int | None = None) -> tuple[list[int], list[int]]:
    """Produce 100 a second, consume 90, a sample each 10 s, 40 000 behind from the beginning."""
    heads = [50_000 + 1000 * i for i in range(samples)]
    cursors = [10_000 + 900 * i for i in range(samples)]
    if dip is not None:
        cursors[dip] += 1500  # lag fell for once
    return heads, cursors


def test_t1_steadily_behind_is_falling_behind() -> None:
    found = judged(*falling())
    assert found.status is LagStatus.FALLING_BEHIND
    assert found.velocity is not None
    assert (found.velocity.per_s, found.velocity.low) == (pytest.approx(10), pytest.approx(10))
    assert (found.produce_rate, found.consume_rate) == (pytest.approx(100), pytest.approx(90))
    assert (found.eta_s, found.reasons["eta_s"]) == (None, "not_gaining")


def test_rates_behind_a_status_begin_where_nothing_is_read() -> None:
    """A consumer that hung after a burst was said to read what it had read before."""
    heads, cursors = falling()
    found = judged(heads, [*cursors[:22], *cursors[21:22] * 8], oldest_unread_append_ms=250_000)
    assert found.pace == Pace(since_ms=220_000, produced=100, consumed=0, stands=True)
    seldom = [cursors[at - at % 6] for at in range(30)]
    assert (
        judged(heads, seldom, oldest_unread_append_ms=250_000).pace == judged(*falling()).pace
    )  # pauses of a minute
    idle = judged([0] * 20 + [50 * i for i in range(10)], [0] * 30, oldest_unread_append_ms=210_000)
    assert idle.pace is not None
    assert (idle.pace.since_ms, idle.pace.stands) == (220_000, True)  # since something waits


def test_rates_behind_a_status_do_not_contradict_it() -> None:
    """A window mostly of catching up, in which the consumer became slow lately, had more messages read than came."""
    heads = [50_000 + 100 * i for i in range(40)]
    cursors = [10_000 + 400 * min(i, 28) + 20 * max(0, i - 28) for i in range(40)]
    found = judged(heads, cursors)
    assert found.status is LagStatus.FALLING_BEHIND
    assert found.consume_rate > found.produce_rate  # type: ignore[operator]
    assert found.pace == Pace(since_ms=330_000, produced=10, consumed=2, stands=False)


def test_t2_one_dip_does_not_excuse() -> None:
    found = judged(*falling(dip=15))
    assert found.status is LagStatus.FALLING_BEHIND
    assert found.velocity is not None
    assert found.velocity.low == pytest.approx(10)


def test_t3_having_been_at_zero_once_does_not_excuse() -> None:
    heads, _ = falling()
    cursors = [heads[0] + 900 * i for i in range(len(heads))]
    found = judged(heads, cursors, oldest_unread_append_ms=300_000 - 30_000)
    assert found.status is LagStatus.FALLING_BEHIND
    assert found.velocity is not None
    assert found.velocity.low == pytest.approx(10)


def test_t4_dead_for_hours_is_stuck_since_then() -> None:
    """Ten commits an hour apart, then none for eight hours; looked at every five minutes."""
    per_hour, hours = 12, 18
    heads = [611 * i for i in range(hours * per_hour)]
    cursors = [heads[per_hour * (min(i // per_hour, 9))] for i in range(hours * per_hour)]
    found = judged(heads, cursors, interval_s=300.0, members=0)
    assert found.status is LagStatus.STUCK
    assert found.stuck_reason is StuckReason.NO_MEMBER
    # The last commit read everything there was; at the look after it there was mail that nobody has read since.
    assert found.since_ms == 300_000 * (9 * per_hour + 2)
    assert found.evidence["cursor_still_s"] > 8 * 3600


def test_t5_one_commit_is_too_little_to_judge() -> None:
    found = judged([10], [0], interval_s=2.0, window_s=300.0)
    assert found.status is LagStatus.UNKNOWN
    assert found.evidence["because"] == "too_few_samples"
    assert found.lag_messages == 10


def test_t6_gaining_too_slowly_is_slow_with_an_eta() -> None:
    heads = [20_000_000 + 1000 * i for i in range(30)]
    cursors = [10_000_000 + 1001 * i for i in range(30)]
    found = judged(heads, cursors)
    assert found.status is LagStatus.SLOW
    assert found.eta_s is not None
    assert found.eta_s / 3600 == pytest.approx(27_778, rel=0.01)


@pytest.mark.parametrize("unread", [0, 1_600_000, 1_000_000_000])
def test_growth_is_falling_behind_however_large_the_lag(unread: int) -> None:
    """Nothing is forgiven because the lag is large already: 17 a second for ever is 1.5 million a day."""
    heads = [2_000_000_000 + 1174 * i for i in range(30)]
    cursors = [heads[0] - unread + 1000 * i for i in range(30)]
    found = judged(heads, cursors)
    assert found.status is LagStatus.FALLING_BEHIND
    assert found.velocity is not None
    assert found.velocity.low == pytest.approx(17.4)
    assert "keeping_pace" not in found.evidence


def test_t7_mail_that_came_in_the_last_second_is_not_thirty_seconds_old() -> None:
    """An idle topic, looked at every 30 s; 3000 messages came in the last second."""
    heads, cursors = [5000] * 9 + [8000], [5000] * 10
    now = 300_000
    exact = judged(heads, cursors, interval_s=30.0, oldest_unread_append_ms=now - 900)
    assert (exact.status, exact.age.age_s) == (LagStatus.CAUGHT_UP, 0.9)
    assert exact.age.quality is AgeQuality.EXACT
    # Without the message's time the bounds are told, and that the age lies somewhere between.
    seen = judged(heads, cursors, interval_s=30.0)
    assert (seen.age.low_s, seen.age.high_s) == (0.0, 30.0)
    assert seen.age.quality is AgeQuality.INTERPOLATED


def test_t8_a_replay_from_the_beginning_has_no_age_in_the_window() -> None:
    heads = [100_000_000 + 100 * i for i in range(30)]
    found = judged(heads, [1000 * i for i in range(30)])
    assert (found.age.age_s, found.age.reason) == (None, "not_known")
    assert found.age.quality is AgeQuality.UNKNOWN


def test_t9_a_quiet_topic_has_no_age_beyond_what_was_seen() -> None:
    heads = [10_000] * 29 + [10_001]
    found = judged(heads, [9501] * 30, interval_s=60.0)
    assert (found.age.age_s, found.age.quality) == (None, AgeQuality.UNKNOWN)


def test_t10_one_hot_part_of_four_is_found_where_two_sigma_cannot() -> None:
    loads = [0.0, 1000.0, 0.0, 0.0]
    assert max(loads) < mean(loads) + 2 * stdev(loads), "the usual rule is silent"
    assert hot_parts(loads) == [1]
    assert hot_parts([10, 12, 11, 9]) == []
    assert hot_parts([10, 1000]) == [], "two parts have no majority to compare with"
    assert hot_parts([100, 95, 1050, 102, 98, 101]) == [2]


def test_t11_a_head_read_before_its_cursor_gives_no_negative_lag() -> None:
    found = judged([100] * 10, [103] * 10)
    assert (found.lag_messages, found.status) == (0, LagStatus.CAUGHT_UP)


def test_t12_a_missing_cursor_is_null_with_a_reason() -> None:
    """Without a cursor there is no state: none can be made up, as of one that stands at 0."""
    found = judged([], [])
    assert found.status is LagStatus.UNKNOWN
    assert (found.lag_messages, found.reasons["lag_messages"]) == (None, "no_sample")
    assert (found.lost_messages, found.eta_s, found.produce_rate) == (None, None, None)


def test_a_flat_sawtooth_is_no_alarm() -> None:
    heads = [1000 * i for i in range(30)]
    cursors = [head - 500 * (i % 2) for i, head in enumerate(heads)]
    slope = theil_sen([1000 * i for i in range(30)], [500 * (i % 2) for i in range(30)])
    assert slope is not None
    assert slope.low <= 0 <= slope.high
    found = judged(heads, cursors, oldest_unread_append_ms=300_000 - 15_000)
    assert found.status is LagStatus.CATCHING_UP
    assert found.evidence["keeping_pace"] is True


def test_what_retention_takes_unread_was_not_consumed() -> None:
    """Nobody reads, and what is older than a minute goes: 100 a second were told as consumed."""
    heads = [100_000 + 1000 * i for i in range(30)]
    states = [
        CursorState(10_000 * (i + 1), head - 6000, head, 50_000, 0, 0, 0) for i, head in enumerate(heads)
    ]
    found = judged(heads, heads, states=states)
    assert found.status is LagStatus.DATA_LOST
    assert (found.produce_rate, found.consume_rate) == (pytest.approx(100), 0)
    assert found.velocity is not None
    assert found.velocity.per_s == 0


def test_without_a_consumer_nothing_catches_up_and_nothing_keeps_pace() -> None:
    still: dict[str, Any] = {"oldest_unread_append_ms": 300_000 - 15_000}
    found = judged([500] * 30, [10] * 30, members=0, **still)
    assert (found.status, found.evidence["because"]) == (LagStatus.SLOW, "no_member")
    assert found.eta_s is None
    assert judged([500] * 30, [10] * 30, members=1, **still).status is LagStatus.CATCHING_UP


def test_trimmed_unread_messages_are_data_lost() -> None:
    found = judged([1000] * 10, [100] * 10, start=400)
    assert (found.status, found.lost_messages, found.lag_messages) == (LagStatus.DATA_LOST, 300, 600)


def test_retention_that_closes_in_is_a_risk() -> None:
    heads, cursors = falling()
    found = judged(
        heads,
        cursors,
        oldest_unread_append_ms=300_000 - 170_000,
        retention=Retention(age_s=180.0, waits_for_cursors=False),
    )
    assert (found.status, found.retention_headroom_s) == (LagStatus.AT_RISK, 10.0)
    waiting = judged(heads, cursors, retention=Retention(age_s=180.0))
    assert (waiting.retention_headroom_s, waiting.reasons["retention_headroom_s"]) == (
        None,
        "retention_waits_for_cursors",
    )


def test_retention_by_size_runs_out_at_the_rate_the_log_grows() -> None:
    found = judged(
        *falling(),
        retention=Retention(
            bytes=10_000_000, unread_bytes=4_000_000, bytes_per_s=1000.0, waits_for_cursors=False
        ),
    )
    assert found.retention_headroom_s == pytest.approx(6000)


def test_a_rewind_is_remarked_and_its_step_is_no_rate() -> None:
    heads = [10_000 + 10 * i for i in range(30)]
    cursors = [9_000 + 100 * i for i in range(10)] + [500 * i for i in range(20)]
    found = judged(heads, cursors)
    assert found.rewind is not None
    assert (found.rewind.from_offset, found.rewind.to_offset) == (9_900, 0)
    assert found.consume_rate == pytest.approx(50)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"members": 0}, StuckReason.NO_MEMBER),
        ({}, StuckReason.NOTHING_IN_FLIGHT),
        ({"in_flight": 50, "in_flight_limit": 50}, StuckReason.IN_FLIGHT_AT_LIMIT),
        ({"in_flight": 50, "in_flight_limit": 1000}, StuckReason.NO_ACK),
        ({"in_flight": 5, "head_of_line_failures": 3}, StuckReason.POISON),
        ({"in_flight": 5, "acked_above": [*range(40)]}, StuckReason.HEAD_OF_LINE),
    ],
)
def test_stuck_says_what_it_is_stuck_on(more: dict[str, Any], reason: StuckReason) -> None:
    found = judged([100] * 40, [10] * 40, **more)
    assert (found.status, found.stuck_reason) == (LagStatus.STUCK, reason)


def test_old_samples_and_half_a_window_of_silence_are_unknown() -> None:
    heads, cursors = falling()
    assert judged(heads, cursors, late_s=31).evidence["because"] == "samples_are_old"
    assert judged(heads[:10], cursors[:10], window_s=300).status is LagStatus.UNKNOWN


def test_the_latest_partition_decides_when_a_topic_is_caught_up() -> None:
    assert eta_of_partitions([10.0, 20.0, 60.0]) == (60.0, 3.0)
    assert eta_of_partitions([10.0, None]) == (None, None)
    assert eta_of_partitions([]) == (None, None)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=0, max_size=80),
    st.integers(0, 1000),
    st.integers(0, 500),
)
def test_nothing_is_ever_negative_or_unreasoned(steps: list[tuple[int, int]], begin: int, start: int) -> None:
    heads, cursors = [], []
    head, cursor = begin, 0
    for produced, consumed in steps:
        head += produced
        cursor = min(head, cursor + consumed)
        heads.append(head)
        cursors.append(cursor)
    found = judged(heads, cursors, start=min(start, begin))
    assert found.lag_messages is None or found.lag_messages >= 0
    assert found.eta_s is None or found.eta_s >= 0
    assert found.age.age_s is None or found.age.age_s >= 0
    for name in ("eta_s", "retention_headroom_s", "lag_messages", "produce_rate", "consume_rate"):
        assert (getattr(found, name) is None) == (name in found.reasons), name
    assert (found.age.age_s is None) == (found.age.reason is not None)


@given(st.lists(st.integers(-1000, 1000), min_size=5, max_size=60), st.integers(1, 50))
def test_the_slope_lies_in_its_interval_and_scales_with_its_values(values: list[int], factor: int) -> None:
    times = [1000 * i for i in range(len(values))]
    slope, scaled = theil_sen(times, values), theil_sen(times, [factor * v for v in values])
    assert slope is not None
    assert scaled is not None
    assert slope.low <= slope.per_s <= slope.high
    assert scaled.per_s == pytest.approx(factor * slope.per_s)


def after_restart(before: LagWindow, *, unread: int = 10_000, moved: int = 0, **more: Any) -> LagWindow:
    """Two samples of a run that began a minute after the one before had ended."""
    last = before.states[-1]
    cursor = last.next_unacked + moved
    times = [last.taken_at_ms + 60_000, last.taken_at_ms + 70_000]
    states = [CursorState(time, 0, cursor + unread, cursor, 0, 0, 1) for time in times]
    return LagWindow(
        states=states,
        now_ms=times[-1],
        interval_s=10.0,
        window_s=300.0,
        first_ms=times[0],
        before=lambda: before,
        **more,
    )


def test_the_run_before_shows_the_pace_until_this_one_does() -> None:
    before = window(*falling())
    found = judge_lag(after_restart(before), OPTIONS)
    assert found.status is LagStatus.FALLING_BEHIND
    assert found.measured_until_ms == before.now_ms
    assert found.settles_at_ms is not None, "provisional"
    assert (found.produce_rate, found.consume_rate) == (pytest.approx(100), pytest.approx(90))
    assert found.lag_messages == 10_000
    assert "status" not in found.reasons
    assert judge_lag(after_restart(before, unread=0), OPTIONS).status is LagStatus.CAUGHT_UP


def test_the_run_before_shows_nothing_after_a_seek_or_of_a_cursor_that_moved_on() -> None:
    before = window(*falling())
    assert judge_lag(after_restart(before, moved=-5), OPTIONS).status is LagStatus.UNKNOWN
    sought = after_restart(before, moved_ms=before.now_ms + 1000)
    assert judge_lag(sought, OPTIONS).status is LagStatus.UNKNOWN
    stuck = window([100 * i for i in range(1, 40)], [0] * 39)
    assert judge_lag(stuck, OPTIONS).status is LagStatus.STUCK
    assert judge_lag(after_restart(stuck), OPTIONS).status is LagStatus.STUCK
    assert judge_lag(after_restart(stuck, moved=1), OPTIONS).status is LagStatus.UNKNOWN
