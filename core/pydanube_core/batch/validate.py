"""Validate a batch on receipt, before an offset is assigned: everything that later code relies on without checking again.

The checksum proves only that the bytes did not change since the producer computed it. A hostile or broken producer can
checksum invalid data, and one decreasing offset in a column that Arrow wraps without a copy crashes the process
(`experiments/hostile_batch.py`). So the journal, the cold tier and every consumer may rely on these guarantees:

- The columns follow each other without a gap, end where the batch ends, and are padded with zeros.
- Every offset array starts at 0, never decreases, and ends at the length of its bytes.
- Payloads inflate to exactly `raw_bytes`, and none is larger than the policy allows.
- Keys, attributes and producers' names are UTF-8, entry by entry. A message without a key has no key bytes.
- An index points into its table. Tables have 1 to `count` rows. A producer index exists exactly if there are two or more.
- Sequences, offset deltas and publish times are in their ranges. Reserved fields are 0.

Vectorised: ≈ 7 µs beside the checksum for 2 000 messages without optional columns (`benchmarks/batch_codec.py`). Needs
numpy. Only the broker imports it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pydanube_core.batch.codec import decompress
from pydanube_core.batch.layout import (
    MAX_BATCH_BYTES,
    MAX_INFLATED_BYTES,
    PRODUCER_PART_BYTES,
    BatchColumn,
    Codec,
    padded,
)
from pydanube_core.batch.plain import MAX_PUBLISH_TIME_MS, MAX_SEQUENCE, is_plain
from pydanube_core.batch.view import ProducerPart, read_producer_part
from pydanube_core.errors import BatchTooLarge, InvalidArgument, MessageTooLarge

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]

MAX_OFFSET_DELTA: Final = (1 << 31) - 1

_RESERVED: Final = slice(36, 40)  # of the producer part
_ZEROS: Final = bytes(8)
_INT32: Final = np.dtype("<i4")
_UINT32: Final = np.dtype("<u4")
_INT64: Final = np.dtype("<i8")

# int32 arithmetic below cannot wrap, because checked offsets rise from 0 and stay below this
assert max(MAX_BATCH_BYTES, MAX_INFLATED_BYTES) < 1 << 31


def validate_batch(data: Buffer, *, max_message_bytes: int, allow_offset_delta: bool = False) -> ProducerPart:
    """Verify a producer's batch: its checksum, then the guarantees of this module.

    Args:
        data: producer part and body, nothing behind them.
        max_message_bytes: the topic's limit for one raw payload.
        allow_offset_delta: accept holes, which only batches made by a broker may have.

    Raises:
        BatchTooLarge, MessageTooLarge: a limit is exceeded. `details` has `value`, `limit` and, for a message, `index`.
        ChecksumMismatch: the bytes changed in transit.
        InvalidArgument: anything else. `details` names the field, the value and the index of the message or entry.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise BatchTooLarge(
            f"a batch of {len(data)} bytes, at most {MAX_BATCH_BYTES} are taken: send smaller batches",
            field="batch",
            value=len(data),
            limit=MAX_BATCH_BYTES,
        )
    part = read_producer_part(data)
    check_body(data, part, max_message_bytes=max_message_bytes, allow_offset_delta=allow_offset_delta)
    return part


def check_body(
    data: Buffer, part: ProducerPart, *, max_message_bytes: int, allow_offset_delta: bool = False
) -> None:
    """Do everything of `validate_batch` except the checksum, for a part that `read_producer_part` returned."""
    if not is_plain(data, part, max_message_bytes=max_message_bytes):
        walk_columns(data, part, max_message_bytes=max_message_bytes, allow_offset_delta=allow_offset_delta)


