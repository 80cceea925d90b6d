"""Encode a batch of one message, for programs that await each send. The bytes equal those of `encode_batch`, but take five
calls, and some more with a key or attributes.

Between two messages the code leaves the processor's cache, so the number of calls determines the time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final
from zlib import crc32

from pydanube_core.batch.encode import encode_batch, optional_columns
from pydanube_core.batch.layout import PRODUCER_MAGIC, PRODUCER_PART, PRODUCER_PART_BYTES, VERSION, Codec

# The producer part without its checksum, and the offsets of the payload column, which follow the checksum
_FRONT: Final = struct.Struct(PRODUCER_PART.format[:-1])
_OFFSETS: Final = struct.Struct("<II")
_OFFSETS_BYTES: Final = 8
_PLAIN: Final = int(Codec.NONE)

assert _FRONT.size == PRODUCER_PART_BYTES - 4


class LoneBatches:
    """Batches of one uncompressed payload each, of one producer and one schema."""

    __slots__ = ("_behind", "_columns", "_epoch", "_producer_id", "_schema", "_tails")

    def __init__(self, *, producer_id: int, producer_epoch: int, name: str, schema: tuple[int, int]) -> None:
        self._producer_id = producer_id
        self._epoch = producer_epoch
        self._schema = schema
        whole = encode_batch([bytes(8)], producers=((producer_id, name),))
        self._columns = PRODUCER_PART.unpack_from(whole)[5]
        self._behind = whole[PRODUCER_PART_BYTES + _OFFSETS_BYTES + 8 :]
        self._tails = tuple(bytes(-size & 7) + self._behind for size in range(8))

    def encode(
        self,
        payload: bytes,
        first_sequence: int,
        publish_time_ms: int,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> tuple[bytes, bytes, bytes]:
        """Return the batch in three pieces. Payload, key and attributes must not exceed the maximum of a batch."""
        size = len(payload)
        columns, tail = self._columns, self._tails[size & 7]
        if key is not None or attributes:
            more, data = optional_columns(key, attributes)
            columns |= more
            tail = bytes(-size & 7) + data + self._behind
        front = _FRONT.pack(
            PRODUCER_MAGIC, VERSION, _PLAIN, 0, 1, columns, size, size, self._producer_id, self._epoch, 0,
            first_sequence, publish_time_ms, *self._schema,
        )  # fmt: skip
        body = _OFFSETS.pack(0, size) + payload
        crc = crc32(tail, crc32(body, crc32(front)))
        return front + crc.to_bytes(4, "little"), body, tail
