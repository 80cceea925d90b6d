"""Read a segment's records fast: in columns, thousands at a time.

A full segment of lone messages holds 200 000 records. Read one by one, as objects, they took 4 s, and a start may have
to read several segments. In columns they take a quarter of a second. `records` defines the format. A test compares the
two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
from pydanube_core.batch import BROKER_PART_BYTES, PRODUCER_PART_BYTES
from pydanube_core.batch.layout import BROKER_MAGIC, PRODUCER_MAGIC, VERSION

from pydanube_broker.journal.records import (
    END_MAGIC,
    FLAG_SEGMENT_END,
    HEADER_BYTES,
    HEADER_CRC_AT,
    MAGIC,
    MAX_BODY_BYTES,
    RecordHeader,
    RecordKind,
    record_bytes,
)

U64Array = npt.NDArray[np.uint64]

_CHUNK: Final = 8192  # records checked together: their columns stay in the CPU's cache
_START: Final = struct.Struct("<HxxI")  # magic and body bytes of a header
_BROKER_CRC_AT: Final = BROKER_PART_BYTES - 4
_PRODUCER_CRC_AT: Final = PRODUCER_PART_BYTES - 4
_LEAST_BATCH: Final = BROKER_PART_BYTES + PRODUCER_PART_BYTES
_BROKER_START: Final = int.from_bytes(BROKER_MAGIC + VERSION.to_bytes(2, "little"), "little")
_PRODUCER_START: Final = int.from_bytes(PRODUCER_MAGIC + VERSION.to_bytes(2, "little"), "little")

# Positions in words of 8 bytes, the alignment of records and parts.
_BODY: Final = HEADER_BYTES // 8
assert HEADER_BYTES % 8 == BROKER_PART_BYTES % 8 == PRODUCER_PART_BYTES % 8 == 0


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive valid records. All columns have the same length.

    `first`, `last` and `time_ms` are a batch's offsets and append time, and mean nothing for other kinds.
    """

    position: list[int]  # byte of the segment at which the record begins
    kind: U64Array
    flags: U64Array
    body_bytes: U64Array
    lsn: U64Array
    synced_lsn: U64Array
    topic_id: U64Array
    body_crc: U64Array
    blank_sectors: U64Array
    first: U64Array
    last: U64Array
    time_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.position)

    @property
    def end(self) -> int:
        """Return the address after the last record."""
        return int(self.lsn[-1]) + record_bytes(int(self.body_bytes[-1]))

    def header(self, i: int) -> RecordHeader:
        return RecordHeader(
            RecordKind(int(self.kind[i])),
            int(self.flags[i]),
            int(self.lsn[i]),
            int(self.synced_lsn[i]),
            int(self.topic_id[i]),
            int(self.body_bytes[i]),
            int(self.body_crc[i]),
            int(self.blank_sectors[i]),
        )

    def head(self, n: int) -> Records:
        """Return the first `n` records."""
        return Records(*(getattr(self, name)[:n] for name in self.__slots__))


def scan(raw: bytes, base: int, start: int, *, bodies: bool) -> Iterator[Records | int]:
    """Read the records of a segment from address `start` on.

    Args:
        raw: the whole segment, which begins at address `base`.
        bodies: whether to verify bodies too, and not only headers and the broker parts of batches.

    Yields:
        Records, and at the end the address of the first invalid record, unless a mark ended the segment.
    """
    words = np.frombuffer(raw, "<u8")
    at, length = start - base, len(raw)
    while True:
        positions, at = _chain(raw, at, length)
        if not positions:
            yield base + at
            return
        records = _valid(raw, words, base, positions, bodies=bodies)
        n = len(records)
        if n:
            ends = np.flatnonzero(
                (records.kind == RecordKind.MARK) & ((records.flags & np.uint64(FLAG_SEGMENT_END)) != 0)
            )
            if len(ends):
                yield records.head(int(ends[0]) + 1)
                return
            yield records
        if n < len(positions):
            yield base + positions[n]
            return


