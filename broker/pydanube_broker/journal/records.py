"""Journal records: the 48 bytes before every body, and how recovery distinguishes damage from a torn end.

All topics of a broker share one log, cut into segment files. An LSN is a byte address in the log that the segments
form together: a segment with base B holds the addresses [B, B + segment bytes). Little-endian::

    segment file   64 bytes of file header, the head's record, further records, zeros up to the end
    record         48 bytes of header, body, zeros up to a multiple of 8

A header has its own checksum, its own LSN (a record at any other address is invalid) and `synced_lsn`: everything
below that address was on stable storage when the record was written. Recovery uses it as proof. A batch's body is
covered by the checksums of its broker and producer parts, and is summed once, by its producer. Every other body is
covered by `body_crc`.

A sector of 512 bytes that was lost in a power cut reads as zeros, but a body may also contain sectors of zeros (a
column of empty keys). So the header holds their number: with more than that, the record is torn. With the same
number and a wrong checksum, it is damaged. The header itself has no part of zeros wherever a sector ends: it begins
with one magic number and ends with another.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final
from zlib import crc32

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part, read_producer_part
from pydanube_core.batch.layout import MAX_COPY_BYTES
from pydanube_core.errors import ClusterError

Buffer = bytes | memoryview

# magic, kind, flags, body bytes | lsn | synced lsn | topic id | body crc32, blank sectors | end magic, header crc32
_HEADER: Final = struct.Struct("<HBBIQQQIIII")
HEADER_BYTES: Final = _HEADER.size
HEADER_CRC_AT: Final = HEADER_BYTES - 4
END_MAGIC: Final = 0x4E504F52
MAGIC: Final = 0xDA11
MAGIC_BYTES: Final = MAGIC.to_bytes(2, "little")

# magic, format version, base lsn, segment bytes, reserved …, crc32
_FILE: Final = struct.Struct("<8sIIQQ24xII")
FILE_HEADER_BYTES: Final = _FILE.size
FILE_MAGIC: Final = b"DANUBEJL"
FORMAT_VERSION: Final = 1

MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # for a head of many topics. Batches are far smaller
SECTOR: Final = 512  # bytes: the smallest unit that any disk writes atomically
_BLANK: Final = bytes(SECTOR)
FLAG_SEGMENT_END: Final = 1  # on a mark: the next record is the head of the next segment

assert HEADER_BYTES == 48
assert HEADER_BYTES % 8 == 0
assert FILE_HEADER_BYTES == 64
assert MAX_COPY_BYTES + BROKER_PART_BYTES < MAX_BODY_BYTES


class RecordKind(IntEnum):
    """The kinds of records. They contain ids, so a topic created again under its name is distinct from the old one."""

    BATCH = 1
    CURSOR = 2
    TRIM_PREFIX = 3
    TRUNCATE_SUFFIX = 4
    TOPIC_OPEN = 5
    TOPIC_CLOSE = 6
    HEAD = 7
    MARK = 8
    PRODUCER = 9
    SESSION = 10
    CHECKPOINT = 11
    RELEASE = 12
    ADOPT = 13


class Place(Enum):
    """Where records of a kind may be."""

    SEGMENT_START = "first of a segment, and nowhere else"
    JOURNAL = "anywhere behind it, about no topic"
    OPEN_TOPIC = "anywhere behind the TOPIC_OPEN of its topic, and before its TOPIC_CLOSE"
    TOPIC = "anywhere behind the first; begins or ends its topic"
    NEVER = "not written by this version"


@dataclass(frozen=True, slots=True)
class KindRule:
    """One row of the table of kinds. `replayed` describes the effect of the record in recovery."""

    place: Place
    replayed: str


RULES: Final[dict[RecordKind, KindRule]] = {
    RecordKind.HEAD: KindRule(Place.SEGMENT_START, "all state of all topics; recovery begins at the newest"),
    RecordKind.CHECKPOINT: KindRule(
        Place.SEGMENT_START, "the same, in a file of its own that the body names"
    ),
    RecordKind.MARK: KindRule(
        Place.JOURNAL, "nothing: its header names the end of the stable bytes before it"
    ),
    RecordKind.TOPIC_OPEN: KindRule(
        Place.TOPIC, "the topic exists from here on, with an epoch and a start offset"
    ),
    RecordKind.TOPIC_CLOSE: KindRule(Place.TOPIC, "the topic ends, with all records about it"),
    RecordKind.RELEASE: KindRule(
        Place.TOPIC,
        "another broker owns the topic up to an epoch and an offset: the records here are ignored",
    ),
    RecordKind.ADOPT: KindRule(
        Place.OPEN_TOPIC,
        "the topic was handed over as the batches since its TOPIC_OPEN, in the state that is in here",
    ),
    RecordKind.BATCH: KindRule(
        Place.OPEN_TOPIC, "its messages are the topic's next; its producer has sent them"
    ),
    RecordKind.SESSION: KindRule(
        Place.OPEN_TOPIC, "a producer session: opened here or elsewhere. The last record counts"
    ),
    RecordKind.CURSOR: KindRule(
        Place.OPEN_TOPIC, "a change of one subscription's cursor, added to the former one"
    ),
    RecordKind.TRIM_PREFIX: KindRule(Place.OPEN_TOPIC, "messages below its offset are dropped"),
    RecordKind.TRUNCATE_SUFFIX: KindRule(
        Place.NEVER, "reserved for replicas, which drop messages without a quorum"
    ),
    RecordKind.PRODUCER: KindRule(Place.NEVER, "as SESSION, from before there were tokens: still read"),
}
"""The position and meaning of every kind. The tests check journals of real brokers against it."""

SEGMENT_STARTS: Final = tuple(kind for kind, rule in RULES.items() if rule.place is Place.SEGMENT_START)
WITHOUT_TOPIC: Final = tuple(
    kind for kind, rule in RULES.items() if rule.place in (Place.SEGMENT_START, Place.JOURNAL)
)


@dataclass(frozen=True, slots=True)
class RecordHeader:
    kind: RecordKind
    flags: int
    lsn: int
    synced_lsn: int
    topic_id: int
    body_bytes: int
    body_crc: int
    blank_sectors: int = 0


def record_bytes(body_bytes: int) -> int:
    """Return the length of a whole record in the file."""
    return (HEADER_BYTES + body_bytes + 7) & ~7


def encode_header(
    kind: int,
    lsn: int,
    synced_lsn: int,
    topic_id: int,
    body_bytes: int,
    body_crc: int,
    flags: int = 0,
    blank: int = 0,
) -> bytes:
    assert body_bytes <= MAX_BODY_BYTES, "recovery would take this record for damage"
    raw = _HEADER.pack(
        MAGIC, kind, flags, body_bytes, lsn, synced_lsn, topic_id, body_crc, blank, END_MAGIC, 0
    )[:HEADER_CRC_AT]
    return raw + crc32(raw).to_bytes(4, "little")


def read_header(data: Buffer, at: int, lsn: int) -> RecordHeader | None:
    """Parse the header at byte `at`, which must contain the address `lsn`. Return None if it is not valid."""
    if at + HEADER_BYTES > len(data):
        return None
    magic, kind, flags, body_bytes, own_lsn, synced, topic, body_crc, blank, end, crc = _HEADER.unpack_from(
        data, at
    )
    if magic != MAGIC or end != END_MAGIC or own_lsn != lsn or crc32(data[at : at + HEADER_CRC_AT]) != crc:
        return None
    if kind not in RecordKind._value2member_map_ or body_bytes > MAX_BODY_BYTES or synced > lsn:
        return None
    return RecordHeader(RecordKind(kind), flags, own_lsn, synced, topic, body_bytes, body_crc, blank)


def blank_sectors(at: int, before: int, data: Buffer) -> int:
    """Return the number of sectors of a record that contain only zeros.

    Args:
        at: byte of the file at which the record begins.
        before: bytes of the record in front of `data`. No sector among them is blank.
        data: the rest of the record, with or without its padding.
    """
    start = -(at + before) % SECTOR  # the first sector that holds only `data`
    length = len(data)
    if start >= length:
        return 0
    raw = data if isinstance(data, bytes) else bytes(data)
    last = start + (length - start - 1) // SECTOR * SECTOR
    blank = int(raw.count(0, last) == length - last)
    # A search for 512 zeros advances in steps of 512 through other bytes: 5 µs per megabyte of text.
    found = raw.find(_BLANK, start, last)
    while found >= 0:
        piece = found + (start - found) % SECTOR
        while piece < last and raw.startswith(_BLANK, piece):
            blank += 1
            piece += SECTOR
        found = raw.find(_BLANK, piece, last)
    return blank


def verify_body(header: RecordHeader, body: Buffer) -> bool:
    """Return whether the body is undamaged."""
    if len(body) != header.body_bytes:
        return False
    if header.kind is not RecordKind.BATCH:
        return crc32(body) == header.body_crc
    try:
        read_broker_part(body[:BROKER_PART_BYTES])
        read_producer_part(body[BROKER_PART_BYTES:])
    except ClusterError:
        return False
    return True


def encode_file_header(base_lsn: int, segment_bytes: int) -> bytes:
    raw = _FILE.pack(FILE_MAGIC, FORMAT_VERSION, 0, base_lsn, segment_bytes, 0, 0)[:-4]
    return raw + crc32(raw).to_bytes(4, "little")


def read_file_header(data: Buffer) -> tuple[int, int, int] | None:
    """Return (format version, base LSN, segment bytes) of a segment file. None if the header is not valid."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, _, base, segment_bytes, _, crc = _FILE.unpack_from(data)
    if magic != FILE_MAGIC or crc32(data[: FILE_HEADER_BYTES - 4]) != crc:
        return None
    return version, base, segment_bytes
