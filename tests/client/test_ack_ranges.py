"""The gatherer of acknowledgements against a set of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pydanube.acks import RANGES_A_REQUEST, AckGatherer, cut

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
