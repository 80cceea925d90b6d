"""Compute zlib's CRC-32 of many short rows together, for the slots of keys. Needs numpy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]

# For longer or fewer keys a call of zlib per key is cheaper.
_SHORT_KEY_BYTES: Final = 32
_MANY_KEYS: Final = 64

_WORD_BYTES: Final = 8


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Return the contribution of a byte to a CRC-32, by the number of bytes that follow it."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, np.uint32(0xEDB88320) ^ (crc >> 1), crc >> 1).astype(np.uint32)
    tables = [crc]
    while len(tables) < _SHORT_KEY_BYTES:
        tables.append(crc[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.array(tables, np.uint32)


_CRC_OF_BYTE: Final = _crc_tables()
_CRC_OF_ZEROS: Final = np.array([crc32(bytes(n)) for n in range(_SHORT_KEY_BYTES + 1)], np.uint32)
# The last n bytes of a little-endian word.
_LAST_BYTES: Final = np.array([((1 << 64) - 1) >> 8 * (8 - n) << 8 * (8 - n) for n in range(9)], "<u8")


def crc32_each(data: Buffer, offsets: Ints) -> npt.NDArray[np.uint32]:
    """Return zlib's CRC-32 of every row. For many short rows, one byte of all rows is processed at a time.

    A checksum is that of equally many zeros, xor the contribution of each byte, which depends only on the number of bytes
    that follow it. So rows of all lengths are aligned at their ends. Bytes before the start of a row count as zeros, which
    contribute nothing.
    """
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max())
    if longest > _SHORT_KEY_BYTES or len(lengths) < _MANY_KEYS:
        view, edges = memoryview(data), offsets.tolist()
        return np.array([crc32(view[a:b]) for a, b in pairwise(edges)], np.uint32)
    padded_data = bytes(_WORD_BYTES) + bytes(data)  # so that a whole word ends at each byte
    words = np.ndarray((len(padded_data) - _WORD_BYTES + 1,), "<u8", padded_data, strides=(1,))
    crc: npt.NDArray[np.uint32] = _CRC_OF_ZEROS.take(lengths)
    for behind in range(0, longest, _WORD_BYTES):
        inside, ends = lengths, offsets[1:]
        if behind:
            inside, ends = np.maximum(lengths - behind, 0), np.maximum(ends - behind, 0)
        word = words[ends]
        word &= _LAST_BYTES.take(np.minimum(inside, _WORD_BYTES))
        octets = word.view(np.uint8).reshape(-1, _WORD_BYTES).T.astype(np.intp)
        for at in range(behind, min(longest, behind + _WORD_BYTES)):
            crc ^= _CRC_OF_BYTE[at].take(octets[_WORD_BYTES - 1 - at + behind])
    return crc
