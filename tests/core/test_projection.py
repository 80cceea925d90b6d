"""Outlooks of queues and disks, held against a simulation that moves them second by second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.projection import Pace, full_in_days, kept_bytes, outlook

RATES = st.floats(0.5, 500)


@given(
    produced=RATES,
    consumed=RATES,
    lag=st.integers(0, 20_000),
    load=st.floats(0.1, 5),
    workers=st.floats(0.1, 5),
    most=st.none() | st.floats(1, 300),
)
def test_a_queue_drains_when_the_simulation_says(
    produced: float, consumed: float, lag: int, load: float, workers: float, most: float | None
) -> None:
    found = outlook(
        Pace(produced=produced, consumed=consumed, lag_messages=lag), load=load, workers=workers, most=most
    )
    capacity = consumed * workers if most is None else min(consumed * workers, most)
    if not lag and produced * load > capacity:
        assert (found.drains_in_s, found.grows_per_s) == (None, pytest.approx(produced * load - capacity))
        return
    waiting, seconds = float(lag), 0
    while waiting > 0 and seconds < 2_000:  # a server that takes what is there, up to its capacity
        waiting = max(0.0, waiting + produced * load - capacity)
        seconds += 1
    if waiting <= 0:
        assert found.drains_in_s is not None
        assert seconds - 1 <= found.drains_in_s + 1e-6 <= seconds + 1
    else:
        assert found.drains_in_s is None or found.drains_in_s > 1_998
        if found.drains_in_s is None:
            assert found.grows_per_s >= 0
    if lag and found.drains_in_s is None:
        after = lag + 100 * (produced * load - capacity)
        assert lag + 100 * found.grows_per_s == pytest.approx(after)


def test_consumers_that_keep_up_acknowledge_no_more_than_what_comes() -> None:
    pace = Pace(produced=10, consumed=10, lag_messages=0)
    assert pace.keeps_up
    found = outlook(pace, workers=5)
    assert (found.consumed, found.grows_per_s, found.drains_in_s) == (10, 0, 0)
    assert not Pace(produced=10, consumed=10, lag_messages=500).keeps_up
    assert not Pace(produced=10, consumed=5, lag_messages=0).keeps_up


@given(
    rate=st.integers(0, 1_000),
    age_s=st.none() | st.integers(1, 500),
    limit=st.none() | st.integers(1, 300_000),
    stored=st.integers(0, 100_000),
)
def test_a_log_settles_where_the_simulation_settles(
    rate: int, age_s: int | None, limit: int | None, stored: int
) -> None:
    found = kept_bytes(stored_bytes=stored, bytes_per_s=rate, age_s=age_s, limit_bytes=limit)
    seconds = 2_000
    log = [stored] + [0] * seconds  # bytes by the second in which they came
    for now in range(1, seconds + 1):
        log[now] = rate
        if age_s is not None:
            for old in range(max(0, now - age_s - 1), max(0, now - age_s) + 1):
                log[old] = 0
        if limit is not None and (over := sum(log) - limit) > 0:
            for old in range(now + 1):
                gone = min(over, log[old])
                log[old] -= gone
                over -= gone
                if not over:
                    break
        if now > 520 and (age_s is not None or rate == 0):
            break
    total = sum(log)
    if found is None:
        assert total == stored + rate * now
    elif limit is not None and age_s is None and rate and stored + rate * seconds < limit:
        assert found == limit  # the simulation is still on its way there
    else:
        assert found == total


def test_a_disk_is_full_when_only_its_reserve_is_left() -> None:
    assert full_in_days(free_bytes=86_400 * 10 + 100, guard_bytes=100, bytes_per_s=5) == 2
    assert full_in_days(free_bytes=50, guard_bytes=100, bytes_per_s=5) == 0
    assert full_in_days(free_bytes=50, guard_bytes=0, bytes_per_s=0) is None