def walk_columns(
    data: Buffer, part: ProducerPart, *, max_message_bytes: int, allow_offset_delta: bool = False
) -> None:
    """Check any batch column by column. Raises every error of the validation."""
    if data[_RESERVED] != _ZEROS[:4]:
        raise _bad("reserved", bytes(data[_RESERVED]).hex(), "the reserved field is not 0")
    columns, n = part.columns, part.count
    _check_range("first_publish_time_ms", part.first_publish_time_ms, MAX_PUBLISH_TIME_MS)
    counted = 0 if columns & BatchColumn.SEQUENCE else n - 1  # sequences that are implied by the first
    _check_range("first_sequence", part.first_sequence, MAX_SEQUENCE - counted)
    walk = _Walk(data)
    _check_payloads(walk, part, max_message_bytes)
    if columns != BatchColumn.PAYLOAD:
        if columns & BatchColumn.KEY:
            _check_keys(walk, n)
        if columns & BatchColumn.ATTRIBUTES:
            _check_attributes(walk, n)
        if columns & BatchColumn.PUBLISH_TIME:
            deltas = walk.fixed(n, _INT32, "publish_time")
            _check_values(
                "publish_time",
                deltas,
                -part.first_publish_time_ms,
                MAX_PUBLISH_TIME_MS - part.first_publish_time_ms,
            )
        if columns & (BatchColumn.PRODUCERS | BatchColumn.PRODUCER_INDEX):
            _check_producers(walk, columns, n)
        if columns & BatchColumn.SEQUENCE:
            _check_sequences(walk, part)
        if columns & BatchColumn.SCHEMAS:
            rows = walk.rows(n, "schemas")
            walk.take(8 * rows, "schemas")
            walk.take(4 * rows, "schemas")
            _check_values("schema_index", walk.fixed(n, _INT32, "schema_index"), 0, rows - 1)
        if columns & BatchColumn.OFFSET_DELTA:
            if not allow_offset_delta:
                raise _bad(
                    "columns", columns, "the offset delta column is the broker's, a producer's batch has none"
                )
            _check_deltas(walk, n)
    if walk.at != len(data):
        raise _bad("batch", len(data), f"the columns take {walk.at} bytes, the batch has {len(data)}")


class _Walk:
    """A cursor over the columns in order, which claims bytes and never more than the batch has."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: Buffer) -> None:
        self.at = PRODUCER_PART_BYTES
        self._data = data
        self._end = len(data)

    def take(self, length: int, field: str) -> int:
        """Claim `length` bytes and their padding, and return their start."""
        start = self.at
        stop = start + length
        self.at = end = start + padded(length)
        if end > self._end:
            raise _bad(field, length, f"the column reaches to byte {end}, the batch has {self._end}")
        if end != stop and self._data[stop:end] != _ZEROS[: end - stop]:
            raise _bad(field, bytes(self._data[stop:end]).hex(), f"the padding at byte {stop} is not 0")
        return start

    def bytes(self, length: int, field: str) -> Buffer:
        start = self.take(length, field)
        return self._data[start : start + length]

    def fixed(self, n: int, dtype: np.dtype[Any], field: str) -> Ints:
        return np.frombuffer(self._data, dtype, n, self.take(n * dtype.itemsize, field))

    def rows(self, n: int, field: str) -> int:
        """Claim a table's number of rows, in a batch of `n` messages."""
        head = bytes(self.bytes(8, field))
        rows = int.from_bytes(head[:4], "little")
        if not 1 <= rows <= n:
            raise _bad(field, rows, f"a table of {rows} rows for {n} messages")
        if head[4:] != _ZEROS[:4]:
            raise _bad("reserved", head[4:].hex(), f"the reserved field of {field} is not 0")
        return rows

    def offsets(self, n: int, field: str) -> tuple[Ints, int]:
        """Claim the offsets of `n` entries, which start at 0 and never decrease. Return them and the last one."""
        offsets = self.fixed(n + 1, _INT32, field)
        first, last = int(offsets[0]), int(offsets[n])
        if first:
            raise _bad(field, first, f"the offsets start at {first}, not at 0", index=0)
        falls = offsets[1:] < offsets[:-1]
        if np.count_nonzero(falls):
            index = int(falls.argmax())
            a, b = int(offsets[index]), int(offsets[index + 1])
            raise _bad(field, b, f"the offsets fall from {a} to {b} at entry {index}", index=index)
        return offsets, last

    def text(self, n: int, field: str, owner: Ints | None = None) -> Ints:
        """Claim a variable-length column of UTF-8 and return its offsets.

        The whole column is decoded. No entry may begin in the middle of a code point, so each entry is valid UTF-8.

        Args:
            owner: entry offsets of the messages if entries are not messages, so that errors name the message.
        """
        offsets, length = self.offsets(n, field)
        data = self.bytes(length, field)
        entry = -1
        try:
            if str(data, "utf-8").isascii():
                return offsets
        except UnicodeDecodeError as error:
            entry = int(np.searchsorted(offsets, error.start, "right")) - 1
        else:
            starts = offsets[1:-1]
            # Skip empty entries at the end, which start behind the data
            starts = starts[: np.searchsorted(starts, length)]
            torn = np.frombuffer(data, np.uint8)[starts] & 0xC0 == 0x80
            if np.count_nonzero(torn):
                entry = int(torn.argmax())
        if entry < 0:
            return offsets
        value = bytes(data[offsets[entry] : offsets[entry + 1]][:32])
        index = entry if owner is None else int(np.searchsorted(owner, entry, "right")) - 1
        raise _bad(field, value.hex(), f"entry {entry} is not UTF-8: {value!r}", index=index)


