"""Many deltas at once are the same as one after the other, and cost what they hold, not what the cursor holds."""

from __future__ import annotations

import random
import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.journal import RecordHeader, RecordKind
from pydanube_broker.subscription.cursor import (
    Attempts,
    CursorDelta,
    CursorSnapshot,
    apply_deltas,
    encode_delta,
    merge_attempts,
)
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.ranges import normalise, subtract
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.topics.log_state import LogState, encode_cursor_body

from tests.broker.subscription.invariants import take_changes

SPAN = 30


@st.composite
def histories(draw: st.DrawFn) -> list[CursorDelta]:
    """What one subscription writes: floors that rise within a generation, counts on what is not acknowledged."""
    deltas, generation, floor = [], 0, 0
    done: set[int] = set()
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 5)) == 0:
            generation, floor = generation + 1, draw(st.integers(0, SPAN))
            done = set()
        floor = draw(st.integers(floor, max(floor, SPAN)))
        while floor in done:
            floor += 1  # a window's floor is never acknowledged
        edges = sorted(draw(st.sets(st.integers(floor + 1, max(floor + 1, SPAN + 20)), max_size=8)))
        pairs = list(zip(edges[::2], edges[1::2], strict=False))
        split = draw(st.integers(0, len(pairs)))
        attempts = tuple(
            Attempts(start=a, end=b, deliveries=draw(st.integers(1, 3)), failures=0)
            for a, b in subtract(pairs[split:], normalise((o, o + 1) for o in done))
        )
        done |= {o for start, end in pairs[:split] for o in range(start, end)}
        deltas.append(
            CursorDelta(
                generation=generation,
                floor=floor,
                acknowledged=tuple(normalise(pairs[:split])),
                attempts=attempts,
            )
        )
    return deltas


def _by_offset(attempts: tuple[Attempts, ...] | list[Attempts]) -> dict[int, tuple[int, int]]:
    return {o: (a.deliveries, a.failures) for a in attempts for o in range(a.start, a.end)}


@given(histories())
def test_folding_is_applying_one_by_one(deltas: list[CursorDelta]) -> None:
    snapshot = CursorSnapshot(floor=0)
    for delta in deltas:
        snapshot = apply_deltas(snapshot, (delta,))
    folded = apply_deltas(CursorSnapshot(floor=0), deltas)
    assert (folded.generation, folded.floor, folded.acknowledged) == (
        snapshot.generation,
        snapshot.floor,
        snapshot.acknowledged,
    )
    assert _by_offset(folded.attempts) == _by_offset(snapshot.attempts)


@given(histories())
def test_the_later_attempts_count_for_each_offset(deltas: list[CursorDelta]) -> None:
    base, newer = deltas[0].attempts, deltas[-1].attempts
    merged = merge_attempts(base, newer)
    assert _by_offset(merged) == _by_offset(base) | _by_offset(newer)
    assert all(a.end <= b.start for a, b in pairwise(merged))


def test_a_start_replays_a_cursor_full_of_holes_in_seconds() -> None:
    # As seen: 25 kills under nacks and out-of-order acks left 2 000 records, each folded into thousands of ranges and
    # counts one by one; the start took 137 s.
    rng = random.Random(1)
    holes = range(1, 8001, 2)
    state = LogState(1)
    state.cursors[7] = CursorSnapshot(
        floor=0,
        acknowledged=tuple((o, o + 1) for o in range(2, 8002, 2)),
        attempts=tuple(Attempts(start=o, end=o + 1, deliveries=1 + o % 3, failures=0) for o in holes),
    )
    bodies = [
        encode_cursor_body(
            7,
            encode_delta(
                CursorDelta(
                    generation=0,
                    floor=0,
                    attempts=tuple(
                        Attempts(start=o, end=o + 1, deliveries=5, failures=0)
                        for o in sorted(rng.sample(holes, 10))
                    ),
                )
            ),
        )
        for _ in range(2000)
    ]
    begun = time.process_time()
    for body in bodies:
        state.apply(RecordHeader(RecordKind.CURSOR, 0, 0, 0, 1, len(body), 0, 0), memoryview(body))
    state.fold_replayed()
    assert time.process_time() - begun < 10
    assert len(state.cursors[7].acknowledged) == 4000
    assert sum(a.deliveries == 5 for a in state.cursors[7].attempts) > 3900


def test_a_cursor_of_tens_of_thousands_of_holes_is_put_back_in_linear_time() -> None:
    """As undo does it after a subscription was deleted; each hole once sorted all that came before it."""
    holes = tuple((at, at + 1) for at in range(1, 60_000, 2))
    subscription = Subscription(SubscriptionType.SHARED, cursor=CursorSnapshot(floor=0), end=60_000)
    take_changes(subscription)
    began = time.process_time()
    for start, end in holes:
        subscription.skipped(start, end)
    assert time.process_time() - began < 2.0, "it took a minute"
    delta = take_changes(subscription)
    assert delta is not None
    assert delta.acknowledged == holes == subscription.snapshot().acknowledged
