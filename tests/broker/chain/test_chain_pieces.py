"""A piece of a chain brings back what it was made of, or says that it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.chain import Drop, Group, Head, Item, Place, Safe, Start, piece_key
from pydanube_broker.chain.piece import HEADER_BYTES, decode_header, decode_piece, encode_piece
from pydanube_core.errors import CorruptObject, FormatTooNew

steady = settings(derandomize=True, deadline=None, max_examples=100)

numbers = st.integers(0, 2**63 - 1)
items: st.SearchStrategy[Item] = st.one_of(
    st.builds(Start, life=numbers),
    st.builds(Group, base=numbers, segment_bytes=numbers, lsn=numbers, records=st.binary(max_size=100)),
    st.builds(
        Head, base=numbers, number=numbers, size=numbers, position=numbers, part=st.binary(max_size=100)
    ),
    st.builds(Drop, base=numbers),
    st.builds(Safe, lsn=numbers),
)
places = st.builds(
    Place,
    number=st.integers(1, 2**63 - 1),
    before=st.binary(min_size=32, max_size=32),
    term=numbers,
    stored_lsn=numbers,
)


@steady
@given(place=places, within=st.lists(items, max_size=6), random=st.binary(min_size=16, max_size=16))
def test_a_piece_round_trips_and_continues_the_chain(place: Place, within: list[Item], random: bytes) -> None:
    header, data = encode_piece(place, within, journal=5, term=place.term, random=random)
    assert decode_piece(data, journal=5, number=place.number) == (header, within)
    assert decode_header(data[:HEADER_BYTES], journal=5, number=place.number) == header
    assert place.continued_by(header)
    behind = place.after(header)
    ends = [item.end for item in within if isinstance(item, Group)]
    assert behind.stored_lsn == max(ends, default=place.stored_lsn)
    assert behind.number == place.number + 1
    assert not behind.continued_by(header)


@steady
@given(within=st.lists(items, min_size=1, max_size=3), data=st.data())
def test_no_altered_byte_of_a_piece_goes_unnoticed(within: list[Item], data: st.DataObject) -> None:
    _, whole = encode_piece(Place(), within, journal=5, term=1, random=bytes(16))
    at = data.draw(st.integers(0, len(whole) - 1))
    bent = bytearray(whole)
    bent[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((CorruptObject, FormatTooNew)):
        decode_piece(bytes(bent), journal=5, number=1)
    with pytest.raises(CorruptObject):
        decode_piece(whole[:at], journal=5, number=1)
    with pytest.raises(CorruptObject):
        decode_piece(whole + b"x", journal=5, number=1)


def test_a_piece_of_another_place_is_refused() -> None:
    _, whole = encode_piece(Place(), [Safe(lsn=3)], journal=5, term=1, random=bytes(16))
    for journal, number in ((6, 1), (5, 2)):
        with pytest.raises(CorruptObject, match="its header names piece 1 of journal 5"):
            decode_piece(whole, journal=journal, number=number)


def test_pieces_of_equal_items_differ_by_their_random_number() -> None:
    one, _ = encode_piece(Place(), [], journal=5, term=1, random=bytes(16))
    other, _ = encode_piece(Place(), [], journal=5, term=1, random=b"1" * 16)
    assert one.digest != other.digest
    assert (
        not Place()
        .after(one)
        .continued_by(encode_piece(Place().after(other), [], journal=5, term=1, random=bytes(16))[0])
    )


def test_a_piece_of_a_lower_term_does_not_continue_the_chain() -> None:
    place = Place().after(encode_piece(Place(), [], journal=5, term=3, random=bytes(16))[0])
    late, _ = encode_piece(place, [], journal=5, term=2, random=bytes(16))
    assert not place.continued_by(late)


def test_names_sort_by_number() -> None:
    assert piece_key("prod", 12, 1042) == "prod/journals/12/00000000000000001042"
