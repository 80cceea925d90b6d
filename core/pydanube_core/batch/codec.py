"""Payload compression, bounded on the way out."""

from __future__ import annotations

from typing import Final

import lz4.block
import zstandard

from pydanube_core.batch.layout import Codec
from pydanube_core.errors import InvalidArgument

__all__ = ["compress", "decompress", "parse_codec"]

_NAMES: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def parse_codec(name: str) -> Codec:
    """The codec of that name; raises `InvalidArgument` for any other."""
    try:
        return _NAMES[name]
    except KeyError:
        raise InvalidArgument(
            f"compression {name!r}: use none, lz4 or zstd", field="compression", value=name
        ) from None


def compress(data: bytes, codec: Codec) -> bytes:
    match codec:
        case Codec.NONE:
            return data
        case Codec.LZ4:
            return bytes(lz4.block.compress(data, store_size=False))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3).compress(data)


def decompress(data: bytes | memoryview, codec: Codec, raw_bytes: int) -> bytes | memoryview:
    """The raw bytes, exactly `raw_bytes` of them.

    The size is the caller's, checked against a bound before: neither codec allocates more than it here, whatever
    the compressed bytes claim.

    Raises:
        ValueError: the bytes do not inflate to `raw_bytes` bytes.
    """
    if codec == Codec.NONE:
        raw: bytes | memoryview = data
    elif codec == Codec.LZ4:
        try:
            raw = lz4.block.decompress(data, uncompressed_size=raw_bytes) if raw_bytes else b""
        except (lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
            raise ValueError(f"lz4: {error}") from error
    else:
        try:
            # the frame header's own size is not trusted: a streaming reader stops after raw_bytes + 1
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
                raw = reader.read(raw_bytes + 1)
        except zstandard.ZstdError as error:
            raise ValueError(f"zstd: {error}") from error
    if len(raw) != raw_bytes:
        raise ValueError(f"payload inflates to {len(raw)} bytes, the header says {raw_bytes}")
    return raw
