"""The hot stream messages, encoded and decoded by hand.

A protobuf message whose `oneof` holds one `bytes` field is a tag, a length and the bytes. A message class would copy a
batch twice. Field numbers are those of `danube_stream.proto` (a test compares the two).

A delivery frame (`ConsumeResponse.delivery`), little-endian::

    u64 session · u32 parts · u32 reserved
    per part:  u64 first offset · u64 end offset · u32 delivery count · u32 stored bytes
    per part:  the stored batch (broker part, producer part, body)

A part stands for the messages of its batch with first ≤ offset < end. Consecutive parts may carry the same batch. Then
`stored bytes` of the later ones is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydanube_core.errors import InvalidArgument

Buffer = bytes | memoryview

PUBLISH_BATCH_FIELD: Final = 2  # PublishRequest.batch
CONSUME_DELIVERY_FIELD: Final = 2  # ConsumeResponse.delivery

FRAME: Final = struct.Struct("<QII")
PART: Final = struct.Struct("<QQII")
MAX_PARTS: Final = 65_536


class DeliveryPart(NamedTuple):
    """Messages [first, end) of one stored batch, each delivered for the `delivery_count`-th time."""

    first: int
    end: int
    delivery_count: int
    batch: Buffer


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes_field(field: int, parts: Sequence[Buffer]) -> bytes:
    """Encode a message with one bytes field made of `parts`, with one copy."""
    return b"".join((_varint(field << 3 | 2), _varint(sum(map(len, parts))), *parts))


def read_bytes_field(field: int, message: bytes) -> memoryview | None:
    """Return the bytes of a message that has only this field. None for any other message.

    Raises `InvalidArgument` if the tag is right and the length is not.
    """
    if not message or message[0] != field << 3 | 2:
        return None
    length = shift = 0
    for at in range(1, min(len(message), 6)):
        byte = message[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            if at + 1 + length != len(message):
                break
            return memoryview(message)[at + 1 :]
        shift += 7
    raise InvalidArgument(
        "a stream message is cut short or has more than one field", field="frame", value=len(message)
    )


def encode_delivery(session: int, parts: Sequence[tuple[int, int, int, Sequence[Buffer]]]) -> bytes:
    """Encode a whole `ConsumeResponse` with a delivery frame.

    Args:
        parts: (first offset, end offset, delivery count, buffers of the stored batch). No buffers: the same batch as
            the part before.
    """
    head = [FRAME.pack(session, len(parts), 0)]
    bodies: list[Buffer] = []
    for first, end, count, buffers in parts:
        head.append(PART.pack(first, end, count, sum(map(len, buffers))))
        bodies += buffers
    return write_bytes_field(CONSUME_DELIVERY_FIELD, head + bodies)


def decode_delivery(frame: Buffer) -> tuple[int, list[DeliveryPart]]:
    """Decode session and parts of a delivery frame (the bytes of the field, without tag and length).

    Raises `InvalidArgument` if lengths do not add up.
    """
    view = memoryview(frame)
    try:
        session, count, _ = FRAME.unpack_from(view)
        at = FRAME.size + count * PART.size
        if count > MAX_PARTS or at > len(view):
            raise InvalidArgument("a delivery frame is cut short", field="frame", value=len(view))
        parts: list[DeliveryPart] = []
        batch: Buffer = b""
        for i in range(count):
            first, end, delivery_count, stored = PART.unpack_from(view, FRAME.size + i * PART.size)
            if stored:
                batch = view[at : at + stored]
                at += stored
            elif not i:
                raise InvalidArgument(
                    "the first part of a delivery frame has no batch", field="frame", value=i
                )
            parts.append(DeliveryPart(first, end, delivery_count, batch))
    except struct.error as error:
        raise InvalidArgument("a delivery frame is cut short", field="frame", value=len(view)) from error
    if at != len(view):
        raise InvalidArgument("a delivery frame's lengths do not add up", field="frame", value=at)
    return session, parts
