"""The standard library's zstd, or its backport."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import (
        DecompressionParameter,
        ZstdDecompressor,
        ZstdError,
        compress,
        decompress,
        get_frame_info,
    )
else:  # a fortieth of what zstandard takes on disk
    from backports.zstd import (
        DecompressionParameter,
        ZstdDecompressor,
        ZstdError,
        compress,
        decompress,
        get_frame_info,
    )

__all__ = [
    "DecompressionParameter",
    "ZstdDecompressor",
    "ZstdError",
    "compress",
    "decompress",
    "get_frame_info",
]