def _chain(raw: bytes, at: int, length: int) -> tuple[list[int], int]:
    """Return the positions of records, assuming that all headers state correct lengths, and the next position."""
    positions: list[int] = []
    unpack = _START.unpack_from
    while len(positions) < _CHUNK and at + HEADER_BYTES <= length:
        magic, body_bytes = unpack(raw, at)
        if magic != MAGIC:
            break
        positions.append(at)
        at += (HEADER_BYTES + body_bytes + 7) & ~7
    return positions, at


def _valid(raw: bytes, words: U64Array, base: int, positions: list[int], *, bodies: bool) -> Records:
    """Return the leading records that are valid."""
    place = np.array(positions, dtype=np.int64)
    word = place >> 3
    w0, lsn, synced, topic_id, w4, w5 = (words[word + i] for i in range(_BODY))
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    kind = w0 >> np.uint64(16) & np.uint64(0xFF)
    body_bytes = w0 >> half
    room = np.uint64(len(raw) - HEADER_BYTES) - place.astype(np.uint64)
    crcs = np.array([crc32(raw[at : at + HEADER_CRC_AT]) for at in positions], dtype=np.uint64)
    good = (
        (lsn == place.astype(np.uint64) + np.uint64(base))
        & (synced <= lsn)
        & (kind >= min(RecordKind))
        & (kind <= max(RecordKind))
        & (body_bytes <= MAX_BODY_BYTES)
        & (body_bytes + np.uint64(7) & ~np.uint64(7) <= room)
        & (w5 & low == END_MAGIC)
        & (w5 >> half == crcs)
    )
    batch = kind == RecordKind.BATCH
    good &= ~batch | (body_bytes >= _LEAST_BATCH)
    # Bodies shorter than a batch's are read beyond their end, but never beyond the segment.
    inside = np.minimum(word + _BODY, len(words) - BROKER_PART_BYTES // 8)
    start, first, last, _, time_ms, crc = (words[inside + i] for i in range(BROKER_PART_BYTES // 8))
    at_broker = [at + HEADER_BYTES for at in positions]
    crcs = np.array([crc32(raw[at : at + _BROKER_CRC_AT]) for at in at_broker], dtype=np.uint64)
    good &= ~batch | ((crc >> half == crcs) & (start & np.uint64(0xFFFFFFFFFFFF) == _BROKER_START))
    n = len(good) if good.all() else int(good.argmin())
    if bodies:
        n = _bodies_valid(raw, words, positions[:n], batch, body_bytes, w4 & low)
    records = Records(
        positions,
        kind,
        w0 >> np.uint64(24) & np.uint64(0xFF),
        body_bytes,
        lsn,
        synced,
        topic_id,
        w4 & low,
        w4 >> half,
        first,
        last,
        time_ms.view(np.int64),
    )
    return records if n == len(positions) else records.head(n)


def _bodies_valid(
    raw: bytes,
    words: U64Array,
    positions: list[int],
    batch: npt.NDArray[np.bool_],
    body_bytes: U64Array,
    body_crc: U64Array,
) -> int:
    """Return the number of leading bodies that are undamaged."""
    view = memoryview(raw)
    for i, (at, is_batch, size, crc) in enumerate(
        zip(positions, batch.tolist(), body_bytes.tolist(), body_crc.tolist(), strict=False)
    ):
        body = at + HEADER_BYTES
        if is_batch:
            part = body + BROKER_PART_BYTES
            word = int(words[(part + _PRODUCER_CRC_AT) >> 3])
            if (
                word >> 32
                != crc32(
                    view[part + PRODUCER_PART_BYTES : body + size],
                    crc32(view[part : part + _PRODUCER_CRC_AT]),
                )
                or int(words[part >> 3]) & 0xFFFFFFFFFFFF != _PRODUCER_START
            ):
                return i
        elif crc != crc32(view[body : body + size]):
            return i
    return len(positions)
