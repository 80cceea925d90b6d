"""The shell's part of routing: which messages of stored batches a plan picks out, and what routing asks of them."""

from __future__ import annotations

from array import array
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes
from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.planning import Plan
from pydanube_broker.subscription.ranges import Range, digits_of, head_of_mask, normalise, ranges_of
from pydanube_broker.subscription.routes.routed_part import KEPT_BYTES, KeptColumns, gather, pick
from pydanube_broker.subscription.routes.spreading import LARGE_PART, bytes_by_member, indices_for, indices_of
from pydanube_core.batch import BatchView, broker_part, read_producer_part
from pydanube_core.batch.encode import encode_batch
from pydanube_core.batch.select import KEY_SLOTS

SIZE = 40


def stored(base: int, count: int) -> CachedBatch:
    """A batch whose message at offset i has payload and key of its own."""
    data = encode_batch(
        [f"{base + i:0{SIZE}}".encode() for i in range(count)],
        keys=[f"key-{(base + i) % 7}".encode() for i in range(count)],
    )
    head = broker_part(base_offset=base, last_offset=base + count - 1, epoch=1, append_time_ms=1)
    return CachedBatch(base, base + count, count, 1, len(head) + len(data), (head, data))


BATCHES = [stored(0, 10), stored(10, 1), stored(11, 20)]


def plan(ranges: list[Range], *, messages: int = 1000, size_bytes: int | None = None) -> Plan:
    return Plan(
        ticket=0,
        consumer_id=None,
        session=None,
        ranges=tuple(ranges),
        max_messages=messages,
        max_bytes=size_bytes,
        delivery_count=1,
        fresh=False,
    )


@settings(deadline=None)
@given(messages=st.integers(1, 40), size_bytes=st.none() | st.integers(1, 3000))
def test_a_part_of_whole_batches_ends_with_one(messages: int, size_bytes: int | None) -> None:
    """A batch is cut off only if it is the first; what is left out is what the next part begins with."""
    asked = plan([(0, 31)], messages=messages, size_bytes=size_bytes)
    cut, part = gather(BATCHES, asked), gather(BATCHES, asked, whole=True)
    end = cut.next_offset
    if end > 10:
        end = max(at for at in (10, 11, 31) if at <= end)
    assert part.ranges == [(0, end)]
    assert part.next_offset == end


@settings(deadline=None)
@given(who=st.binary(min_size=1, max_size=700), per_batch=st.integers(30, 300))
def test_what_each_member_gets_of_an_arranged_part_is_cut_as_before(who: bytes, per_batch: int) -> None:
    members = bytes(byte % 3 for byte in who)
    batches = [stored(base, min(per_batch, len(who) - base)) for base in range(0, len(who), per_batch)]
    part, plain = (gather(batches, plan([(0, len(who))])) for _ in range(2))
    part.arrange(members)
    for member in range(3):
        chosen = indices_of(members, member)
        assert (
            list(chosen)
            == indices_for(members, member)
            == [i for i, own in enumerate(members) if own == member]
        )
        pairs = zip(part.split(chosen), plain.split(chosen), strict=True)
        for (columns, indices), (others, same) in pairs:
            assert columns.cutter.select(indices) == others.cutter.select(same)


@given(who=st.binary(min_size=1, max_size=600), data=st.data())
def test_bytes_by_member_are_the_sums_of_what_each_gets(who: bytes, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(0, 1 << 30))] * len(who)
    sizes[0] = data.draw(st.integers(0, 1 << 40))
    found = bytes_by_member(who, array("q", sizes))
    assert bytes_by_member(who, None) is None
    assert (found is None) is (len(who) < LARGE_PART)
    for member in set(who):
        if found is not None:
            assert found[member] == sum(sizes[i] for i in indices_for(who, member))


@settings(deadline=None)
@given(
    offsets=st.sets(st.integers(0, 30), min_size=1),
    messages=st.integers(1, 40),
    size_bytes=st.none() | st.integers(1, 3000),
)
def test_a_plan_gets_what_it_names_within_its_limits(
    offsets: set[int], messages: int, size_bytes: int | None
) -> None:
    wanted = sorted(offsets)
    part = gather(
        BATCHES, plan(normalise((o, o + 1) for o in wanted), messages=messages, size_bytes=size_bytes)
    )
    got = [o for start, end in part.ranges for o in range(start, end)]
    assert got == wanted[: len(got)]
    assert part.ranges == normalise(part.ranges)
    assert 1 <= len(got) <= messages
    sizes = part.sizes()
    if size_bytes is not None and len(got) > 1:
        assert sum(sizes) <= size_bytes
    if len(got) < min(len(wanted), messages):
        assert size_bytes is not None, "cut short for no reason"
    assert part.next_offset == (wanted[-1] + 1 if got == wanted else wanted[len(got)])
    assert part.keys() == [f"key-{o % 7}" for o in got]
    assert list(part.slots()) == [crc32(f"key-{o % 7}".encode()) % KEY_SLOTS for o in got]
    payloads = []
    for columns, indices in part.split(range(len(got))):
        data = producer_bytes(columns.batch)
        view = BatchView(data, part=read_producer_part(data, verify=False))
        payloads += [int(view.payloads()[i]) for i in indices.tolist()]
    assert payloads == got


