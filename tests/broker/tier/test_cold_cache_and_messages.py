"""What was read from the cold tier: found by offset, bounded in bytes; batches survive the way between processes."""

from __future__ import annotations

import tracemalloc

from pydanube_broker.journal import CachedBatch
from pydanube_broker.tier.cold_reads import ColdCache, ColdRange
from pydanube_broker.tier.messages import pack_batches, unpack_batches


def covering(start: int, end: int, *, topic: int = 1, size: int = 10) -> ColdRange:
    return ColdRange(topic, start, end, [], size)


def test_a_range_is_found_by_every_offset_it_covers() -> None:
    cache = ColdCache(100)
    first, second = covering(0, 10), covering(10, 30)
    cache.add(second)
    cache.add(first)
    assert [cache.find(1, x) for x in (0, 9, 10, 29, 30)] == [first, first, second, second, None]
    assert cache.find(2, 0) is None


def test_the_least_recently_used_range_goes_first_and_the_newest_stays() -> None:
    cache = ColdCache(25)
    first, second = covering(0, 10), covering(0, 10, topic=2)
    cache.add(first)
    cache.add(second)
    assert cache.find(1, 5) is first
    cache.add(covering(10, 20))
    assert cache.find(2, 5) is None
    assert cache.find(1, 5) is first
    large = covering(20, 30, size=1000)
    cache.add(large)
    assert cache.find(1, 25) is large
    assert cache.used_bytes == 1000


def test_a_range_replaces_what_it_overlaps() -> None:
    cache = ColdCache(100)
    cache.add(covering(0, 10))
    cache.add(covering(10, 20))
    wide = covering(5, 15)
    cache.add(wide)
    assert [cache.find(1, x) for x in (4, 5, 14, 15)] == [None, wide, wide, None]
    cache.drop(1)
    assert cache.used_bytes == 0
    assert cache.find(1, 5) is None


def test_ranges_of_deleted_messages_are_released_and_others_stay() -> None:
    cache = ColdCache(100)
    for found in (covering(0, 10), covering(10, 20), covering(20, 30), covering(0, 10, topic=2)):
        cache.add(found)
    cache.release({1: 15}.get)
    assert [cache.find(1, x) is not None for x in (5, 12, 25)] == [False, True, True]
    assert cache.find(2, 5) is None
    assert cache.used_bytes == 20


def test_batches_come_out_as_they_went_in() -> None:
    given = [(0, 5, 4, 123, b"first"), (7, 8, 1, -5, b""), (2**63, 2**63 + 1, 1, 2**62, b"x" * 1000)]
    found = list(unpack_batches(memoryview(pack_batches(given))))
    assert [
        (each.base, each.end, each.count, each.append_time_ms, b"".join(each.buffers)) for each in found
    ] == given
    assert all(isinstance(each, CachedBatch) and each.stored_bytes == len(each.buffers[0]) for each in found)
    assert list(unpack_batches(memoryview(pack_batches([])))) == []


def test_a_range_of_small_batches_counts_what_its_objects_take() -> None:
    """440 bytes of each batch were not counted: a cache of 64 MiB took 247."""
    packed = pack_batches([(n, n + 1, 1, 1_800_000_000_000 + n, bytes(100)) for n in range(1000, 11_000)])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        blob = memoryview(bytearray(packed))
        found = ColdRange.of(1, 1000, 11_000, blob)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * taken <= found.bytes <= 1.5 * taken
