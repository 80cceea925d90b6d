"""The lag report of one subscription, without Spark: answers worked out by hand, the awkward ones included."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.telemetry.tables import HOLD_ROUNDS
from pydanube_spark.reports.lag import known_logs
from pydanube_spark.reports.lag.history import ARRAYS, Grid, History, LogFacts
from pydanube_spark.reports.lag.rows import LagRow, rows_of_history
from pydanube_spark.reports.lag.summary import lag_summary, shown_row
from pydanube_spark.reports.run import Span

HOUR = 3_600_000
START = 472_222 * HOUR
GRID = Grid.of(5000)


def history(count: int = 720, *, log: LogFacts | None = None, **columns: Any) -> History:
    """Samples 5 s apart; a column is a value or one for each sample."""
    arrays = {name: np.zeros(count, np.int64) for name in ARRAYS}
    arrays["taken_at"] = START + 5000 * np.arange(count)
    arrays["members"] += 1
    arrays["incarnation"] += 1
    arrays["oldest_unread_age_ms"] -= 1
    for name, values in columns.items():
        arrays[name] = np.broadcast_to(np.asarray(values, np.int64), (count,)).copy()
    return History(arrays, GRID, log)


def picked(found: History, kept: Any, **more: Any) -> History:
    """Some of its samples."""
    return History({name: found.arrays[name][kept] for name in ARRAYS}, GRID, found.log, **more)


def rows(found: History, hours: int = 1, **options: Any) -> list[LagRow]:
    span = Span(since_ms=START, until_ms=START + hours * HOUR)
    return list(rows_of_history(found, span, GRID, DiagnosisOptions(**options)))


def whole(found: History, hours: int = 1) -> LagRow:
    return rows(found, hours)[-1]


TICKS = np.arange(720)


def test_t1_falling_behind_at_ten_a_second() -> None:
    row = whole(history(next_offset=500 * TICKS, unread_offsets=50 * TICKS, oldest_unread_age_ms=500 * TICKS))
    assert row.produce_rate == pytest.approx(100.0, rel=0.02)
    assert row.consume_rate == pytest.approx(90.0, rel=0.02)
    minutes = json.loads(row.minutes)
    assert minutes["FALLING_BEHIND"] >= 45
    assert sum(minutes.values()) == pytest.approx(60.0)


def test_a_window_has_its_points_and_none_before_them() -> None:
    states = history().window(START + 5000 * 700).states
    assert (len(states), GRID.points) == (16, 16)
    assert states[0].taken_at_ms >= START + 5000 * 700 - GRID.window_ms


def test_a_step_is_looked_for_in_the_last_eight_samples_of_a_window() -> None:
    end_ms = START + 5000 * 700
    recent = history().window(end_ms).recent
    assert recent is not None
    assert [state.taken_at_ms - end_ms for state in recent()] == [*range(-35_000, 1, 5000)]


def test_t4_a_consumer_that_died_is_stuck_since_its_death_and_has_no_member() -> None:
    died = 360
    unread = np.maximum(0, TICKS - died) * 500
    row = whole(
        history(
            next_offset=500 * TICKS,
            unread_offsets=unread,
            members=(died > TICKS),
            oldest_unread_age_ms=np.where(unread > 0, (TICKS - died) * 5000, -1),
        )
    )
    assert (row.status, row.stuck_reason) == ("STUCK", "no_member")
    assert row.since_ms is not None
    assert abs(row.since_ms - (START + died * 5000)) <= 10_000
    assert row.oldest_unread_age_s == pytest.approx(1795.0)  # at the last sample


@pytest.mark.parametrize("unread", [0, 3])
def test_what_failed_and_was_given_up_is_not_what_the_cursor_stands_at_now(unread: int) -> None:
    """Two messages failed thrice each and are dead letters, all within a round; then the consumer left."""
    done = TICKS >= 100
    waiting = np.where(TICKS < 100, 50, np.where(TICKS < 200, unread, 5))
    row = whole(
        history(
            next_offset=1000 + np.maximum(waiting - 50 * ~done, 0),
            unread_offsets=waiting,
            failed=6 * done,
            dead_lettered=2 * done,
            members=TICKS < 100,
        )
    )
    assert (row.status, row.stuck_reason) == ("STUCK", "no_member")


def test_t5_a_subscription_of_the_last_seconds_is_unknown_and_not_stuck() -> None:
    late = history(2, taken_at=[START + HOUR - 10_000, START + HOUR - 5000])
    assert whole(late).status == "UNKNOWN"


def test_t7_an_idle_topic_is_caught_up_with_no_age() -> None:
    row = whole(history(next_offset=3000))
    assert (row.status, row.lag_messages, row.oldest_unread_age_s) == ("CAUGHT_UP", 0, None)
    assert json.loads(row.reasons)["oldest_unread_age_s"] == "caught_up"
    assert (row.p50_age_s, row.max_age_s) == (0.0, 0.0)


def test_t8_a_replay_from_the_start_has_an_age_that_is_not_known() -> None:
    row = whole(history(next_offset=100_000_000, unread_offsets=100_000_000 - 50 * TICKS))
    assert (row.age_quality, row.oldest_unread_age_s) == ("unknown", None)
    assert row.p50_age_s is None
    assert json.loads(row.reasons)["p50_age_s"] == "no_age_known"


def test_the_cold_tier_says_what_samples_do_not_know() -> None:
    found = history(next_offset=100_000_000, unread_offsets=100_000_000 - 50 * TICKS)
    span = Span(since_ms=START, until_ms=START + HOUR)
    row = list(rows_of_history(found, span, GRID, DiagnosisOptions(), lambda offset: START - 60_000))[-1]
    assert (row.age_quality, row.oldest_unread_age_s) == ("exact", 3655.0)  # at the last sample


def test_the_age_after_a_loss_is_that_of_the_first_message_that_is_left() -> None:
    found = history(next_offset=1000, unread_offsets=1000, start_offset=400, oldest_unread_age_ms=-1)
    span = Span(since_ms=START, until_ms=START + HOUR)
    times = {400: START - 60_000}
    *_, row = rows_of_history(found, span, GRID, DiagnosisOptions(), times.get)
    assert (row.lost_messages, row.age_quality, row.oldest_unread_age_s) == (400, "exact", 3655.0)


def test_t11_lag_is_never_below_zero() -> None:
    assert whole(history(next_offset=10, unread_offsets=-5)).lag_messages == 0


def test_trimmed_messages_are_lost_and_counted() -> None:
    row = whole(history(start_offset=100, next_offset=1000, unread_offsets=950))
    assert (row.status, row.lost_messages, row.lag_messages) == ("DATA_LOST", 50, 900)


def test_a_rewind_is_a_remark_and_no_fault() -> None:
    unread = np.where(TICKS < 700, 0, 5000 - 200 * (TICKS - 700))
    row = whole(history(next_offset=100_000 + 500 * TICKS, unread_offsets=unread))
    assert row.rewound


def test_quiet_subscriptions_are_told_once_a_minute_and_are_not_short_of_samples() -> None:
    found = history(next_offset=3000)
    sparse = picked(found, TICKS % 12 == 0)
    row = whole(sparse)
    assert (row.status, row.samples) == ("CAUGHT_UP", row.expected_samples)


def test_time_before_the_first_sample_and_after_the_last_is_unknown() -> None:
    """A broker that is five minutes old has five minutes of status, and not those of a day."""
    young = picked(history(next_offset=3000), TICKS >= 660)
    made = rows(young)
    minutes = json.loads(made[-1].minutes)
    assert minutes == pytest.approx({"CAUGHT_UP": 4.917, "UNKNOWN": 55.083}, abs=0.002)
    assert (made[-1].status, made[-1].as_of_ms) == ("CAUGHT_UP", START + 719 * 5000)
    told = rows(picked(history(next_offset=3000), TICKS >= 660, last_round_ms=START + HOUR - 1))[-1]
    assert json.loads(told.minutes)["UNKNOWN"] == pytest.approx(55.0, abs=0.002)


def test_an_age_is_that_of_the_newest_sample_and_grows_only_while_the_broker_tells_of_itself() -> None:
    """Read up to the last message: 0.2 s at the sample, however late the report is made."""
    busy = {"next_offset": 500 * TICKS, "unread_offsets": 3, "oldest_unread_age_ms": 200}
    until = Span(since_ms=START, until_ms=START + HOUR + 40_000)
    row = list(rows_of_history(history(**busy), until, GRID, DiagnosisOptions()))[-1]
    assert (row.status, row.oldest_unread_age_s, row.as_of_ms) == ("CAUGHT_UP", 0.2, START + 719 * 5000)
    assert row.max_age_s == 0.2
    held = picked(history(**busy), TICKS % 12 == 0, last_round_ms=START + HOUR)
    row = list(rows_of_history(held, until, GRID, DiagnosisOptions()))[-1]
    assert row.as_of_ms == START + HOUR
    assert row.oldest_unread_age_s == 60.2, "told at 59:00, and not told otherwise in the rounds until 60:00"


def test_a_loss_is_said_in_the_window_in_which_it_is_seen_and_what_is_read_is_caught_up_at_once() -> None:
    """`start` passes the cursor in the last window: no debouncing of a fact, and no other status beside it."""
    lost = history(
        start_offset=np.where(TICKS >= 700, 400, 0),
        next_offset=1000,
        unread_offsets=900,
        oldest_unread_age_ms=1_000_000 + 5000 * TICKS,
    )
    row = whole(lost)
    assert (row.status, row.lost_messages, row.newly_lost_messages) == ("DATA_LOST", 300, 300)
    assert json.loads(row.evidence)["lost_messages"] == 300
    assert (row.stuck_reason, row.since_ms) == (None, pytest.approx(START + 700 * 5000, abs=GRID.step_ms))
    done = history(
        start_offset=np.where(TICKS >= 300, 400, 0),
        next_offset=1000,
        unread_offsets=np.where(TICKS >= 690, 0, 900),
        oldest_unread_age_ms=np.where(TICKS >= 690, -1, 1_000_000 + 5000 * TICKS),
    )
    row = whole(done)
    assert (row.status, row.lost_messages, row.newly_lost_messages) == ("CAUGHT_UP", 0, 300)


def test_growing_behind_for_ever_is_falling_behind_however_large_it_is() -> None:
    """1.6 million unread and 17 more a second: no pace is kept."""
    row = whole(
        history(next_offset=2_000_000 + 500 * TICKS, unread_offsets=1_600_000 + 87 * TICKS, in_flight=10)
    )
    assert row.status == "FALLING_BEHIND"
    assert row.velocity == pytest.approx(17.4, rel=0.02)
    assert json.loads(row.minutes)["FALLING_BEHIND"] == pytest.approx(59.9, abs=0.1)


def test_a_gap_in_the_telemetry_is_unknown_time_and_not_good_time() -> None:
    found = history(next_offset=3000)
    kept = (TICKS < 240) | (TICKS >= 480)
    row = whole(picked(found, kept))
    assert json.loads(row.minutes)["UNKNOWN"] >= 10


def test_a_counter_that_began_again_is_a_restart() -> None:
    counter = np.where(TICKS < 300, TICKS, TICKS - 300)
    restarted = np.where(TICKS < 300, 1, 2)
    row = whole(history(next_offset=3000, redelivered=counter, incarnation=restarted))
    assert row.rises["redelivered"] == 299 + 0 + 419
    assert whole(history(next_offset=3000, redelivered=counter)).rises["redelivered"] == 299 + 419, (
        "a fall is no restart"
    )


def test_bytes_are_by_the_mean_message_and_headroom_by_the_nearer_limit() -> None:
    behind = {"next_offset": 10_000 + 500 * TICKS, "unread_offsets": 6000, "oldest_unread_age_ms": 60_000}
    log = LogFacts(message_bytes=400.0, retention_age_s=3600, retention_bytes=3_600_000, drop_unread=True)
    row = whole(history(log=log, **behind))
    assert row.lag_bytes == 2_400_000
    assert row.retention_headroom_s == pytest.approx(1_200_000 / (100 * 400), rel=0.01)
    by_age = whole(history(log=LogFacts(retention_age_s=3600, drop_unread=True), **behind))
    assert by_age.retention_headroom_s == pytest.approx(3540)  # at the last sample
    assert (by_age.lag_bytes, json.loads(by_age.reasons)["lag_bytes"]) == (None, "message_size_not_known")
    waiting = whole(history(log=LogFacts(retention_age_s=3600), **behind))
    assert json.loads(waiting.reasons)["retention_headroom_s"] == "retention_waits_for_cursors"
    assert whole(history(next_offset=10)).lag_bytes == 0


UNKNOWN_FIGURES = (
    "consumers", "next_offset", "next_unacked", "lag_messages", "lag_bytes", "oldest_unread_age_s", "in_flight",
    "redelivered", "dead_lettered", "dropped", "produce_rate", "consume_rate", "velocity", "eta_s",
    "retention_headroom_s", "lost_messages", "newly_lost_messages", "p50_age_s", "p95_age_s", "max_age_s",
)  # fmt: skip


def test_where_nothing_is_known_every_figure_is_null_with_a_reason_and_none_is_zero() -> None:
    """The broker was silent for the whole second hour, and longer than a sample is held."""
    found = history(720, next_offset=500 * TICKS, unread_offsets=50 * TICKS, oldest_unread_age_ms=1000)
    *_, silent, _ = rows(found, hours=3)
    figures = silent.columns()
    assert {name: figures[name] for name in UNKNOWN_FIGURES} == dict.fromkeys(UNKNOWN_FIGURES)
    reasons = json.loads(silent.reasons)
    assert reasons["lag_bytes"] == reasons["next_offset"] == "no_sample"
    assert reasons["p50_age_s"] == "no_age_known"
    assert (silent.status, silent.samples) == ("UNKNOWN", 0)
    assert json.loads(silent.minutes) == {"UNKNOWN": 60.0}


def test_bytes_of_unread_messages_of_unknown_size_are_null_and_those_of_none_are_zero() -> None:
    behind = whole(history(next_offset=100, unread_offsets=7, oldest_unread_age_ms=1000))
    assert (behind.lag_messages, behind.lag_bytes) == (7, None)
    read = whole(history(next_offset=100))
    assert (read.lag_messages, read.lag_bytes) == (0, 0)


def summed(*lags: tuple[int | None, float | None]) -> dict[str, Any]:
    """The summary of a topic's partitions: unread messages and eta of each."""
    partitions = []
    for number, (lag, eta_s) in enumerate(lags):
        row = asdict(whole(history(next_offset=10)))
        row |= {"topic": "/default/t", "log": f"/default/t-part-{number}", "subscription": "s"}
        row |= {"partition": number}
        partitions.append(row | {"lag_messages": lag, "eta_s": eta_s, "lost_messages": lag})
    return lag_summary(partitions, [])


