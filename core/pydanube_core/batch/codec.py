"""Payload compression, with bounded decompression."""

from __future__ import annotations

from functools import cache
from typing import Final

from pydanube_core.batch.layout import MAX_INFLATED_BYTES, Codec
from pydanube_core.errors import InvalidArgument

_NAMES: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


# The two compressors are imported at their first use: 3 ms that most programs save.
@cache
def _zstd_options() -> dict[int, int]:
    from pydanube_core import zstd

    # no batch needs a larger window
    return {zstd.DecompressionParameter.window_log_max: MAX_INFLATED_BYTES.bit_length() - 1}


def parse_codec(name: str) -> Codec:
    """Return the codec of that name. Raises `InvalidArgument` for any other."""
    try:
        return _NAMES[name]
    except KeyError:
        raise InvalidArgument(
            f"compression {name!r}: use none, lz4 or zstd", field="compression", value=name
        ) from None


def compress(data: bytes | memoryview, codec: Codec) -> bytes | memoryview:
    """Return the bytes as stored. Empty data stays empty with any codec, as `decompress` requires."""
    if not data:
        return data
    match codec:
        case Codec.NONE:
            return data
        case Codec.LZ4:
            import lz4.block

            return bytes(lz4.block.compress(data, store_size=False))
        case Codec.ZSTD:
            from pydanube_core import zstd

            return zstd.compress(data, level=3)


def decompress(data: bytes | memoryview, codec: Codec, raw_bytes: int) -> bytes | memoryview:
    """Return the raw bytes, exactly `raw_bytes` of them.

    The caller has checked the size against a bound. Neither codec allocates more than that, whatever size the compressed
    bytes claim. For zstd there must be one frame with nothing behind it, and a window of at most `MAX_INFLATED_BYTES`,
    because a frame may request a window far larger than its content.

    Raises `ValueError` if the bytes do not inflate to `raw_bytes` bytes.
    """
    if codec == Codec.NONE or not raw_bytes:
        raw: bytes | memoryview = data
    elif codec == Codec.LZ4:
        import lz4.block

        try:
            raw = lz4.block.decompress(data, uncompressed_size=raw_bytes)
        except (lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
            raise ValueError(f"lz4: {error}") from error
    else:
        from pydanube_core import zstd

        try:
            claimed = zstd.get_frame_info(data).decompressed_size
            if claimed not in (None, raw_bytes):
                raise ValueError(f"zstd: the frame has {claimed} bytes, the header {raw_bytes}")
            frame = zstd.ZstdDecompressor(options=_zstd_options())
            # one byte more than allowed, because otherwise the end of the frame is not read
            raw = frame.decompress(data, max_length=raw_bytes + 1)
        except zstd.ZstdError as error:
            raise ValueError(f"zstd: {error}") from error
        if len(raw) == raw_bytes and not (frame.eof and not frame.unused_data):
            raise ValueError("zstd: the frame does not end where the payload does")
    if len(raw) != raw_bytes:
        raise ValueError(f"payload inflates to {len(raw)} bytes, the header has {raw_bytes}")
    return raw
