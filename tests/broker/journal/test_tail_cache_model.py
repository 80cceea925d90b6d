"""The tail cache against a list of everything that was ever put in."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.journal.journal import JOINED_BYTES
from pydanube_broker.journal.tail_cache import CachedBatch, TailCache
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.frames import write_bytes_field

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2), st.integers(1, 900)
        ),
        st.tuples(st.just("drop"), st.integers(1, 3)),
        st.tuples(
            st.just("read"), st.integers(1, 3), st.integers(0, 60), st.integers(0, 70), st.integers(0, 2500)
        ),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, limit=st.sampled_from([1, 1000, 4000, 1 << 20]))
def test_the_cache_answers_as_the_log_would_or_says_that_it_cannot(
    steps: list[tuple[str, ...]], limit: int
) -> None:
    """Batches with gaps of offsets between them, in any mixture of topics."""
    cache = TailCache(limit)
    log: dict[int, list[CachedBatch]] = {}
    ids = {1: 1, 2: 2, 3: 3}  # a topic that is made anew has another id
    for step in steps:
        match step:
            case ("add", int(name), int(count), int(gap), int(size)):
                batches = log.setdefault(ids[name], [])
                base = (batches[-1].end if batches else 0) + gap
                batch = CachedBatch(base, base + count, count, base, size, (b"",))
                batches.append(batch)
                cache.add(ids[name], batch)
                assert cache.read(ids[name], base, base + count, 1) == [batch], "the newest is always there"
                assert cache.used_bytes <= max(limit, size + 600)
            case ("drop", int(name)):
                cache.drop(ids[name])
                assert cache.read(ids[name], 0, 1000, 1) is None
                log.pop(ids[name], None)
                ids[name] += 10
            case ("read", int(name), int(offset), int(end), int(max_bytes)):
                found = cache.read(ids[name], offset, end, max_bytes)
                expected = [b for b in log.get(ids[name], []) if b.end > offset and b.base < end]
                if found is None:
                    continue
                assert found == expected[: len(found)]
                assert bool(found) == bool(expected)
                assert sum(b.stored_bytes for b in found[:-1]) <= max_bytes
                if len(found) < len(expected):
                    size = sum(b.stored_bytes for b in found) + expected[len(found)].stored_bytes
                    assert size > max_bytes, "it stops only where more would be too much"


def test_nothing_is_forgotten_below_the_limit() -> None:
    cache = TailCache(2 << 20)
    batches = [CachedBatch(i, i + 1, 1, i, 100, (b"",)) for i in range(3000)]
    for batch in batches:
        cache.add(5, batch)
    assert cache.read(5, 0, 3000, 1 << 30) == batches
    assert cache.read(5, 3000, 3001, 100) == []


def test_the_oldest_of_all_topics_leave_first_and_lists_stay_short() -> None:
    cache = TailCache(300 * 50)
    for i in range(20_000):
        cache.add(i % 2, CachedBatch(i, i + 2, 1, i, 100, (b"",)))
    assert cache.read(0, 0, 20_000, 100) is None, "it does not reach back"
    found = cache.read(0, 19_990, 30_000, 10_000)
    assert found is not None
    assert [batch.base for batch in found] == [19_990, 19_992, 19_994, 19_996, 19_998]
    assert all(len(tail.batches) < 4000 for tail in cache._topics.values())


@pytest.mark.parametrize("size", [16, 128, 1000, 10_000])
def test_the_limit_is_one_of_memory_also_for_lone_messages(size: int) -> None:
    """Each batch of one, as the journal keeps it: the objects around a small one are larger than its bytes."""
    limit = 2 << 20
    cache = TailCache(limit)
    tracemalloc.start()
    try:
        for offset in range(1 << 20, (1 << 20) + 2 * limit // (size + 300)):
            data = memoryview(write_bytes_field(2, (encode_batch([bytes(size)]),)))[5:]
            head = broker_part(base_offset=offset, last_offset=offset, epoch=1, append_time_ms=1 << 40)
            stored = len(head) + len(data)
            buffers = (b"".join((head, data)),) if stored <= JOINED_BYTES else (head, data)
            cache.add(5, CachedBatch(offset, offset + 1, 1, offset << 20, stored, buffers))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.9 * limit < cache.used_bytes <= limit, "it is full"
    assert used <= 1.05 * limit
