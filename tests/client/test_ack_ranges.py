"""The gatherer of acknowledgements against a set of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pydanube.receiving.acks import FEW_MESSAGES, MAX_MASKS, RANGES_A_REQUEST, AckGatherer, cut
from pydanube_core.batch import MAX_BATCH_MESSAGES

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=60)


def ack(gatherer: AckGatherer, offset: int) -> None:
    """What `Message.ack` does."""
    if offset == gatherer.next:
        gatherer.next = offset + 1
    else:
        gatherer.note(offset, offset + 1)


@given(spans=spans, singles=st.booleans())
def test_ranges_are_merged_ascending_and_cover_exactly_what_was_acked(
    spans: list[tuple[int, int]], singles: bool
) -> None:
    armed: list[None] = []
    gatherer = AckGatherer(1, lambda: armed.append(None), lambda _, lost: None)
    expected: set[int] = set()
    for first, count in spans:
        expected.update(range(first, first + count))
        if singles:
            for offset in range(first, first + count):
                ack(gatherer, offset)
        else:
            gatherer.note(first, first + count)
    flat = gatherer.take()
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    assert {offset for first, end in pairs for offset in range(first, end)} == expected
    assert all(a[1] < b[0] for a, b in pairwise(pairs))
    assert len(armed) == bool(spans)
    assert gatherer.take() == []
    assert gatherer.acked == len(expected)


def test_an_expired_gatherer_counts_what_it_drops() -> None:
    dropped: list[int] = []
    gatherer = AckGatherer(1, lambda: None, lambda count, lost: dropped.append(count))
    for offset in range(5):
        ack(gatherer, offset)
    gatherer.expire()
    ack(gatherer, 5)
    gatherer.note(6, 9)
    assert dropped == [5, 1, 3]
    assert (gatherer.acked, gatherer.take()) == (0, [])


def test_more_ranges_than_a_request_takes_go_in_several() -> None:
    flat = [*range(2 * 40_000)]
    parts = cut(flat)
    assert [edge for part in parts for edge in part] == flat
    assert all(len(part) % 2 == 0 and len(part) <= 2 * RANGES_A_REQUEST for part in parts)
    assert cut([]) == [[]]


@given(
    batches=st.lists(st.sets(st.integers(0, 300), min_size=1), max_size=6),
    singles=st.sets(st.integers(0, 300)),
    takes_masks=st.booleans(),
)
def test_masks_and_ranges_together_are_what_was_acked_each_once(
    batches: list[set[int]], singles: set[int], takes_masks: bool
) -> None:
    armed: list[None] = []
    gatherer = AckGatherer(1, lambda: armed.append(None), lambda _, lost: None, takes_masks=takes_masks)
    for batch in batches:
        offsets = sorted(batch)
        if gatherer.note_mask(offsets):
            assert takes_masks
            assert len(offsets) >= FEW_MESSAGES
        else:
            for offset in offsets:
                ack(gatherer, offset)
    for offset in singles:
        ack(gatherer, offset)
    [request] = gatherer.requests(confirm=7)
    assert request.confirm == 7
    found = [
        offset
        for first, end in zip(request.ranges[::2], request.ranges[1::2], strict=True)
        for offset in range(first, end)
    ]
    for each in request.masks:
        bits = int.from_bytes(each.bits, "little")
        found += [each.first + i for i in range(bits.bit_length()) if bits >> i & 1]
    assert set(found) == singles.union(*batches)
    assert len(armed) == bool(found)
    assert gatherer.requests() == []
    in_ranges = {
        o for a, b in zip(request.ranges[::2], request.ranges[1::2], strict=True) for o in range(a, b)
    }
    assert not in_ranges.intersection(found[len(in_ranges) :])


def test_what_a_mask_cannot_hold_is_left_to_ranges() -> None:
    gatherer = AckGatherer(1, lambda: None, lambda count, lost: None, takes_masks=True)
    assert not gatherer.note_mask(range(100))
    assert not gatherer.note_mask([*range(0, 30, 2), MAX_BATCH_MESSAGES])
    for first in range(MAX_MASKS):
        assert gatherer.note_mask([*range(first, first + 40, 2)])
    assert not gatherer.note_mask([*range(MAX_MASKS, MAX_MASKS + 40, 2)])
    dropped: list[int] = []
    gatherer = AckGatherer(1, lambda: None, lambda count, lost: dropped.append(count), takes_masks=True)
    assert gatherer.note_mask([*range(0, 40, 2)])
    gatherer.expire()
    assert dropped == [20]
    assert not gatherer.note_mask([*range(0, 40, 2)])
    assert gatherer.acked == 0
