"""Charts of hours: a row a minute for an hour, one in 30 minutes for a day, and the hour before a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, tuples
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.observation.charted import (
    DAY_MS,
    MOST_ROWS,
    STEP_MS,
    Charted,
    Series,
)
from pydanube_broker.observation.tracks import LogTrack
from pydanube_broker.telemetry.charted import packed_rows, rises_of
from pydanube_core.interpolation import value_at

from tests.support.waiting import until

Opener = Callable[..., AbstractAsyncContextManager[Broker]]
START_MS = 1_700_000_000_000


@given(lists(tuples(integers(1, 400), integers(0, 5)), max_size=600))
def test_rows_stay_few_ascend_and_end_with_the_present(steps: list[tuple[int, int]]) -> None:
    series, now = Series(2), START_MS
    for minutes_10, value in steps:
        now += minutes_10 * STEP_MS // 10
        series.add(now, value)
        times = series.column(0)
        assert len(times) <= MOST_ROWS
        assert all(before < after for before, after in pairwise(times))
        assert (times[-1], series.column(1)[-1]) == (now, value)


def at(series: Series, time_ms: int) -> int | None:
    return value_at(series.column(0), series.column(1), time_ms)


def test_a_day_of_rises_has_an_hour_by_minutes_and_the_rest_by_half_hours() -> None:
    series = Series(2)
    for minute in range(2 * DAY_MS // STEP_MS):
        series.add(START_MS + minute * STEP_MS, minute * 10)
    now = 2 * DAY_MS // STEP_MS - 1
    for ago in range(23 * 60):
        assert at(series, START_MS + (now - ago) * STEP_MS) == (now - ago) * 10
    assert len(series.column(0)) <= MOST_ROWS


def test_a_burst_after_hours_of_rest_is_not_spread_over_them() -> None:
    series = Series(2)
    for minute in range(180):
        series.add(START_MS + minute * STEP_MS, 7 if minute < 179 else 1000)
    assert len(series.column(0)) == 3
    assert at(series, START_MS - 1) is None
    assert at(series, START_MS + 178 * STEP_MS) == 7
    assert at(series, START_MS + 179 * STEP_MS) == 1000


def test_a_clock_that_was_set_back_leaves_times_ascending() -> None:
    series = Series(2)
    for minute in (0, 1, 2, 3, 1):
        series.add(START_MS + minute * STEP_MS, minute * 10)
    assert series.rows[::2].tolist() == [START_MS, START_MS + STEP_MS]


def test_each_round_of_the_first_minutes_is_kept_and_then_one_a_minute() -> None:
    charted = Charted()
    due = [charted.due(START_MS + second * 1000) for second in range(0, 1800, 5)]
    assert sum(due[:120]) == 120
    assert sum(due[120:]) == 20


def test_series_that_grow_together_are_not_thinned_together(monkeypatch: pytest.MonkeyPatch) -> None:
    thinned: Counter[int] = Counter()
    thin = Series.thin

    def counted(self: Series, now_ms: int) -> None:
        thinned[now_ms] += 1
        thin(self, now_ms)

    monkeypatch.setattr(Series, "thin", counted)
    charted = Charted()
    tracks = [LogTrack("t", 0, 0, START_MS) for _ in range(480)]
    for minute in range(300):
        for topic_id, track in enumerate(tracks):
            track.last_offset = minute
            charted.note(START_MS + minute * STEP_MS, topic_id, track)
    assert thinned.total() >= 480
    assert max(thinned.values()) <= 480 // 8


def test_totals_go_on_over_starts_and_end_with_zero() -> None:
    rows = [(1, 1, 10), (2, 1, 15), (3, 2, 2), (4, 2, 9)]  # time, run, counter
    assert rises_of(rows) == [(1, -14), (2, -9), (3, -7), (4, 0)]


def test_one_row_a_minute_is_packed_and_two_that_repeat() -> None:
    first_ms = START_MS // STEP_MS * STEP_MS
    minutes = enumerate((1, 2, 2, 2, 2, 3))
    rows = [(first_ms + minute * STEP_MS + ms, value) for minute, value in minutes for ms in (0, 20_000)]
    packed = memoryview(packed_rows(rows)).cast("q").tolist()
    assert packed[1::2] == [1, 2, 2, 3]
    assert [(time - first_ms) // STEP_MS for time in packed[::2]] == [0, 1, 4, 5]


@pytest.mark.anyio
async def test_an_hour_of_a_chart_begins_before_a_restart(opened: Opener) -> None:
    often = {"diagnosis__sample_interval": "100ms", "telemetry__sample_interval": "100ms"}
    with anyio.fail_after(150):
        async with opened(**often) as broker, connect(broker.broker_url) as client:
            async with client.consumer("t", "s", create=True), client.producer("t") as producer:
                for _ in range(20):
                    await producer.send_many([b"x"] * 5)
                    await anyio.sleep(0.05)
            assert broker.telemetry is not None
            await broker.observation.look_once()
            await broker.telemetry.flush()
        async with opened(**often) as broker:
            sampler = broker.observation.sampler
            await until(lambda: (sampler.charted.broker.first_ms or sampler.started_ms) < sampler.started_ms)
            [traffic] = await broker.port.traffic_histories()
            assert traffic.times_ms[0] < sampler.started_ms
            assert traffic.messages_in[0] <= 0
            assert traffic.lag_messages[-1] == 100
            chart = await broker.port.topic_history("/default/t", None, most=2, since_s=3600)
            assert chart.times_ms[0] < sampler.started_ms
            assert chart.published[-1] == 100
            assert chart.cursors["s"].lag_messages[-1] == 100
            assert all(before <= after for before, after in pairwise(chart.times_ms))


@pytest.mark.anyio
async def test_the_last_point_has_the_unread_messages_of_a_round_that_is_not_kept(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        opened(diagnosis__sample_interval="60s") as broker,
        connect(broker.broker_url) as client,
        client.consumer("t", "s", create=True),
        client.producer("t") as producer,
    ):
        await broker.observation.look_once()
        monkeypatch.setattr(Charted, "due", lambda self, now_ms: False)
        await producer.send_many([b"x"] * 5)
        await anyio.sleep(0.01)
        await broker.observation.look_once()
        [traffic] = await broker.port.traffic_histories()
    assert (traffic.messages_in[-1], traffic.lag_messages[-1]) == (5, 5)


@pytest.mark.anyio
async def test_the_traffic_of_topics_without_a_subscription_begins_before_a_restart(opened: Opener) -> None:
    often = {"diagnosis__sample_interval": "100ms", "telemetry__sample_interval": "100ms"}
    with anyio.fail_after(150):
        async with opened(**often) as broker, connect(broker.broker_url) as client:
            async with client.producer("t") as producer:
                for _ in range(20):
                    await producer.send_many([b"x"] * 5)
                    await anyio.sleep(0.1)
            assert broker.telemetry is not None
            await broker.observation.look_once()
            await broker.telemetry.flush()
        async with opened(**often) as broker:
            sampler = broker.observation.sampler
            await until(lambda: (sampler.charted.broker.first_ms or sampler.started_ms) < sampler.started_ms)
            chart = await broker.port.topic_history("/default/t", None, most=2, since_s=3600)
            assert chart.times_ms[0] < sampler.started_ms
            assert chart.published[-1] == 100