def _check_payloads(walk: _Walk, part: ProducerPart, max_message_bytes: int) -> None:
    offsets, end = walk.offsets(part.count, "payload")
    if end != part.raw_bytes:
        raise _bad("payload", end, f"the offsets end at {end}, the header has {part.raw_bytes} raw bytes")
    if end > max_message_bytes:  # otherwise no single payload can be too large
        sizes = offsets[1:] - offsets[:-1]
        index = int(sizes.argmax())
        if sizes[index] > max_message_bytes:
            index = int((sizes > max_message_bytes).argmax())
            size = int(sizes[index])
            raise MessageTooLarge(
                f"message {index} of the batch has {size} bytes, at most {max_message_bytes} are taken",
                field="payload",
                value=size,
                index=index,
                limit=max_message_bytes,
            )
    if part.codec == Codec.NONE:
        if part.stored_bytes != end:
            raise _bad(
                "stored_bytes",
                part.stored_bytes,
                f"not compressed, yet {end} bytes are stored as {part.stored_bytes}",
            )
        walk.take(end, "payload")
        return
    stored = walk.bytes(part.stored_bytes, "payload")
    try:
        decompress(stored, part.codec, end)
    except ValueError as error:
        raise _bad("payload", part.codec.name.lower(), str(error)) from error


def _check_keys(walk: _Walk, n: int) -> None:
    bits = np.frombuffer(walk.bytes((n + 7) // 8, "key"), np.uint8)
    if n & 7 and bits[-1] >> (n & 7):
        raise _bad("key", int(bits[-1]), f"the validity bitmap has bits beyond message {n - 1}")
    offsets = walk.text(n, "key")
    missing = np.unpackbits(bits, count=n, bitorder="little") == 0
    stray = missing & (offsets[1:] > offsets[:-1])
    if np.count_nonzero(stray):
        index = int(stray.argmax())
        size = int(offsets[index + 1] - offsets[index])
        raise _bad("key", size, f"message {index} has no key, yet {size} bytes of one", index=index)


def _check_attributes(walk: _Walk, n: int) -> None:
    entries, total = walk.offsets(n, "attributes")
    walk.text(total, "attributes.key", entries)
    walk.text(total, "attributes.value", entries)


def _check_producers(walk: _Walk, columns: int, n: int) -> None:
    rows = 0
    if columns & BatchColumn.PRODUCERS:
        rows = walk.rows(n, "producers")
        walk.take(8 * rows, "producers")
        walk.text(rows, "producers")
    if (rows > 1) != bool(columns & BatchColumn.PRODUCER_INDEX):
        raise _bad(
            "columns", columns, f"a producer index stands beside a table of two rows or more, here of {rows}"
        )
    if rows > 1:
        _check_values("producer_index", walk.fixed(n, _INT32, "producer_index"), 0, rows - 1)


def _check_sequences(walk: _Walk, part: ProducerPart) -> None:
    sequences = walk.fixed(part.count, _INT64, "sequence")
    _check_values("sequence", sequences, 0, MAX_SEQUENCE)
    if sequences[0] != part.first_sequence:
        first = int(sequences[0])
        raise _bad("sequence", first, f"the first is {first}, the header has {part.first_sequence}", index=0)


def _check_deltas(walk: _Walk, n: int) -> None:
    deltas = walk.fixed(n, _UINT32, "offset_delta")
    if deltas[0]:
        raise _bad("offset_delta", int(deltas[0]), "the first is not 0", index=0)
    stays = deltas[1:] <= deltas[:-1]
    if np.count_nonzero(stays):
        index = int(stays.argmax()) + 1
        raise _bad("offset_delta", int(deltas[index]), f"entry {index} does not rise", index=index)
    _check_values("offset_delta", deltas, 0, MAX_OFFSET_DELTA)


def _check_range(field: str, value: int, highest: int) -> None:
    if not 0 <= value <= highest:
        raise _bad(field, value, f"{value} is not within 0 to {highest}")


def _check_values(field: str, values: Ints, lowest: int, highest: int) -> None:
    """Raise for the first value outside [lowest, highest]. The bounds may exceed the range of the values' type."""
    if int(values.min()) < lowest or int(values.max()) > highest:
        index = next(i for i, value in enumerate(values.tolist()) if not lowest <= value <= highest)
        value = int(values[index])
        raise _bad(field, value, f"entry {index} is {value}, not within {lowest} to {highest}", index=index)


def _bad(field: str, value: int | str, what: str, *, index: int | None = None) -> InvalidArgument:
    if index is None:
        return InvalidArgument(f"batch: {field}: {what}", field=field, value=value)
    return InvalidArgument(f"batch: {field}: {what}", field=field, value=value, index=index)
