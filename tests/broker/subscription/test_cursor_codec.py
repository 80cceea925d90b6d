"""Cursors as bytes: they come back as they went, and what is not a cursor is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription.cursor import (
    Attempts,
    CursorDelta,
    CursorSnapshot,
    apply_deltas,
    decode_delta,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
)
from pydanube_core.errors import CorruptJournal, FormatTooNew, InvalidArgument

BIG = 1 << 60


@st.composite
def snapshots(draw: st.DrawFn) -> CursorSnapshot:
    """Cut the offsets above a floor into acknowledged, tried and plain stretches."""
    at = floor = draw(st.integers(0, BIG))
    acknowledged, attempts = [], []
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(1, 5))
        end = at + draw(st.integers(1, BIG // 100))
        if draw(st.booleans()):
            acknowledged.append((at, end))
        else:
            deliveries = draw(st.integers(1, 2**32 - 1))
            failures = draw(st.integers(0, deliveries))
            attempts.append(Attempts(start=at, end=end, deliveries=deliveries, failures=failures))
        at = end
    return CursorSnapshot(
        generation=draw(st.integers(0, 2**64 - 1)),
        floor=floor,
        acknowledged=tuple(acknowledged),
        attempts=tuple(attempts),
    )


@given(snapshots())
def test_a_snapshot_comes_back_as_it_went(snapshot: CursorSnapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    assert decode_snapshot(memoryview(encode_snapshot(snapshot))) == snapshot


@given(snapshots())
def test_a_delta_comes_back_as_it_went(snapshot: CursorSnapshot) -> None:
    delta = CursorDelta(
        generation=snapshot.generation,
        floor=snapshot.floor,
        acknowledged=snapshot.acknowledged,
        attempts=snapshot.attempts,
    )
    assert decode_delta(encode_delta(delta)) == delta


@given(snapshots(), st.data())
def test_cut_or_foreign_bytes_are_refused_with_a_typed_error(
    snapshot: CursorSnapshot, data: st.DataObject
) -> None:
    encoded = encode_snapshot(snapshot)
    with pytest.raises(CorruptJournal):
        decode_snapshot(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(CorruptJournal):
        decode_delta(encoded)
    with pytest.raises(CorruptJournal):
        decode_snapshot(encoded + b"x")


@given(st.binary(max_size=120))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    for decode in (decode_snapshot, decode_delta):
        try:
            decode(data)
        except (CorruptJournal, FormatTooNew):
            continue


def test_the_bytes_of_a_small_cursor_are_what_the_format_says() -> None:
    snapshot = CursorSnapshot(generation=1, floor=2, acknowledged=((4, 5),))
    assert encode_snapshot(snapshot).hex() == (
        "43530100000001000000000000000200000000000000010000000000000004000000000000000500000000000000"
    )


def test_a_newer_version_is_refused_by_name() -> None:
    encoded = bytearray(encode_snapshot(CursorSnapshot(floor=1)))
    encoded[2] = 2
    with pytest.raises(FormatTooNew):
        decode_snapshot(bytes(encoded))


def test_the_last_delta_wins_even_if_it_goes_back() -> None:
    base = CursorSnapshot(generation=3, floor=100, acknowledged=((110, 120),))
    assert apply_deltas(base, (CursorDelta(generation=4, floor=10),)) == CursorSnapshot(
        generation=4, floor=10
    )
    assert apply_deltas(base, (CursorDelta(generation=3, floor=105),)) == CursorSnapshot(
        generation=3, floor=105, acknowledged=((110, 120),)
    )
    assert apply_deltas(base, (CursorDelta(generation=3, floor=110),)).floor == 120


def test_impossible_cursors_cannot_be_made() -> None:
    with pytest.raises(InvalidArgument):
        CursorSnapshot(floor=5, acknowledged=((5, 6),))
    with pytest.raises(InvalidArgument):
        CursorSnapshot(floor=0, acknowledged=((2, 4), (4, 6)))
    with pytest.raises(InvalidArgument):
        CursorSnapshot(floor=-1)
    with pytest.raises(InvalidArgument):
        Attempts(start=1, end=2, deliveries=1, failures=2)
