"""Received header blocks: remove padding and priority, and join CONTINUATION frames."""

from __future__ import annotations

from typing import Final

from pydanube_core.http2 import frames
from pydanube_core.http2.codes import ConnectionFailure, ErrorCode, FrameType
from pydanube_core.http2.limits import Limits

_LARGEST_ID: Final = (1 << 31) - 1


class PartialBlock:
    """A header block that CONTINUATION frames complete. No other frame may come in between."""

    __slots__ = ("_count", "_parts", "flags", "size", "stream_id")

    def __init__(self, stream_id: int, flags: int, first: bytes) -> None:
        self.stream_id = stream_id
        self.flags = flags  # of the HEADERS frame
        self._parts = [first]
        self.size = len(first)
        self._count = 0

    def add(self, kind: int, flags: int, stream_id: int, payload: bytes, limits: Limits) -> bytes | None:
        """Add a frame. Return the whole block if the frame is the last one.

        Raises `ConnectionFailure` for another frame, and if the block exceeds a limit.
        """
        if kind != FrameType.CONTINUATION or stream_id != self.stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "header_block_interrupted")
        self._count += 1
        self.size += len(payload)
        if self._count > limits.continuations or self.size > limits.header_block_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "continuation_flood")
        self._parts.append(payload)
        return b"".join(self._parts) if flags & frames.END_HEADERS else None


def unwrapped(flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return a HEADERS payload without padding and priority. Raises `ConnectionFailure` if these are invalid."""
    try:
        if flags & frames.PADDED:
            padding = payload[0]
            if padding >= len(payload):
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "padding_too_large")
            payload = payload[1 : len(payload) - padding]
    except IndexError:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "headers_too_short") from None
    if flags & frames.PRIORITIZED:
        if len(payload) < 5:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "headers_too_short")
        if int.from_bytes(payload[:4], "big") & _LARGEST_ID == stream_id:
            # A stream error by RFC 7540 5.3.1, for which the block would still have to be decoded. No valid client
            # sends this, so it ends the connection.
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "depends_on_itself")
        payload = payload[5:]
    return payload