def test_deleted_subscriptions_are_counted_apart() -> None:
    subject = {"topic": "/default/t", "log": "/default/t", "partition": None}
    there, gone = (asdict(whole(history(next_offset=10))) | subject | {"subscription": name} for name in "ab")
    found = lag_summary([there, gone | {"gone_ms": START}], [])
    assert (found["subscriptions"], found["gone"]) == (1, 1)


def test_the_course_has_the_unread_messages_at_the_end_of_each_stretch() -> None:
    row = whole(history(next_offset=500 * TICKS, unread_offsets=50 * TICKS, oldest_unread_age_ms=500 * TICKS))
    unread = [count for _, _, count, _ in json.loads(str(row.course))]
    assert unread == sorted(unread)
    assert len(set(unread)) > 10
    assert unread[-1] == row.lag_messages


def test_a_sum_counts_what_is_unknown_beside_it_and_no_partition_without_a_number_is_done() -> None:
    found = summed((5, 10.0), (None, None), (0, None))
    assert (found["lag_messages"], found["lag_unknown"], found["lost_messages"]) == (5, 1, 5)
    (topic,) = found["partitioned"]
    assert (topic["lag_messages"], topic["lag_unknown"], topic["eta_s"]) == (5, 1, None)
    (topic,) = summed((5, 10.0), (0, None))["partitioned"]
    assert (topic["lag_unknown"], topic["eta_s"]) == (0, 10.0)


