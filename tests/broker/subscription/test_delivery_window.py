"""The window's leaf functions against sets of offsets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription.chunk import CHUNK_OFFSETS, Chunk
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.cursor import Attempts, CursorSnapshot
from pydanube_broker.subscription.ranges import RangeSet, normalise, ranges_of, subtract
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.subscription.window import MERGE_OFFSETS, Window

from tests.broker.subscription.invariants import check_window

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1])), max_size=8
)

WIDE = st.lists(
    st.tuples(st.integers(0, 700), st.integers(1, 200)).map(lambda r: (r[0], r[0] + r[1])), max_size=9
)


def offsets(ranges: list[tuple[int, int]]) -> set[int]:
    return {o for s, e in ranges for o in range(s, e)}


def holder() -> Consumer:
    return Consumer(
        consumer_id=1,
        name="a",
        session=1,
        ack_timeout_ms=0,
        terms=ConsumerTerms(credit_bytes=None),
    )


def placed(sizes: list[int], *, gap: int = 0) -> Window:
    """A window in which stretches of these sizes are in flight, with gaps between them."""
    window, consumer = Window(CursorSnapshot(floor=0), durable=True), holder()
    for size in sizes:
        start = window.next + gap
        for chunk, mask in window.place([(start, start + size)], start + size):
            window.launch(chunk, mask, consumer, 0)
            consumer.in_flight += mask.bit_count()
    check_window(window)
    return window


@given(first=RANGES, second=RANGES)
def test_ranges_are_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = normalise(first), normalise(second)
    assert offsets(a) == offsets(first)
    assert all(x[1] < y[0] for x, y in pairwise(a))
    assert offsets(subtract(a, b)) == offsets(first) - offsets(second)
    grown = RangeSet(first)
    assert grown.ranges() == a
    assert grown.size == len(offsets(first))
    for start, end in second:
        assert grown.covers(start, end) == (set(range(start, end)) <= offsets(first))
        grown.discard_below(start)
        assert offsets(grown.ranges()) == {o for o in offsets(first) if o >= start}
        assert grown.size == len(offsets(grown.ranges()))
        first = grown.ranges()


@given(mask=st.integers(0, 2**70), base=st.integers(0, 100))
def test_a_mask_becomes_its_ranges(mask: int, base: int) -> None:
    assert offsets(ranges_of(mask, base)) == {base + i for i in range(mask.bit_length()) if mask >> i & 1}


@given(
    sizes=st.lists(st.sampled_from((1, 2, 7, 300)), min_size=1, max_size=5),
    gap=st.sampled_from((0, 3, 20)),
    closed=RANGES,
    asked=st.one_of(RANGES, WIDE),
)
def test_ranges_in_any_order_are_found_in_their_chunks(
    sizes: list[int], gap: int, closed: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    window = placed(sizes, gap=gap)
    for start, end in closed:
        for chunk, mask in window.chunks.locate([(start, end)]).items():
            window.close(chunk, mask)
    window.raise_floor()
    check_window(window)
    found = {o for c, mask in window.chunks.locate(asked).items() for o in offsets(ranges_of(mask, c.start))}
    assert found == offsets(asked) & offsets(window.chunks.open_ranges())


@given(
    sizes=st.lists(st.sampled_from((1, 2, 7, 300)), min_size=1, max_size=5),
    gap=st.sampled_from((0, 3, 20)),
    closed=WIDE,
    asked=WIDE,
)
def test_open_messages_of_ranges_are_counted_as_one_by_one(
    sizes: list[int], gap: int, closed: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    window = placed(sizes, gap=gap)
    for start, end in closed:
        window.close_range(start, end)  # also what was not read yet
    check_window(window)
    assert window.count_open(normalise(asked)) == sum(map(window.is_open, offsets(asked)))
    ascending = sorted(set(offsets(asked)))
    assert window.open_of(ascending) == [each for each in ascending if window.is_open(each)]


def test_open_messages_are_counted_without_a_step_for_each_offset() -> None:
    """The offsets of a skip far ahead of a blocked message held up the event loop for seconds."""
    window = Window(CursorSnapshot(floor=0, acknowledged=((999_990, 999_991),)), durable=True)
    assert window.count_open([(5, 1_000_000)]) == 999_994
    assert lines_of(lambda: window.count_open([(5, 1_000_000)])) < 100
    read = placed([8192] * 8)
    read.close_range(65_000, 65_001)
    assert read.count_open([(5, 1_000_000)]) == 999_994
    assert lines_of(lambda: read.count_open([(5, 1_000_000)])) < 500
    many = list(range(0, 200_000, 2))
    assert lines_of(lambda: read.open_of(many)) < 500
    assert read.open_of(many) == [each for each in many if each != 65_000]


@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from((1, 200, 256, 257, 8000, 8192, 8193, 20_000))),
        max_size=5,
    ),
    at_once=st.booleans(),
)
def test_placed_messages_are_open_however_long_and_chunks_stay_bounded(
    pieces: list[tuple[int, int]], at_once: bool
) -> None:
    window, consumer = Window(CursorSnapshot(floor=0), durable=True), holder()
    ranges, at = [], 0
    for gap, size in pieces:
        ranges.append((at + gap, at + gap + size))
        at += gap + size
    for part in [ranges] if at_once else [[r] for r in ranges]:
        if part:
            for chunk, mask in window.place(part, part[-1][1]):
                window.launch(chunk, mask, consumer, 0)
                consumer.in_flight += mask.bit_count()
    check_window(window)
    assert window.chunks.open_ranges() == normalise(ranges)
    assert all(c.end - c.start <= CHUNK_OFFSETS for c in window.chunks)


def test_trickling_messages_share_chunks() -> None:
    window = placed([1] * 2000)
    assert len(window.chunks) == -(-2000 // MERGE_OFFSETS)


def test_timers_of_acknowledged_flights_do_not_pile_up() -> None:
    window, consumer = Window(CursorSnapshot(floor=0), durable=False), holder()
    consumer.ack_timeout_ms = 30_000
    for now in range(20_000):
        for chunk, mask in window.place([(now, now + 1)], now + 1):
            window.launch(chunk, mask, consumer, now)
            consumer.in_flight += 1
        if now % 100:  # every hundredth is never acknowledged
            window.close_range(now, now + 1)
    assert window.timers.next_ms() == 30_000
    assert len(window.timers._entries) <= 2 * 200 + 64
    assert [t.deadline_ms for t in window.timers.due(30_500) if hasattr(t, "deadline_ms")] == [
        30_000 + n for n in range(0, 501, 100)
    ]


@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=6),
    wanted=WIDE,
    cuts=st.sets(st.integers(0, 900)),
)
def test_masks_find_what_the_same_ranges_find(
    sizes: list[int], wanted: list[tuple[int, int]], cuts: set[int]
) -> None:
    window = placed(sizes, gap=3)
    edges = sorted({0, *cuts})
    masks: list[tuple[int, int]] = []
    for start, end in pairwise([*edges, 1000]):
        bits = sum(1 << offset - start for offset in offsets(wanted) if start <= offset < end)
        if bits:
            masks.append((start, bits))
    found: dict[Chunk, int] = {}
    window.chunks.locate_masks(found, masks)
    assert found == window.chunks.locate(normalise(wanted))


def test_a_mask_far_behind_the_window_costs_nothing() -> None:
    window = placed([300])
    found: dict[Chunk, int] = {}
    window.chunks.locate_masks(found, [(1 << 63, 5), (1 << 40, 1)])
    assert found == {}


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of the subscription's modules are run: steps that no machine makes slower."""
    count = 0

    def each(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_globals.get("__package__") != Window.__module__.rpartition(".")[0]:
            return None
        count += 1
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def restored(count: int) -> tuple[Window, tuple[Attempts, ...]]:
    """A window that is not read ahead yet, of which every second message was tried before, in turns once and twice."""
    tried = tuple(
        Attempts(start=2 * n, end=2 * n + 1, deliveries=1 + n % 2, failures=n % 2) for n in range(count)
    )
    return Window(CursorSnapshot(floor=0, attempts=tried), durable=True), tried


def read_in_stretches(window: Window, end: int) -> None:
    """As the subscription reads: never across a change of counts."""
    while window.next < end:
        stop = window.unread_state.limit(window.next, end)
        window.place([(window.next, stop)], stop)


def read_at_once(window: Window, end: int) -> None:
    window.place([(0, end)], end)


@pytest.mark.parametrize(("read", "some"), [(read_in_stretches, 500), (read_at_once, 2 * CHUNK_OFFSETS)])
def test_counts_of_a_restart_are_given_in_steps_that_grow_with_their_number(
    read: Callable[[Window, int], None], some: int
) -> None:
    steps = []
    for count in (some, 2 * some):
        window, tried = restored(count)
        steps.append(lines_of(lambda w=window, end=2 * count: read(w, end)))  # type: ignore[misc]
        assert window.snapshot().attempts == tried
    assert steps[1] < 2.2 * steps[0], f"twice the counts took {steps[1] / steps[0]:.1f} times the steps"


def test_changes_above_a_floor_that_stays_are_noted_in_steps_that_grow_with_their_number() -> None:
    steps = []
    for count in (500, 1000):
        window = placed([MERGE_OFFSETS + 1] * count)

        def close_all_but_the_first(window: Window = window) -> None:
            for chunk in window.chunks[:0:-1]:
                window.close(chunk, chunk.open)

        steps.append(lines_of(close_all_but_the_first))
        assert window.unsaved is not None
        delta = window.unsaved.delta(window.generation, window.floor)
        assert delta is not None
        assert delta.acknowledged == ((MERGE_OFFSETS + 1, window.next),)
    assert steps[1] < 2.2 * steps[0], f"twice the changes took {steps[1] / steps[0]:.1f} times the steps"
