"""Cursors as bytes, for journal records, heads and metadata.

Little-endian. A 6-byte header: magic `C`, kind (`S` snapshot, `D` delta), format version, a zero byte, then `u16`
zero; `u64` generation, `u64` floor, `u32` number of ranges, `u32` number of attempts; the ranges as pairs of `u64`;
the attempts as `u64` start, `u64` end, `u32` deliveries, `u32` failures. There is no checksum: records of the journal
and of heads have their own. A delta of an in-order consumer is 30 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Final

from pydanube_core.errors import CorruptJournal, FormatTooNew, InvalidArgument

from pydanube_broker.subscription.cursor import Attempts, CursorDelta, CursorSnapshot
from pydanube_broker.subscription.ranges import Range

VERSION: Final = 1
_HEAD: Final = struct.Struct("<ccBxHQQII")
_ATTEMPTS: Final = struct.Struct("<QQII")
_MAGIC: Final = b"C"
_SNAPSHOT: Final = b"S"
_DELTA: Final = b"D"

assert _HEAD.size == 30, "the header is part of the format"


def encode_snapshot(snapshot: CursorSnapshot) -> bytes:
    return _encode(_SNAPSHOT, snapshot)


def encode_delta(delta: CursorDelta) -> bytes:
    return _encode(_DELTA, delta)


def decode_snapshot(data: bytes | memoryview) -> CursorSnapshot:
    """
    Raises:
        FormatTooNew: written by a newer version.
        CorruptJournal: the bytes are not a snapshot.
    """
    generation, floor, acknowledged, attempts = _decode(_SNAPSHOT, data)
    try:
        return CursorSnapshot(
            generation=generation, floor=floor, acknowledged=acknowledged, attempts=attempts
        )
    except InvalidArgument as error:
        raise CorruptJournal(f"cursor snapshot: {error.message}") from error


def decode_delta(data: bytes | memoryview) -> CursorDelta:
    """Like `decode_snapshot`, for a delta."""
    generation, floor, acknowledged, attempts = _decode(_DELTA, data)
    return CursorDelta(generation=generation, floor=floor, acknowledged=acknowledged, attempts=attempts)


def _encode(kind: bytes, cursor: CursorSnapshot | CursorDelta) -> bytes:
    ranges: Sequence[Range] = cursor.acknowledged
    flat = list(chain.from_iterable(ranges))
    head = _HEAD.pack(
        _MAGIC, kind, VERSION, 0, cursor.generation, cursor.floor, len(ranges), len(cursor.attempts)
    )
    body = struct.pack(f"<{len(flat)}Q", *flat)
    counts = b"".join(_ATTEMPTS.pack(a.start, a.end, a.deliveries, a.failures) for a in cursor.attempts)
    return head + body + counts


def _decode(
    kind: bytes, data: bytes | memoryview
) -> tuple[int, int, tuple[Range, ...], tuple[Attempts, ...]]:
    if len(data) < _HEAD.size:
        raise CorruptJournal(f"cursor record: {len(data)} bytes are less than its header")
    magic, found, version, _, generation, floor, n_ranges, n_attempts = _HEAD.unpack_from(data)
    if magic != _MAGIC or found != kind:
        raise CorruptJournal(f"cursor record: starts with {bytes(data[:2])!r}, expected {_MAGIC + kind!r}")
    if version > VERSION:
        raise FormatTooNew(
            f"cursor record: version {version}, this program reads up to {VERSION}", value=version
        )
    at = _HEAD.size + 16 * n_ranges
    if len(data) != at + _ATTEMPTS.size * n_attempts:
        raise CorruptJournal(f"cursor record: {len(data)} bytes do not hold what its header counts")
    flat = struct.unpack_from(f"<{2 * n_ranges}Q", data, _HEAD.size)
    ranges = tuple(zip(flat[::2], flat[1::2], strict=True))
    try:
        attempts = tuple(
            Attempts(start=start, end=end, deliveries=deliveries, failures=failures)
            for start, end, deliveries, failures in _ATTEMPTS.iter_unpack(data[at:])
        )
    except InvalidArgument as error:
        raise CorruptJournal(f"cursor record: {error.message}") from error
    return generation, floor, ranges, attempts