def facts_of(
    monkeypatch: pytest.MonkeyPatch, files: dict[int, list[dict[str, Any]]], until_ms: int = START + HOUR
) -> dict[int, LogFacts]:
    """The facts from telemetry files, by the end of each, of which rows give what is not null."""
    untold = {"topic": "/d/t", "messages_in": 0, "bytes_in": 0, "drop_unread": None}
    untold |= {"retention_age_s": None, "retention_bytes": None}

    def read(_store: Any, key: int, *_: Any, **__: Any) -> Any:
        told = [
            {**untold, **row, "taken_at": datetime.fromtimestamp(row["at_ms"] / 1000, UTC)}
            for row in files[key]
        ]
        return SimpleNamespace(to_pylist=lambda: told)

    listed = [(end_ms, SimpleNamespace(end_ms=end_ms), 0) for end_ms in files]
    monkeypatch.setattr(known_logs, "open_for_reading", lambda options: None)
    monkeypatch.setattr(known_logs, "stored_files", lambda *_, **__: listed)
    monkeypatch.setattr(known_logs, "read_samples", read)
    return known_logs.log_facts(cast(Any, None), "c", Span(since_ms=START, until_ms=until_ms), None)


def test_the_size_of_messages_of_a_log_that_took_none_in_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        {"at_ms": START, "topic_id": 1},
        {"at_ms": START, "topic_id": 2, "messages_in": 4, "bytes_in": 10, "retention_age_s": 60},
    ]
    found = facts_of(monkeypatch, {START + HOUR: told})
    assert found == {1: LogFacts(), 2: LogFacts(message_bytes=2.5, retention_age_s=60)}


