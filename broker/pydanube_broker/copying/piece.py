"""Pieces: the binary form of a part of a topic's log, sent from its owner to another broker (docs/data-formats.md#piece).

A piece has the messages `[first_offset, end_offset)` of one topic, as its owner of that epoch stored them. Batches are the
journal's, byte for byte. A piece with a hole covers offsets for which it has no batch. Pieces of one copy follow each
other without a gap. The last piece alone has the topic's state at its end (producer sessions with their
recent answers, cursors with redelivery counts) and the messages that each consumer session holds.

A fragment is a file of pieces of any number of topics. Brokers report their topics' states in a fragment
(`tier.topic_reports`). Brokers of the previous release moved topics in fragments.

Pure: bytes in, values out. Integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.errors import ClusterError, CorruptObject, FormatTooNew

from pydanube_broker.subscription.handover import HandedConsumer, HandedRange, Handover
from pydanube_broker.topics.log_state import LogState, decode_head, encode_state

Buffer = bytes | memoryview

VERSION: Final = 1
# Bytes of batches in one piece. A larger batch is a piece of its own. A receiver has one piece of a topic in memory.
PIECE_BYTES: Final = 1 << 20

_FILE_MAGIC: Final = b"DANUBEFR"
_PIECE_MAGIC: Final = b"DSec"
# magic | version, pieces | broker | reserved, crc32 of the bytes before
FILE_HEADER: Final = struct.Struct("<8sIIQII")
# magic, flags | topic id, epoch, first offset, end offset | state, held, batches, batch bytes | crc32 of body, of header
PIECE_HEADER: Final = struct.Struct("<4sIQQQQIIIIII")
_FINAL: Final = 1
_CRC_BYTES: Final = 4
_LENGTH: Final = struct.Struct("<I")
_SUBSCRIPTION: Final = struct.Struct("<QIII")  # id, consumers, waiting ranges, bytes of slots
_CONSUMER: Final = struct.Struct("<QII")  # session, name bytes, ranges
_HELD: Final = struct.Struct("<QQI")  # start, end, ms left
_FOR_EVER: Final = 0xFFFFFFFF

assert FILE_HEADER.size == 32
assert PIECE_HEADER.size == 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """See the module. `state` is None except in the last piece, where its `next_offset` is `end_offset`."""

    topic_id: int
    epoch: int
    first_offset: int
    end_offset: int
    batches: tuple[Buffer, ...]
    state: LogState | None = None
    handovers: tuple[Handover, ...] = ()

    def __post_init__(self) -> None:
        assert 0 <= self.first_offset <= self.end_offset
        assert self.state is None or self.state.next_offset == self.end_offset
        assert self.state is not None or not self.handovers, "only the last piece has handovers"


class FragmentBuilder:
    """Joins pieces into one fragment. `broker_id` is the writer, for people who read the header."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._buffers: list[Buffer] = []
        self._pieces = 0

    def add(self, piece: Piece) -> None:
        """Add a piece."""
        self._buffers += encode_piece(piece)
        self._pieces += 1

    def finish(self) -> bytes:
        """Return the bytes of the whole object: header and pieces."""
        header = FILE_HEADER.pack(_FILE_MAGIC, VERSION, self._pieces, self._broker_id, 0, 0)[:-_CRC_BYTES]
        return b"".join((header, crc32(header).to_bytes(_CRC_BYTES, "little"), *self._buffers))


def read_fragment(data: bytes) -> Iterator[Piece]:
    """Yield every piece of a whole object, in order, each read on demand.

    Raises:
        CorruptObject: the fragment is damaged, cut off, or longer than its header declares.
        FormatTooNew: a newer version wrote it.
    """
    view = memoryview(data)
    if len(view) < FILE_HEADER.size:
        raise corrupt_copy(f"{len(view)} bytes are less than its header")
    magic, version, pieces, _, reserved, crc = FILE_HEADER.unpack_from(view)
    if magic != _FILE_MAGIC or reserved or crc32(view[: FILE_HEADER.size - _CRC_BYTES]) != crc:
        raise corrupt_copy("its header is damaged")
    if version > VERSION:
        raise FormatTooNew(
            f"the fragment has format {version}, this version reads up to {VERSION}: use the newer version",
            value=version,
        )
    at = FILE_HEADER.size
    for _ in range(pieces):
        end = at + _piece_bytes(view, at)
        yield decode_piece(view[at:end])
        at = end
    if at != len(view):
        raise corrupt_copy(f"{len(view) - at} bytes lie behind its last piece")


