"""Queues and key owners of non-reliable topics, without a broker."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.live_queue import LiveQueue, all_of
from pydanube_broker.subscription.routes.key_filters import key_pattern
from pydanube_broker.subscription.routes.live_routing import KeyOwners


def batch(count: int, *, size: int = 100, base: int = 0) -> CachedBatch:
    return CachedBatch(base, base + count, count, 0, size, (b"",))


def test_a_queue_takes_what_fits_and_says_how_much() -> None:
    queue = LiveQueue(max_messages=10, max_bytes=1000)
    assert queue.offer(batch(7), all_of(batch(7))) == 7
    assert queue.offer(batch(7), all_of(batch(7))) == 3
    assert queue.offer(batch(1), all_of(batch(1))) == 0
    assert (queue.messages, queue.bytes) == (10, 200)


def test_a_batch_larger_than_the_bytes_is_taken_alone() -> None:
    queue = LiveQueue(max_messages=10, max_bytes=1000)
    large = batch(1, size=5000)
    assert queue.offer(large, all_of(large)) == 1
    assert queue.offer(batch(1), all_of(batch(1))) == 0
    assert queue.take(1) is not None
    assert queue.offer(batch(1), all_of(batch(1))) == 1


@given(
    offers=st.lists(st.integers(1, 30), max_size=20),
    takes=st.lists(st.integers(1, 40), max_size=40),
)
def test_what_was_taken_in_comes_out_once_in_order_within_the_bounds(
    offers: list[int], takes: list[int]
) -> None:
    queue = LiveQueue(max_messages=100, max_bytes=700)
    taken_in: list[int] = []
    came_out: list[int] = []
    base = 0
    steps = iter(takes)
    for count in offers:
        offered = batch(count, base=base)
        kept = queue.offer(offered, all_of(offered))
        taken_in += range(base, base + kept)
        base += count
        assert queue.messages <= 100
        assert queue.bytes <= 700
        piece = queue.take(next(steps, 5))
        if piece is not None:
            came_out += [piece[0].base + int(i) for i in piece[1]]
    for left, indices in queue.drain():
        came_out += [left.base + int(i) for i in indices]
    assert came_out == taken_in
    assert (queue.messages, queue.bytes, bool(queue)) == (0, 0, False)


def test_a_consumer_that_leaves_moves_only_its_own_keys() -> None:
    slots = np.arange(65_536)
    before = KeyOwners(["a", "b", "c", "d"], {}).by_slot(slots)
    after = KeyOwners(["a", "b", "d"], {}).by_slot(slots)
    renamed = {0: 0, 1: 1, 3: 2}
    stayed = [renamed[int(owner)] == int(now) for owner, now in zip(before, after, strict=True) if owner != 2]
    assert all(stayed)
    shares = Counter(before.tolist())
    assert max(shares.values()) < 1.2 * min(shares.values())


def test_filters_decide_which_consumer_gets_a_key_or_none() -> None:
    owners = KeyOwners(["eu", "any"], {"eu": key_pattern(["eu-*", "de-?"])})
    slots = np.zeros(3, dtype=np.int64)
    only_eu = KeyOwners(["eu"], {"eu": key_pattern(["eu-*", "de-?"])})
    assert only_eu.by_key(["eu-1", "de-12", "de-1"], slots).tolist() == [0, -1, 0]
    assert owners.by_key(["us-1"], slots[:1]).tolist() == [1]


@pytest.mark.parametrize(
    ("glob", "key", "accepted"),
    [("a*", "abc", True), ("a?", "abc", False), ("a.c", "abc", False), ("*", "", True), ("a*", "ba", False)],
)
def test_a_filter_is_a_glob_over_the_whole_key(glob: str, key: str, *, accepted: bool) -> None:
    assert (key_pattern([glob]).fullmatch(key) is not None) is accepted
    assert re.compile(key_pattern([glob]).pattern)