def test_facts_of_a_log_are_the_newest_of_the_last_hour_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(at_ms: int, topic_id: int = 1) -> dict[str, Any]:
        return {"at_ms": at_ms, "topic_id": topic_id, "retention_age_s": at_ms - START}

    until_ms = START + 3 * HOUR
    files = {
        START + HOUR: [told(START + HOUR - 1, 2)],  # more than two hours before the end: not even read
        until_ms - HOUR: [told(until_ms - HOUR - 1000, 3), told(until_ms - HOUR + 1000, 4)],
        until_ms: [told(until_ms - 1), told(until_ms - 2), told(until_ms)],
    }
    found = facts_of(monkeypatch, files, until_ms)
    assert {topic: facts.retention_age_s for topic, facts in found.items()} == {
        1: 3 * HOUR - 1,
        4: 2 * HOUR + 1000,
    }


def test_a_window_is_the_brokers_with_at_least_ten_samples_or_24_that_are_close() -> None:
    by_interval = {interval_ms: Grid.of(interval_ms) for interval_ms in (10, 1000, 5000, 60_000)}
    assert [grid.window_ms for grid in by_interval.values()] == [1000, 24_000, 300_000, 600_000]
    assert [grid.step_ms for grid in by_interval.values()] == [62, 1500, 18_750, 60_000]
    thinned = Grid.of(5000, thinned_ms=120_000)
    assert (thinned.interval_ms, thinned.window_ms, thinned.step_ms) == (5000, 1_200_000, 120_000)
    assert (by_interval[5000].hold_ms, thinned.hold_ms) == (
        HOLD_ROUNDS * 5000,
        150_000,
    )


