"""The batch on the wire, in the journal and in a delivery: the table of its bytes (docs/design.md#3-the-batch).

Little-endian. A stored batch is two fixed parts and a body::

    broker part     48 bytes   written by the topic's owner, with its own checksum
    producer part   72 bytes   written once, by the producer
    body                       columns, each starting on a multiple of 8 counted from the body's start

A producer sends the producer part and the body, and the owner puts the broker part in front. The producer's checksum
covers its part up to the checksum field and the body *as stored*, so it is valid from the producer's memory to the
consumer's, compressed or not.

A bitmap names the columns of the batch, which are in the order of their bits. A variable-length column is
`int32[n + 1]` offsets, padded to 8, then the bytes, padded to 8. This is Arrow's layout, wrapped without a copy.

====================  ===  ==========================================================================
column                bit  bytes
====================  ===  ==========================================================================
payload                0   offsets (of the raw bytes), then `stored_bytes` bytes, compressed by `codec`
key                    1   validity bitmap (LSB first, 1 = has a key), then variable-length. "" is a key
attributes             2   `int32[n + 1]` entry offsets, then keys and values, both variable-length (Arrow's map)
publish time           3   `int32[n]`: milliseconds after `first_publish_time_ms`, may be negative
producers              4   `uint32` k, `uint32` 0, `uint64[k]` ids, names variable-length
producer index         5   `int32[n]` into the producers' table, absent if the table has one row
sequence               6   `int64[n]`, if absent `first_sequence + i`
schemas                7   `uint32` k, `uint32` 0, `uint64[k]` ids, `uint32[k]` versions, then an `int32[n]` index
offset delta           8   `uint32[n]`, strictly rising from 0, if absent `i`
====================  ===  ==========================================================================
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

# magic, version, flags, base offset, last offset, owner epoch, append time ms, reserved, crc32 of the bytes before
BROKER_PART: Final = struct.Struct("<4sHHQQQqII")
BROKER_MAGIC: Final = b"DBrk"
BROKER_PART_BYTES: Final = BROKER_PART.size

# magic, version, codec, flags, count, columns, raw payload bytes, stored payload bytes, producer id,
# producer epoch, reserved, first sequence, first publish time ms, schema id, schema version, crc32
PRODUCER_PART: Final = struct.Struct("<4sHBBIIIIQIIQqQII")
PRODUCER_MAGIC: Final = b"DBat"
PRODUCER_PART_BYTES: Final = PRODUCER_PART.size

VERSION: Final = 1
# Flag of the broker part: a broker cut the batch out of a larger one, and wrote a new producer part
FLAG_RESEALED: Final = 1

BATCH_TARGET_BYTES: Final = 1 << 20  # a producer's maximum target
MAX_BATCH_BYTES: Final = 4_100_000  # one message of the largest policy (4 000 000) with its columns
# Maximum of a broker's copy, because dead letters and replays add attributes
MAX_COPY_BYTES: Final = MAX_BATCH_BYTES + 16 * 1024
FRAME_LIMIT_BYTES: Final = 4 * 1024 * 1024  # gRPC's default inbound limit in foreign clients
MAX_BATCH_MESSAGES: Final = 65_536
# Base offset of a duplicate that is older than the batches a session remembers
UNKNOWN_OFFSET: Final = (1 << 64) - 1
MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024  # raw payload bytes of a batch, against decompression bombs

assert BROKER_PART_BYTES == 48
assert PRODUCER_PART_BYTES == 72
assert BROKER_PART_BYTES % 8 == 0
assert PRODUCER_PART_BYTES % 8 == 0
assert BATCH_TARGET_BYTES < MAX_BATCH_BYTES < MAX_COPY_BYTES < FRAME_LIMIT_BYTES - 4096


class Codec(IntEnum):
    """The compression of the payload bytes. Other columns are never compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class BatchColumn(IntEnum):
    """The bits of the column bitmap. Not an IntFlag, whose `&` creates an enum member each time, ≈ 1 µs."""

    PAYLOAD = 1 << 0
    KEY = 1 << 1
    ATTRIBUTES = 1 << 2
    PUBLISH_TIME = 1 << 3
    PRODUCERS = 1 << 4
    PRODUCER_INDEX = 1 << 5
    SEQUENCE = 1 << 6
    SCHEMAS = 1 << 7
    OFFSET_DELTA = 1 << 8


KNOWN_COLUMNS: Final = int(sum(BatchColumn))


def padded(length: int) -> int:
    """Return `length` rounded up to a multiple of 8."""
    return (length + 7) & ~7