def decode_piece(data: Buffer) -> Piece:
    """Parse one piece that fills these bytes exactly. Raises as `read_fragment`."""
    view = memoryview(data)
    size = _piece_bytes(view, 0)
    if size != len(view):
        raise corrupt_copy(f"a piece of {size} bytes lies in {len(view)}")
    _, flags, topic_id, epoch, first, end, state_bytes, held_bytes, count, _, body_crc, _ = (
        PIECE_HEADER.unpack_from(view)
    )
    body = view[PIECE_HEADER.size :]
    if crc32(body) != body_crc:
        raise corrupt_copy(f"topic {topic_id}: the body of a piece is damaged")
    try:
        state = _decode_state(body[:state_bytes], topic_id) if flags & _FINAL else None
        handovers = tuple(_decode_handovers(body[state_bytes : state_bytes + held_bytes]))
        batches = tuple(_decode_batches(body[state_bytes + held_bytes :], count))
        _check_batches(batches, first, end)
        _require(0 <= first <= end, "its offsets are out of order")
        _require(state is None or state.next_offset == end, "its state is not of its end")
        _require(state is not None or not (state_bytes or handovers), "a part of the state comes too early")
    except FormatTooNew:
        raise
    except (ClusterError, struct.error, UnicodeDecodeError, ValueError, AssertionError) as error:
        raise corrupt_copy(f"topic {topic_id}: a piece cannot be read: {error}") from error
    return Piece(
        topic_id=topic_id,
        epoch=epoch,
        first_offset=first,
        end_offset=end,
        batches=batches,
        state=state,
        handovers=handovers,
    )


def encode_piece(piece: Piece) -> list[Buffer]:
    """Return one piece as buffers to be joined. Batches are not copied."""
    state = b"" if piece.state is None else encode_state(piece.state)
    assert piece.state is None or piece.state.opened, "a topic that was never opened has nothing to hand over"
    held = _encode_handovers(piece.handovers) if piece.handovers else b""
    body: list[Buffer] = [state, held]
    for batch in piece.batches:
        body += (_LENGTH.pack(len(batch)), batch)
    crc = 0
    for buffer in body:
        crc = crc32(buffer, crc)
    header = PIECE_HEADER.pack(
        _PIECE_MAGIC,
        0 if piece.state is None else _FINAL,
        piece.topic_id,
        piece.epoch,
        piece.first_offset,
        piece.end_offset,
        len(state),
        len(held),
        len(piece.batches),
        sum(map(len, body[2:])),
        crc,
        0,
    )[:-_CRC_BYTES]
    return [header + crc32(header).to_bytes(_CRC_BYTES, "little"), *body]


def _piece_bytes(view: memoryview, at: int) -> int:
    """Return the length in bytes of the piece at byte `at`. Raises `CorruptObject` if it exceeds the view."""
    if at + PIECE_HEADER.size > len(view):
        raise corrupt_copy(f"it is cut off at byte {len(view)}")
    fields = PIECE_HEADER.unpack_from(view, at)
    stop = at + PIECE_HEADER.size
    if fields[0] != _PIECE_MAGIC or fields[1] & ~_FINAL or crc32(view[at : stop - _CRC_BYTES]) != fields[-1]:
        raise corrupt_copy(f"the header of a piece at byte {at} is damaged")
    state_bytes, held_bytes, _, batch_bytes = fields[6:10]
    size = PIECE_HEADER.size + int(state_bytes) + int(held_bytes) + int(batch_bytes)
    if at + size > len(view):
        raise corrupt_copy(f"it is cut off at byte {len(view)}")
    return size


def _decode_state(data: memoryview, topic_id: int) -> LogState:
    states = decode_head(data)
    _require(list(states) == [topic_id], "its state is of another topic")
    state = states[topic_id]
    _require(encode_state(state) == bytes(data), "its state has bytes behind its end")
    return state