def test_a_sample_is_certain_until_the_round_before_the_next_unless_a_round_is_missing_between_them() -> None:
    busy = history(next_offset=10 + 500 * TICKS, unread_offsets=3, oldest_unread_age_ms=200)
    moments = np.array([START, START + 60_000, START + 76_000])
    assert picked(busy, TICKS % HOLD_ROUNDS == 0).ages_s(moments).tolist() == [0.2, 60.2, 1.2]
    assert picked(busy, TICKS % (HOLD_ROUNDS + 1) == 0).ages_s(moments).tolist() == [0.2, 0.2]


def test_each_hour_has_its_row() -> None:
    found = rows(history(1440, next_offset=np.arange(1440)), hours=2)
    assert [row.hour_ms for row in found] == [START, START + HOUR, None]


def test_a_subscription_that_was_deleted_ends_with_its_last_sample_and_is_in_no_trouble() -> None:
    """Its broker went on: that is no lack of samples, which would be UNKNOWN."""
    behind = history(360, next_offset=500 * np.arange(360), unread_offsets=500 * np.arange(360), members=0)
    span = Span(since_ms=START, until_ms=START + 3 * HOUR)
    made = list(rows_of_history(behind, span, GRID, DiagnosisOptions(), gone=True))
    assert [row.hour_ms for row in made] == [START, None]
    assert {row.gone_ms for row in made} == {START + 359 * 5000}
    assert made[-1].status == "STUCK"
    assert "UNKNOWN" not in json.loads(made[-1].minutes)
    drawn = [stretch for stretch, *_ in json.loads(str(made[-1].course))]
    assert drawn[-1] == 7, "half an hour of three: a picture of all subscriptions has it at its place"
    subject = {
        "topic": "/default/t",
        "log": "/default/t",
        "partition": None,
        "subscription": "s",
        "type": None,
    }
    summary = lag_summary([{**subject, **asdict(row)} for row in made], [])
    assert (summary["subscriptions"], summary["gone"], summary["statuses"], summary["worst"]) == (
        0,
        1,
        {},
        [],
    )
    unknown = list(rows_of_history(behind, span, GRID, DiagnosisOptions()))[-1]
    assert (unknown.status, unknown.gone_ms) == ("UNKNOWN", None)
    before = Span(since_ms=START + HOUR, until_ms=START + 2 * HOUR)
    assert list(rows_of_history(behind, before, GRID, DiagnosisOptions(), gone=True)) == []


