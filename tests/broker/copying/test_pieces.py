"""A piece brings back what it was made of, or says that it cannot: no byte of it can be another unnoticed."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.copying.piece import (
    FILE_HEADER,
    PIECE_HEADER,
    FragmentBuilder,
    Piece,
    decode_piece,
    encode_piece,
    read_fragment,
)
from pydanube_broker.subscription.cursor import Attempts, CursorSnapshot
from pydanube_broker.subscription.handover import HandedConsumer, HandedRange, Handover
from pydanube_broker.topics.log_state import LogState, encode_head
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.errors import CorruptObject, FormatTooNew

steady = settings(derandomize=True, deadline=None, max_examples=100)

numbers = st.integers(0, 2**63 - 1)
times = st.none() | st.integers(0, 2**32 - 2)
held = st.builds(
    lambda start, count, left: HandedRange(start, start + count, left),
    st.integers(0, 99),
    st.integers(1, 9),
    times,
)
ranges = st.lists(held, max_size=3).map(tuple)
some_ranges = st.lists(held, min_size=1, max_size=3).map(tuple)
handovers = st.builds(
    Handover,
    slots=st.binary(max_size=3).map(lambda half: 2 * half),
    subscription_id=numbers,
    consumers=st.lists(
        st.builds(HandedConsumer, consumer=st.text(max_size=5), session=numbers, ranges=some_ranges),
        max_size=2,
    ).map(tuple),
    waiting=ranges,
    idle=st.lists(st.tuples(st.text(max_size=5), numbers), max_size=2).map(tuple),
)


def stored(base: int, count: int, epoch: int = 3) -> bytes:
    head = broker_part(base_offset=base, last_offset=base + count - 1, epoch=epoch, append_time_ms=5)
    return head + encode_batch([b"payload"] * count, producer_id=1, producer_epoch=1, first_sequence=base)


def state_of(topic_id: int, end: int, producers: int = 2, cursors: int = 2) -> LogState:
    state = LogState(topic_id, epoch=3, next_offset=end, opened=True)
    for number in range(producers):
        opening = state.producers.prepare(f"producer {number}", 70 + number)
        state.producers.appended(opening.producer_id, opening.epoch, 0, 2, 0, 9)
    for number in range(cursors):
        state.cursors[500 + number] = CursorSnapshot(
            floor=end, attempts=(Attempts(start=end, end=end + 1, deliveries=3, failures=1),)
        )
    return state


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    topic_id, first = draw(st.integers(1, 2**62)), draw(st.integers(0, 1000))
    batches, at = [], first
    for count in draw(st.lists(st.integers(1, 4), max_size=4)):
        at += draw(st.integers(0, 2))  # a hole
        batches.append(stored(at, count))
        at += count
    final = draw(st.booleans())
    return Piece(
        topic_id=topic_id,
        epoch=draw(st.integers(1, 99)),
        first_offset=first,
        end_offset=at,
        batches=tuple(batches),
        state=state_of(topic_id, at, draw(st.integers(0, 3)), draw(st.integers(0, 3))) if final else None,
        handovers=tuple(draw(st.lists(handovers, max_size=2, unique_by=lambda each: each.subscription_id)))
        if final
        else (),
    )


def facts(piece: Piece) -> tuple[object, ...]:
    state = None if piece.state is None else b"".join(encode_head([piece.state]))
    batches = tuple(bytes(batch) for batch in piece.batches)
    numbers = (piece.topic_id, piece.epoch, piece.first_offset, piece.end_offset)
    return (*numbers, batches, state, piece.handovers)


SMALL = Piece(
    topic_id=7,
    epoch=3,
    first_offset=10,
    end_offset=13,
    batches=(stored(10, 1), stored(11, 2)),
    state=state_of(7, 13),
    handovers=(
        Handover(
            subscription_id=500,
            consumers=(HandedConsumer(consumer="c", session=9, ranges=(HandedRange(11, 12, 30_000),)),),
            waiting=(HandedRange(12, 13, None),),
            idle=(("idle", 8),),
        ),
    ),
)


def built(*parts: Piece) -> bytes:
    builder = FragmentBuilder(5)
    for part in parts:
        builder.add(part)
    return builder.finish()


@steady
@given(parts=st.lists(pieces(), max_size=4))
def test_what_is_handed_over_is_what_comes_out(parts: list[Piece]) -> None:
    builder = FragmentBuilder(5)
    for part in parts:
        builder.add(part)
        assert facts(decode_piece(b"".join(encode_piece(part)))) == facts(part)
    assert [facts(piece) for piece in read_fragment(builder.finish())] == [facts(part) for part in parts]


def test_sessions_answer_and_cursors_count_as_they_did() -> None:
    [found] = read_fragment(built(SMALL))
    assert found.state is not None
    session = found.state.producers.resume(1, 1, 70)
    assert session.name == "producer 0"
    again = found.state.producers.check(1, 1, 0, 2)
    assert again is not None
    assert again.base_offset == 0
    assert found.state.cursors[500].attempts[0].deliveries == 3


def test_every_byte_that_is_another_is_noticed() -> None:
    data = built(SMALL, Piece(topic_id=8, epoch=1, first_offset=0, end_offset=0, batches=()))
    for at in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= bits
            with pytest.raises(CorruptObject):
                list(read_fragment(bytes(damaged)))


def test_every_length_that_is_another_is_noticed() -> None:
    data = built(SMALL)
    for end in range(len(data)):
        with pytest.raises(CorruptObject):
            list(read_fragment(data[:end]))
    with pytest.raises(CorruptObject):
        list(read_fragment(data + b"\0"))
    with pytest.raises(CorruptObject):
        decode_piece(data[FILE_HEADER.size :] + b"\0")


@settings(derandomize=True, deadline=None, max_examples=500)
@given(at=st.integers(0, 2**20), value=st.integers(0, 255))
def test_a_body_with_a_right_checksum_and_wrong_content_is_refused_or_read(at: int, value: int) -> None:
    """As somebody would make it who wants to harm: no error without a type, and nothing endless."""
    data = bytearray(built(SMALL))[FILE_HEADER.size :]
    body = PIECE_HEADER.size
    data[body + at % (len(data) - body)] = value
    data[body - 8 : body - 4] = crc32(data[body:]).to_bytes(4, "little")
    data[body - 4 : body] = crc32(data[: body - 4]).to_bytes(4, "little")
    with contextlib.suppress(CorruptObject, FormatTooNew):
        decode_piece(bytes(data))


def test_a_newer_format_says_so() -> None:
    data = bytearray(built(SMALL))
    data[8] = 2
    data[28:32] = crc32(data[:28]).to_bytes(4, "little")
    with pytest.raises(FormatTooNew):
        list(read_fragment(bytes(data)))


def held_by_an_older_build(piece: Piece) -> dict[int, Handover]:
    """What a build that does not know idle consumers reads: every entry in order, the last of a subscription counts."""
    data = b"".join(encode_piece(piece))
    state_bytes, held_bytes = PIECE_HEADER.unpack_from(data)[6:8]
    held = data[PIECE_HEADER.size + state_bytes :][:held_bytes]
    at = 4
    found: dict[int, Handover] = {}

    def ranges(count: int) -> tuple[HandedRange, ...]:
        nonlocal at
        at += 20 * count
        return tuple(
            HandedRange(start, end, None if left == 2**32 - 1 else left)
            for start, end, left in struct.iter_unpack("<QQI", held[at - 20 * count : at])
        )

    for _ in range(int.from_bytes(held[:4], "little")):
        number, consumers, waiting, slots = struct.unpack_from("<QIII", held, at)
        at += 20
        by = []
        for _ in range(consumers):
            session, name_bytes, count = struct.unpack_from("<QII", held, at)
            at += 16 + name_bytes
            by.append(
                HandedConsumer(
                    consumer=held[at - name_bytes : at].decode(), session=session, ranges=ranges(count)
                )
            )
        wait = ranges(waiting)
        found[number] = Handover(
            subscription_id=number, consumers=tuple(by), waiting=wait, slots=held[at : at + slots]
        )
        at += slots
    assert at == len(held)
    return found


def test_an_older_build_takes_what_consumers_hold_and_no_place_for_those_that_hold_nothing() -> None:
    assert held_by_an_older_build(SMALL) == {500: replace(SMALL.handovers[0], idle=())}
    only_idle = replace(SMALL, handovers=(Handover(subscription_id=500, idle=(("idle", 8),)),))
    (found,) = held_by_an_older_build(only_idle).values()
    assert found.end == 0, "it has no effect: `restore_handover` needs an offset"