def _encode_handovers(handovers: Sequence[Handover]) -> bytes:
    parts = [part for each in handovers for part in _parts(each)]
    pieces = [_LENGTH.pack(len(parts))]
    for each in parts:
        numbers = len(each.consumers), len(each.waiting), len(each.slots)
        pieces.append(_SUBSCRIPTION.pack(each.subscription_id, *numbers))
        for consumer in each.consumers:
            name = consumer.consumer.encode()
            pieces += (_CONSUMER.pack(consumer.session, len(name), len(consumer.ranges)), name)
            pieces += _encode_ranges(consumer.ranges)
        pieces += _encode_ranges(each.waiting)
        pieces.append(each.slots)
    return b"".join(pieces)


def _parts(handover: Handover) -> Iterator[Handover]:
    """Yield the consumers that hold nothing as a part of their own, in front of the others.

    Builds without them use the last part of a subscription, and one without ranges has no effect there.
    """
    if handover.idle:
        names = tuple(
            HandedConsumer(consumer=name, session=session, ranges=()) for name, session in handover.idle
        )
        yield Handover(subscription_id=handover.subscription_id, consumers=names)
    if handover.consumers or handover.waiting or handover.slots or not handover.idle:
        yield handover


def _encode_ranges(ranges: Iterable[HandedRange]) -> Iterator[bytes]:
    for start, end, left_ms in ranges:
        yield _HELD.pack(start, end, _FOR_EVER if left_ms is None else min(left_ms, _FOR_EVER - 1))


def _decode_handovers(data: memoryview) -> Iterator[Handover]:
    if not data:
        return
    (count,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size
    found: dict[int, Handover] = {}
    for _ in range(count):
        subscription_id, consumers, waiting, slots = _SUBSCRIPTION.unpack_from(data, at)
        at += _SUBSCRIPTION.size
        held_by = []
        for _ in range(consumers):
            session, name_bytes, ranges = _CONSUMER.unpack_from(data, at)
            at += _CONSUMER.size
            _require(at + name_bytes <= len(data), "the name of a consumer is cut off")
            name = bytes(data[at : at + name_bytes]).decode()
            at += name_bytes
            held_by.append(
                HandedConsumer(consumer=name, session=session, ranges=_decode_ranges(data, at, ranges))
            )
            at += ranges * _HELD.size
        still = _decode_ranges(data, at, waiting)
        at += waiting * _HELD.size
        _require(slots % 2 == 0 and at + slots <= len(data), "the slots of keys are cut off")
        before = found.get(subscription_id)
        found[subscription_id] = Handover(
            subscription_id=subscription_id,
            consumers=tuple(each for each in held_by if each.ranges),
            waiting=still,
            slots=bytes(data[at : at + slots]),
            idle=(
                *(() if before is None else before.idle),
                *((each.consumer, each.session) for each in held_by if not each.ranges),
            ),
        )
        at += slots
    _require(at == len(data), "the holdings of consumers have bytes behind their end")
    yield from found.values()


def _decode_ranges(data: memoryview, at: int, count: int) -> tuple[HandedRange, ...]:
    stop = at + count * _HELD.size
    _require(stop <= len(data), "the holdings of a consumer are cut off")
    found = []
    for start, end, left_ms in _HELD.iter_unpack(data[at:stop]):
        _require(start < end, "a consumer holds an empty range")
        found.append(HandedRange(start, end, None if left_ms == _FOR_EVER else left_ms))
    return tuple(found)


def _decode_batches(data: memoryview, count: int) -> Iterator[memoryview]:
    at = 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        _require(at + length <= len(data), "a batch is cut off")
        yield data[at : at + length]
        at += length
    _require(at == len(data), "its batches have bytes behind their end")


def _check_batches(batches: Iterable[memoryview], first: int, end: int) -> None:
    at = first
    for batch in batches:
        part = read_broker_part(batch[:BROKER_PART_BYTES])
        _require(at <= part.base_offset <= part.last_offset < end, "a batch is not where it belongs")
        at = part.last_offset + 1


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)


def corrupt_copy(why: str) -> CorruptObject:
    """Return the error for a copy that cannot be used."""
    return CorruptObject(f"a copy of a topic cannot be used: {why}", cause="piece", reason=why)