def test_columns_of_batches_are_kept_for_the_next_part_within_a_bound() -> None:
    kept = KeptColumns()
    first = gather(BATCHES, plan([(0, 15)]), kept)
    again = gather([BATCHES[2]], plan([(15, 31)]), kept)
    assert again.pieces[0][0] is first.pieces[-1][0]
    large = [stored(base, 1)._replace(stored_bytes=KEPT_BYTES // 4) for base in range(100, 104)]
    for batch in large:
        kept.of(batch)
    assert len(kept) == 2
    assert kept.of(large[3]) is kept.of(large[3])
    assert kept.of(BATCHES[2]) is not first.pieces[-1][0]
    kept.clear()
    assert not len(kept)


def sparse() -> CachedBatch:
    """A batch of nine messages at 31, 32, 34, 35, 37 … 43: every third offset holds none."""
    offsets = [offset for offset in range(31, 44) if offset % 3]
    data = encode_batch(
        [f"{offset:0{SIZE}}".encode() for offset in offsets],
        keys=[f"key-{offset % 7}".encode() for offset in offsets],
        offset_deltas=[offset - 31 for offset in offsets],
    )
    head = broker_part(base_offset=31, last_offset=43, epoch=1, append_time_ms=1)
    return CachedBatch(31, 44, len(offsets), 1, len(head) + len(data), (head, data))


@settings(deadline=None)
@given(
    offsets=st.sets(st.integers(0, 43), min_size=1),
    edges=st.sets(st.integers(1, 43), max_size=4),
    messages=st.integers(1, 50),
    size_bytes=st.none() | st.integers(1, 3000),
    frame_bytes=st.none() | st.integers(1, 3000),
    gone=st.booleans(),
)
def test_masks_pick_what_the_same_ranges_would(
    offsets: set[int],
    edges: set[int],
    messages: int,
    size_bytes: int | None,
    frame_bytes: int | None,
    gone: bool,
) -> None:
    masks: list[tuple[Chunk, int]] = []
    for start, end in pairwise(sorted({0, 44, *edges})):
        if mask := sum(1 << offset - start for offset in offsets if start <= offset < end):
            masks.append((Chunk(start, end), mask))
    picked = ChunkMasks(masks)
    wanted = sorted(offsets)
    assert (picked.first, picked.end, picked.messages) == (wanted[0], wanted[-1] + 1, len(wanted))
    assert list(picked) == normalise((o, o + 1) for o in wanted) == picked
    batches = [*BATCHES[gone:], sparse()]
    there = {offset for batch in batches for offset in range(batch.base, min(batch.end, 31))}
    there |= {offset for offset in range(31, 44) if offset % 3}
    by_ranges = plan(list(picked), messages=messages, size_bytes=size_bytes)
    part = pick(batches, by_ranges._replace(ranges=picked), KeptColumns(), frame_bytes=frame_bytes)
    got = [o for start, end in part.ranges for o in range(start, end)]
    assert got == [offset for offset in wanted if offset in there][: len(got)]
    assert [int(o) for columns, at in part.pieces for o in columns.offsets[at]] == got
    assert isinstance(part.ranges, ChunkMasks) == (got == [o for o in wanted if o < part.next_offset] != [])
    if frame_bytes is None:
        same = gather(batches, by_ranges)
        assert (list(part.ranges), part.next_offset) == (list(same.ranges), same.next_offset)
    elif offsets & there:
        assert got


def test_nothing_left_in_the_log_is_passed_over() -> None:
    part = gather([], plan([(3, 5), (9, 12)]))
    assert (list(part.ranges), part.next_offset) == ([], 12)


@pytest.mark.parametrize("density", [0.02, 0.3, 0.9])
@settings(deadline=None)
@given(bits=st.sets(st.integers(0, 400), min_size=1), base=st.integers(0, 10**12))
def test_masks_as_ranges(density: float, bits: set[int], base: int) -> None:
    count = max(1, int(400 * density))
    chosen = sorted(bits)[:count]
    mask = sum(1 << bit for bit in chosen)
    found = ranges_of(mask, base)
    assert [o - base for start, end in found for o in range(start, end)] == chosen
    assert all(end < start for (_, end), (start, _) in pairwise(found))
    assert [i for i, digit in enumerate(digits_of(mask)) if digit] == chosen
    for few in (1, 3, len(chosen)):
        assert head_of_mask(mask, few) == sum(1 << bit for bit in chosen[:few])
