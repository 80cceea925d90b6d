"""Payload compression, bounded on the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import lz4.block

from pydanube_core import zstd
from pydanube_core.batch.layout import MAX_INFLATED_BYTES, Codec
from pydanube_core.errors import InvalidArgument

# No batch has use for a larger window.
_ZSTD_OPTIONS: Final[Mapping[int, int]] = {
    zstd.DecompressionParameter.window_log_max: MAX_INFLATED_BYTES.bit_length() - 1
}

_NAMES: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def parse_codec(name: str) -> Codec:
    """Return the codec of that name; raises `InvalidArgument` for any other."""
    try:
        return _NAMES[name]
    except KeyError:
        raise InvalidArgument(
            f"compression {name!r}: use none, lz4 or zstd", field="compression", value=name
        ) from None


def compress(data: bytes | memoryview, codec: Codec) -> bytes | memoryview:
    """Return the bytes as stored. Nothing stays nothing, whatever the codec: `decompress` insists on it."""
    if not data:
        return data
    match codec:
        case Codec.NONE:
            return data
        case Codec.LZ4:
            return bytes(lz4.block.compress(data, store_size=False))
        case Codec.ZSTD:
            return zstd.compress(data, level=3)


def decompress(data: bytes | memoryview, codec: Codec, raw_bytes: int) -> bytes | memoryview:
    """Return the raw bytes, exactly `raw_bytes` of them.

    The size is the caller's, checked against a bound before: neither codec allocates more than it here, whatever
    the compressed bytes claim. A zstd frame must be one frame with nothing behind it, and its window at most
    `MAX_INFLATED_BYTES`: a frame may ask its reader for a window far beyond what it holds.

    Raises `ValueError`: the bytes do not inflate to `raw_bytes` bytes.
    """
    if codec == Codec.NONE or not raw_bytes:
        raw: bytes | memoryview = data
    elif codec == Codec.LZ4:
        try:
            raw = lz4.block.decompress(data, uncompressed_size=raw_bytes)
        except (lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
            raise ValueError(f"lz4: {error}") from error
    else:
        try:
            claimed = zstd.get_frame_info(data).decompressed_size
            if claimed not in (None, raw_bytes):
                raise ValueError(f"zstd: the frame says {claimed} bytes, the header {raw_bytes}")
            frame = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
            # one byte of room more than there may be: else the end of the frame is not read
            raw = frame.decompress(data, max_length=raw_bytes + 1)
        except zstd.ZstdError as error:
            raise ValueError(f"zstd: {error}") from error
        if len(raw) == raw_bytes and not (frame.eof and not frame.unused_data):
            raise ValueError("zstd: the frame does not end where the payload does")
    if len(raw) != raw_bytes:
        raise ValueError(f"payload inflates to {len(raw)} bytes, the header says {raw_bytes}")
    return raw
