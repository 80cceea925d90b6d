"""Rings that keep only what changed give the same windows as lists of everything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.observation.tracks import (
    MOST_ROWS,
    CursorTrack,
    LogTrack,
    Rises,
    Rounds,
)
from pydanube_core.cursor_state import CursorState

INTERVAL_S = 1.0


def row(now_ms: int, head: int, floor: int, acked: int = 0, failed: int = 0) -> CursorState:
    return CursorState(now_ms, 0, head, floor, 0, 0, 1, acknowledged=acked, failed=failed)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=200), st.integers(3, 300)
)
def test_a_window_is_that_of_a_list_of_every_round(steps: list[tuple[int, int]], window_s: int) -> None:
    rounds = Rounds(interval_s=INTERVAL_S, window_s=float(window_s))
    track = CursorTrack(1, 1000)
    everything: list[CursorState] = []
    head = floor = now_ms = 0
    last: tuple[int, int] | None = None
    for number, (produced, consumed) in enumerate(steps, 1):
        head += produced
        floor = min(head, floor + consumed)
        now_ms = 1000 * number
        keep = rounds.note(number, now_ms)
        if keep or not everything:
            everything.append(row(now_ms, head, floor))
        if (head, floor) != last:
            last = (head, floor)
            track.see(row(now_ms, head, floor), keep=keep)
    live = row(now_ms + 1, head + 5, floor)
    states = track.window(rounds, live)
    if rounds.stride == 1:
        expected = [r for r in everything if r.taken_at_ms >= live.taken_at_ms - window_s * 1000]
        assert states == [*expected, live]
    assert len(states) <= MOST_ROWS + 2
    assert len(track.ring) <= MOST_ROWS
    assert all(a.next_offset <= b.next_offset for a, b in itertools.pairwise(states))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 90))
def test_counters_are_counted_within_the_window(rises: list[int], window_s: int) -> None:
    track = CursorTrack(1, 0)
    rounds = Rounds(interval_s=INTERVAL_S, window_s=60.0)  # a row a round
    total, history = 0, [(0, 0)]
    for number, rise in enumerate(rises, 1):
        total += rise
        now_ms = 1000 * number
        keep = rounds.note(number, now_ms)
        history.append((now_ms, total))
        if rise or number == 1:
            track.see(row(now_ms, 0, 0, acked=total), keep=keep)
    now_ms = 1000 * len(rises) + 1
    found = track.count("acknowledged", row(now_ms, 0, 0, acked=total), window_s * 1000)
    before = max(t for at, t in history if at <= max(0, now_ms - window_s * 1000))
    assert (found.total, found.in_window) == (total, total - before)
    assert (found.last_ms is None) == (total == 0)
    assert track.count("failed", row(now_ms, 0, 0), window_s * 1000).in_window == 0


def test_a_cursor_that_goes_back_is_noted() -> None:
    track = CursorTrack(1, 0)
    for at, floor in enumerate((10, 40, 5)):
        track.see(row(at, 100, floor), keep=True)
    assert track.rewound == (2, 40, 5)
    assert track.cursor_moved_ms == 2
    assert track.unread_since_ms == 0


def test_production_knows_flow_burst_and_silence() -> None:
    log = LogTrack("t", 0, 0, 0)
    for second in range(1, 61):
        log.grew(1000 * second, 10 * second, 0, 1000, keep=True)
    flow = log.production(80_000, 600, window_s=60.0, interval_s=1.0)
    assert (flow.steady_since_ms, flow.last_ms, flow.longest_gap_s) == (1000, 60_000, 1.0)
    assert flow.messages == 400  # of the last sixty seconds
    assert flow.steady_messages == 600
    log.grew(90_000, 1600, 0, 1000, keep=True)  # after thirty seconds of silence: something new
    assert log.steady_ms() == 0
    burst = log.production(90_000, 1600, window_s=60.0, interval_s=1.0)
    assert max(burst.segments) == burst.segments[-1] >= 1000


@given(st.integers(0, 600), st.integers(1, 30), st.integers(0, 60))
def test_an_even_flow_is_no_burst_however_long_it_was_watched(
    watched_s: int, per_s: int, idle_s: int
) -> None:
    """Samples every five seconds, asked at any second, after a time in which nothing came."""
    log = LogTrack("t", 0, 0, 0)
    for at_s in range(5, idle_s + watched_s + 1, 5):
        log.grew(1000 * at_s, per_s * max(0, at_s - idle_s), 0, 5000, keep=True)
    flow = log.production(1000 * (idle_s + watched_s), per_s * watched_s, window_s=300.0, interval_s=5.0)
    assert flow.burst is None


@given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(1, 5)), min_size=1, max_size=60), st.integers(1, 200)
)
def test_rare_counters_are_counted_within_the_window(rises: list[tuple[int, int]], window_s: int) -> None:
    found = Rises()
    now_ms = total = 0
    history = [(0, 0)]
    for wait_s, rise in rises:
        now_ms += 1000 * wait_s
        total += rise
        assert found.see(("t", "CODE"), total, now_ms)
        assert not found.see(("t", "CODE"), total, now_ms + 1)
        history.append((now_ms, total))
    now_ms += 500
    count = found.count(("t", "CODE"), total, now_ms, window_s * 1000)
    before = max(t for at, t in history if at < max(1, now_ms - window_s * 1000))
    assert (count.total, count.in_window) == (total, total - before)
