"""Which messages of what was read are not sent now: those past their time to live, and those that are due later."""

from __future__ import annotations

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.timed import timed_parts
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.batch.timing import DELAY_MS, TTL_MS

AT = 1_000_000  # append time of every batch


def batch(base: int, *timed: dict[str, str] | None) -> CachedBatch:
    count = len(timed)
    head = broker_part(base_offset=base, last_offset=base + count - 1, epoch=1, append_time_ms=AT)
    data = head + encode_batch([b"x"] * count, attributes=list(timed))
    return CachedBatch(base, base + count, count, AT, len(data), (data,))


def ttl(ms: int) -> dict[str, str]:
    return {TTL_MS: str(ms)}


def delay(ms: int) -> dict[str, str]:
    return {DELAY_MS: str(ms)}


def found(
    batches: list[CachedBatch],
    now_ms: int,
    *,
    ranges: list[tuple[int, int]] | None = None,
    delays: bool = True,
    ahead_ms: int = 0,
) -> list[tuple[int, list[tuple[int, int]], list[tuple[tuple[int, int], int, int]]]]:
    parts = timed_parts(batches, ranges or [(0, 100)], now_ms, delays=delays, ahead_ms=ahead_ms)
    return [(part.batch.base, part.expired, part.waits) for part in parts]


def test_messages_past_their_time_are_given_as_ranges_from_that_moment_on() -> None:
    batches = [batch(10, ttl(100), ttl(100), None, ttl(100), ttl(101))]
    assert found(batches, AT + 99) == []
    assert found(batches, AT + 100) == [(10, [(10, 12), (13, 14)], [])]
    assert found(batches, AT + 101) == [(10, [(10, 12), (13, 15)], [])]


def test_nothing_expires_before_it_has_by_the_clock_that_is_behind() -> None:
    batches = [batch(0, ttl(100))]
    assert found(batches, AT + 149, ahead_ms=50) == []
    assert found(batches, AT + 150, ahead_ms=50) == [(0, [(0, 1)], [])]


def test_messages_that_are_due_later_wait_together_if_they_are_due_together() -> None:
    batches = [batch(0, delay(100), delay(100), delay(200), None, delay(200))]
    waits = [((0, 2), AT + 100, 100), ((2, 3), AT + 200, 200), ((4, 5), AT + 200, 200)]
    assert found(batches, AT + 99) == [(0, [], waits)]
    assert found(batches, AT + 100) == [(0, [], waits[1:])]
    assert found(batches, AT + 200) == []
    assert found(batches, AT, delays=False) == []


def test_only_messages_within_the_ranges_count() -> None:
    batches = [batch(0, ttl(1), ttl(1), ttl(1), ttl(1), ttl(1)), batch(5, None), batch(6, ttl(1))]
    assert found(batches, AT + 1, ranges=[(1, 2), (3, 4), (6, 7)]) == [
        (0, [(1, 2), (3, 4)], []),
        (6, [(6, 7)], []),
    ]
    assert found(batches, AT + 1, ranges=[(5, 6)]) == []