ANY_COUNT = st.one_of(st.integers(0, 1000), st.integers(0, 1 << 62))


@st.composite
def any_history(draw: st.DrawFn) -> History:
    """Columns that have nothing to do with each other, clocks that leap: whatever a telemetry file may hold."""
    count = draw(st.integers(1, 40))
    leaps = st.sampled_from([0, 1, 5000, 5000, 60_000, 3_600_000])
    columns = {"taken_at": START + np.cumsum(draw(st.lists(leaps, min_size=count, max_size=count)))}
    for name in ARRAYS[1:]:
        values = draw(
            st.one_of(
                ANY_COUNT.map(lambda v: [v] * count), st.lists(ANY_COUNT, min_size=count, max_size=count)
            )
        )
        columns[name] = np.array(values, np.int64)
    known = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    columns["oldest_unread_age_ms"] = np.where(known, columns["oldest_unread_age_ms"], -1)
    size = draw(st.one_of(st.none(), st.floats(0, 1e18)))
    limits = st.one_of(st.none(), ANY_COUNT)
    return History(
        columns,
        GRID,
        LogFacts(message_bytes=size, retention_age_s=draw(limits), retention_bytes=draw(limits)),
    )


@settings(max_examples=25, deadline=None)
@given(any_history(), st.integers(60_000, 2 * HOUR), st.booleans())
def test_whatever_was_sampled_rows_are_finite_and_never_negative(
    found: History, length_ms: int, gone: bool
) -> None:
    span = Span(since_ms=START, until_ms=START + length_ms)
    made = list(rows_of_history(found, span, GRID, DiagnosisOptions(), gone=gone))
    subject = {
        "topic": "/default/t",
        "log": "/default/t",
        "partition": None,
        "subscription": "s",
        "type": None,
    }
    shown = [{**subject, **asdict(row)} for row in made]
    for row in made:
        json.dumps(shown_row(asdict(row)), allow_nan=False)
        for value in (row.lag_messages, row.lost_messages, row.oldest_unread_age_s, row.max_age_s, row.eta_s):
            assert value is None or value >= 0
        assert row.lag_bytes is None or 0 <= row.lag_bytes < 1 << 63
        assert row.samples <= row.expected_samples
    if shown:
        json.dumps(lag_summary(shown, []), allow_nan=False)
