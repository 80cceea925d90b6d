"""Encode frames (RFC 9113 sections 4 and 6). Received frames are decoded in place, by `connection`."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from pydanube_core.http2.codes import ErrorCode, FrameType, SettingId

#: length (16 and 8 bits), type, flags, stream
FRAME_HEADER: Final = Struct(">HBBBI")
FRAME_HEADER_BYTES: Final = 9
_WITH_NUMBER: Final = Struct(">HBBBII")
SETTING: Final = Struct(">HI")

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

assert FRAME_HEADER.size == FRAME_HEADER_BYTES


def data_header(stream_id: int, length: int, *, end: bool) -> bytes:
    """Return the header of a DATA frame of `length` bytes."""
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, FrameType.DATA, END_STREAM if end else 0, stream_id)


def headers(stream_id: int, block: bytes, *, end: bool, max_frame_bytes: int) -> bytes:
    """Encode HEADERS, with CONTINUATION frames if the block exceeds one frame."""
    flags = END_STREAM if end else 0
    size = len(block)
    if size <= max_frame_bytes:
        return (
            FRAME_HEADER.pack(size >> 8, size & 0xFF, FrameType.HEADERS, flags | END_HEADERS, stream_id)
            + block
        )
    pieces, kind = [], FrameType.HEADERS
    for start in range(0, size, max_frame_bytes):
        piece = block[start : start + max_frame_bytes]
        if start + max_frame_bytes >= size:
            flags |= END_HEADERS
        pieces.append(FRAME_HEADER.pack(len(piece) >> 8, len(piece) & 0xFF, kind, flags, stream_id) + piece)
        kind, flags = FrameType.CONTINUATION, 0
    return b"".join(pieces)


def settings(values: Iterable[tuple[SettingId, int]]) -> bytes:
    body = b"".join(SETTING.pack(key, value) for key, value in values)
    return FRAME_HEADER.pack(len(body) >> 8, len(body) & 0xFF, FrameType.SETTINGS, 0, 0) + body


def window_update(stream_id: int, increment: int) -> bytes:
    return _WITH_NUMBER.pack(0, 4, FrameType.WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return _WITH_NUMBER.pack(0, 4, FrameType.RST_STREAM, 0, stream_id, code)


def ping(data: bytes, *, ack: bool) -> bytes:
    return FRAME_HEADER.pack(0, 8, FrameType.PING, ACK if ack else 0, 0) + data


def goaway(last_stream_id: int, code: ErrorCode, why: str) -> bytes:
    text = why.encode()[:200]
    body = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text
    return FRAME_HEADER.pack(0, len(body), FrameType.GOAWAY, 0, 0) + body


SETTINGS_ACK: Final = FRAME_HEADER.pack(0, 0, FrameType.SETTINGS, ACK, 0)
