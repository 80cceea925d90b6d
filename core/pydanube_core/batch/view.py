"""Read a batch: headers immediately, each column on demand.

A view never reads outside its bytes: Python checks the bounds of slices, and sizes in a column are checked against the
bytes of the batch. Decoding a payload costs ≈ 70 ns per message (`benchmarks/batch_codec.py`).
"""

from __future__ import annotations

import itertools
import struct
from io import BytesIO, StringIO
from operator import sub
from typing import Final, NamedTuple
from zlib import crc32

from pydanube_core.batch.codec import decompress
from pydanube_core.batch.layout import (
    BROKER_MAGIC,
    BROKER_PART,
    BROKER_PART_BYTES,
    FLAG_RESEALED,
    KNOWN_COLUMNS,
    MAX_BATCH_MESSAGES,
    MAX_INFLATED_BYTES,
    PRODUCER_MAGIC,
    PRODUCER_PART,
    PRODUCER_PART_BYTES,
    VERSION,
    BatchColumn,
    Codec,
    padded,
)
from pydanube_core.errors import ChecksumMismatch, InvalidArgument

Buffer = bytes | memoryview
_CRC_AT: Final = PRODUCER_PART_BYTES - 4
_CODECS: Final = tuple(Codec)  # by number, because looking up an enum by value costs 1 µs
assert all(codec == at for at, codec in enumerate(_CODECS))
_PAYLOAD: Final = int(BatchColumn.PAYLOAD)
_KEY: Final = int(BatchColumn.KEY)
_ATTRIBUTES: Final = int(BatchColumn.ATTRIBUTES)
_TWO_INTS: Final = struct.Struct("<2i")
_INTS: Final = tuple(struct.Struct(f"<{n}i") for n in range(1, 10))  # offsets of 0 to 8 attributes
_UNKNOWN_COLUMNS: Final = ~KNOWN_COLUMNS


class BrokerPart(NamedTuple):
    """The owner's part of a batch. The offsets are those of the first and the last message."""

    base_offset: int
    last_offset: int
    epoch: int
    append_time_ms: int
    resealed: bool


class ProducerPart(NamedTuple):
    """The producer's part of a batch. The size of the body is not in it, but follows from the buffer.

    One is created for each batch. A tuple costs 0.6 µs, a frozen dataclass with eleven `object.__setattr__` 2.6 µs.
    """

    codec: Codec
    count: int  # type: ignore[assignment]  # hides the tuple's method, which has no use here
    columns: int
    raw_bytes: int
    stored_bytes: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    first_publish_time_ms: int
    schema_id: int
    schema_version: int


def read_broker_part(data: Buffer) -> BrokerPart:
    """Read and verify the 48 bytes of the broker part. Raises `ChecksumMismatch` if they are damaged."""
    if len(data) < BROKER_PART_BYTES:
        raise ChecksumMismatch("a batch is shorter than its broker part", field="batch", value=len(data))
    magic, version, flags, base, last, epoch, time_ms, _, crc = BROKER_PART.unpack_from(data)
    if magic != BROKER_MAGIC or crc32(data[: BROKER_PART_BYTES - 4]) != crc:
        raise ChecksumMismatch("the broker part of a batch is damaged", field="batch", value="broker part")
    if version != VERSION:
        raise InvalidArgument(
            f"this build does not read batch version {version}", field="version", value=version
        )
    return BrokerPart(base, last, epoch, time_ms, bool(flags & FLAG_RESEALED))


def read_producer_part(data: Buffer, *, verify: bool = True) -> ProducerPart:
    """Read the producer part and verify its checksum over `data`, which ends where the batch ends.

    Args:
        verify: False if the caller has verified the checksum since the bytes were last read from a disk or a network.

    Raises:
        InvalidArgument: not a batch, or of an unsupported version, codec or column.
        ChecksumMismatch: the bytes changed since the producer computed the checksum.
    """
    if len(data) < PRODUCER_PART_BYTES:
        raise InvalidArgument(
            f"a batch has at least {PRODUCER_PART_BYTES} bytes, got {len(data)}",
            field="batch",
            value=len(data),
        )
    (magic, version, codec, flags, count, columns, raw, stored, producer, epoch, _, sequence, time_ms,
     schema_id, schema_version, crc) = PRODUCER_PART.unpack_from(data)  # fmt: skip
    if magic != PRODUCER_MAGIC or version != VERSION or flags:
        raise InvalidArgument("these bytes are not a batch of version 1", field="batch", value=version)
    view = memoryview(data)
    if verify and crc32(view[PRODUCER_PART_BYTES:], crc32(view[:_CRC_AT])) != crc:
        raise ChecksumMismatch("a batch changed on its way: its checksum differs", field="batch", value=crc)
    if codec >= len(_CODECS):
        raise InvalidArgument(f"this build does not read codec {codec}", field="codec", value=codec)
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise InvalidArgument(
            f"a batch holds 1 to {MAX_BATCH_MESSAGES} messages, got {count}", field="count", value=count
        )
    if columns & _UNKNOWN_COLUMNS or not columns & _PAYLOAD:
        raise InvalidArgument(
            f"this build does not read column bitmap {columns:#x}", field="columns", value=columns
        )
    if raw > MAX_INFLATED_BYTES:
        raise InvalidArgument(
            f"payloads inflate to {raw} bytes, at most {MAX_INFLATED_BYTES} are taken", field="raw", value=raw
        )
    return ProducerPart(_CODECS[codec], count, columns, raw, stored, producer, epoch, sequence, time_ms,
                        schema_id, schema_version)  # fmt: skip


def _cut(data: bytes, offsets: tuple[int, ...]) -> list[bytes]:
    # BytesIO shares the bytes. A read costs 60 ns, a slice 100, and decreasing offsets cannot multiply the data
    return list(map(BytesIO(data).read, map(sub, offsets[1:], offsets)))


class BatchView:
    """A batch that is read lazily.

    Args:
        data: producer part and body, nothing behind them.
        base_offset: offset of the first message.
        append_time_ms: the owner's time for the batch.
        part: the producer part, if it was read (and so verified) before.

    Raises:
        InvalidArgument, ChecksumMismatch: see `read_producer_part`. Columns raise them on first use.
    """

    __slots__ = ("_at", "_data", "append_time_ms", "base_offset", "part")

    def __init__(
        self, data: Buffer, *, base_offset: int = 0, append_time_ms: int = 0, part: ProducerPart | None = None
    ) -> None:
        self.part = part or read_producer_part(data)
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self._data = data
        self._at: dict[BatchColumn, int] | None = None

    @classmethod
    def stored(cls, data: Buffer) -> BatchView:
        """Return a view of a stored batch (broker part, producer part, body). Verifies both checksums."""
        head = read_broker_part(data)
        return cls(
            memoryview(data)[BROKER_PART_BYTES:],
            base_offset=head.base_offset,
            append_time_ms=head.append_time_ms,
        )

    def __len__(self) -> int:
        return self.part.count

    # -- positions of columns --------------------------------------------------------------------------------

    def column_start(self, column: BatchColumn) -> int | None:
        """Return the byte position of a column, None if the batch does not have it."""
        if not self.part.columns & column:
            return None
        if self._at is None:
            self._at = self._walk()
        return self._at.get(column)

    def _walk(self) -> dict[BatchColumn, int]:
        part, at, starts = self.part, PRODUCER_PART_BYTES, {}
        n = part.count
        starts[BatchColumn.PAYLOAD] = at
        at += padded(4 * (n + 1)) + padded(part.stored_bytes)
        if part.columns & BatchColumn.KEY:
            starts[BatchColumn.KEY] = at
            at = self._ragged_end(at + padded((n + 7) // 8), n)
        if part.columns & BatchColumn.ATTRIBUTES:
            starts[BatchColumn.ATTRIBUTES] = at
            entries = self._int32(at + 4 * n)
            at = self._ragged_end(self._ragged_end(at + padded(4 * (n + 1)), entries), entries)
        if part.columns & BatchColumn.PUBLISH_TIME:
            starts[BatchColumn.PUBLISH_TIME] = at
            at += padded(4 * n)
        if part.columns & BatchColumn.PRODUCERS:
            starts[BatchColumn.PRODUCERS] = at
            rows = self._int32(at)
            at = self._ragged_end(at + 8 + 8 * self._rows(rows), rows)
        if part.columns & BatchColumn.PRODUCER_INDEX:
            starts[BatchColumn.PRODUCER_INDEX] = at
            at += padded(4 * n)
        if part.columns & BatchColumn.SEQUENCE:
            starts[BatchColumn.SEQUENCE] = at
            at += 8 * n
        if part.columns & BatchColumn.SCHEMAS:
            starts[BatchColumn.SCHEMAS] = at
            rows = self._rows(self._int32(at))
            at += 8 + 8 * rows + padded(4 * rows) + padded(4 * n)
        if part.columns & BatchColumn.OFFSET_DELTA:
            starts[BatchColumn.OFFSET_DELTA] = at
            at += padded(4 * n)
        if at != len(self._data):
            raise InvalidArgument(
                f"the columns of a batch take {at} bytes, it has {len(self._data)}", field="batch", value=at
            )
        return starts

    def _attributes_at(self) -> int | None:
        """Return the start of the attributes without walking all columns, because many single messages have some."""
        part, n = self.part, self.part.count
        if not part.columns & _ATTRIBUTES:
            return None
        at = PRODUCER_PART_BYTES + padded(4 * (n + 1)) + padded(part.stored_bytes)
        return self._ragged_end(at + padded((n + 7) // 8), n) if part.columns & _KEY else at

    def _int32(self, at: int) -> int:
        if at < 0 or at + 4 > len(self._data):
            raise InvalidArgument("a column reaches beyond the batch", field="batch", value=at)
        return int.from_bytes(self._data[at : at + 4], "little", signed=True)

    def _rows(self, rows: int) -> int:
        if not 0 < rows <= self.part.count:
            raise InvalidArgument(
                f"a table of {rows} rows for {self.part.count} messages", field="batch", value=rows
            )
        return rows

    def _ragged_end(self, at: int, n: int) -> int:
        if n < 0:
            raise InvalidArgument("a column has a negative length", field="batch", value=n)
        data_bytes = self._int32(at + 4 * n)
        if data_bytes < 0:
            raise InvalidArgument("a column has a negative length", field="batch", value=data_bytes)
        return at + padded(4 * (n + 1)) + padded(data_bytes)

    # -- reading columns -------------------------------------------------------------------------------------

    def ints(self, at: int, n: int, code: str = "i") -> tuple[int, ...]:
        """Return `n` little-endian integers of struct code `code` at byte `at`."""
        try:
            return struct.unpack_from(f"<{n}{code}", self._data, at)
        except struct.error:
            raise InvalidArgument("a column reaches beyond the batch", field="batch", value=at) from None

    def _slices(self, at: int, n: int) -> list[bytes]:
        offsets = self.ints(at, n + 1)
        start = at + padded(4 * (n + 1))
        return _cut(bytes(self._data[start : start + max(offsets[-1], 0)]), offsets)

    def _texts(self, at: int, n: int) -> tuple[list[str], int]:
        """Return a column of text and its end."""
        if n < 0:
            raise InvalidArgument("a column has a negative length", field="batch", value=n)
        offsets = self.ints(at, n + 1)
        start = at + padded(4 * (n + 1))
        size = max(offsets[-1], 0)
        try:
            text = str(self._data[start : start + size], "utf-8")
            if text.isascii():  # one byte per character, so the offsets apply to the decoded text
                texts = list(map(StringIO(text).read, map(sub, offsets[1:], offsets)))
            else:
                texts = list(map(bytes.decode, self._slices(at, n)))
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"text in a batch is not UTF-8: {error}", field="batch", value=at
            ) from error
        return texts, start + padded(size)

    def payloads(self) -> list[bytes]:
        """Return the payloads, one bytes object per message."""
        part, at = self.part, PRODUCER_PART_BYTES
        offsets = self.ints(at, part.count + 1)
        start = at + padded(4 * (part.count + 1))
        stored = self._data[start : start + part.stored_bytes]
        if offsets == (0, part.raw_bytes) and len(stored) == part.raw_bytes and part.codec is Codec.NONE:
            return [bytes(stored)]  # a single message, at half the cost
        try:
            raw = bytes(decompress(stored, part.codec, part.raw_bytes))
        except ValueError as error:
            raise InvalidArgument(f"payloads: {error}", field="payload", value=part.codec.name) from error
        return _cut(raw, offsets)

    def keys(self) -> list[bytes | None] | None:
        """Return the keys, with None for a message without one. None for a batch without keys."""
        at = self.column_start(BatchColumn.KEY)
        if at is None:
            return None
        n = self.part.count
        bits = int.from_bytes(self._data[at : at + (n + 7) // 8], "little")
        keys: list[bytes | None] = [*self._slices(at + padded((n + 7) // 8), n)]
        if bits == (1 << n) - 1:
            return keys
        # by text, because shifting a long number for each message is O(n²)
        return [
            key if bit == "1" else None for key, bit in zip(keys, reversed(f"{bits:0{n}b}"), strict=False)
        ]

    def attribute_names(self) -> bytes:
        """Return the joined names of all attributes, empty for a batch without attributes."""
        at = self._attributes_at()
        if at is None:
            return b""
        n = self.part.count
        names = at + padded(4 * (n + 1))
        start = names + padded(4 * (self._int32(at + 4 * n) + 1))
        return bytes(self._data[start : start + self._int32(names + 4 * self._int32(at + 4 * n))])

    def attributes(self) -> list[dict[str, str]] | None:
        """Return one dict per message, None for a batch without attributes."""
        at = self._attributes_at()
        if at is None:
            return None
        n = self.part.count
        if n == 1 and (found := self._attributes_of_one(at)) is not None:
            return [found]
        entries = self.ints(at, n + 1)
        total = entries[-1]
        names, at = self._texts(at + padded(4 * (n + 1)), total)
        values, _ = self._texts(at, total)
        pairs = zip(names, values, strict=True)
        try:  # one iterator over all pairs costs a third of slicing them for each message
            return [dict(itertools.islice(pairs, count)) for count in map(sub, entries[1:], entries)]
        except ValueError:
            raise InvalidArgument("attribute offsets fall", field="attributes", value=total) from None

    def _attributes_of_one(self, at: int) -> dict[str, str] | None:
        """Return the attributes of a single message in few calls, None unless there are 1 to 8, in ASCII and valid."""
        data = self._data
        try:
            first, count = _TWO_INTS.unpack_from(data, at)
            if first or count < 1:
                return None
            ends = _INTS[count].unpack_from(data, at + 8)
            start = at + 8 + (4 * count + 11 & ~7)
            names = str(data[start : start + ends[-1]], "ascii")
            at = start + (ends[-1] + 7 & ~7)
            value_ends = _INTS[count].unpack_from(data, at)
            start = at + (4 * count + 11 & ~7)
            values = str(data[start : start + value_ends[-1]], "ascii")
        except (struct.error, IndexError, UnicodeDecodeError):
            return None
        if ends[0] or value_ends[0] or len(names) != ends[-1] or len(values) != value_ends[-1]:
            return None
        found, low, value_low = {}, 0, 0
        for high, value_high in zip(ends[1:], value_ends[1:], strict=True):
            if high < low or value_high < value_low:
                return None
            found[names[low:high]] = values[value_low:value_high]
            low, value_low = high, value_high
        return found

    def publish_times_ms(self) -> list[int]:
        """Return the publish time of each message, milliseconds since 1970 by the producer's clock."""
        first, at = self.part.first_publish_time_ms, self.column_start(BatchColumn.PUBLISH_TIME)
        if at is None:
            return [first] * self.part.count
        return [first + delta for delta in self.ints(at, self.part.count)]

    def producers(self) -> list[tuple[int, str]]:
        """Return the table of (id, name) of producers, empty if the batch has none."""
        at = self.column_start(BatchColumn.PRODUCERS)
        if at is None:
            return []
        rows = self._int32(at)
        return list(zip(self.ints(at + 8, rows, "Q"), self._texts(at + 8 + 8 * rows, rows)[0], strict=True))

    def producer_index(self) -> tuple[int, ...] | None:
        """Return each message's index into `producers()`, None if one producer wrote all."""
        at = self.column_start(BatchColumn.PRODUCER_INDEX)
        if at is None:
            return None
        table_at = self.column_start(BatchColumn.PRODUCERS)
        return self._index(at, 0 if table_at is None else self._int32(table_at))

    def sequences(self) -> tuple[int, ...] | range:
        """Return the sequence number of each message within its producer."""
        at, first = self.column_start(BatchColumn.SEQUENCE), self.part.first_sequence
        return range(first, first + self.part.count) if at is None else self.ints(at, self.part.count, "q")

    def schemas(self) -> tuple[list[tuple[int, int]], tuple[int, ...]] | None:
        """Return the table of (schema id, version) and each message's index into it, None if all are as in `part`."""
        at = self.column_start(BatchColumn.SCHEMAS)
        if at is None:
            return None
        rows = self._int32(at)
        ids = self.ints(at + 8, rows, "Q")
        versions = self.ints(at + 8 + 8 * rows, rows, "I")
        index = self._index(at + 8 + 8 * rows + padded(4 * rows), rows)
        return list(zip(ids, versions, strict=True)), index

    def _index(self, at: int, rows: int) -> tuple[int, ...]:
        index = self.ints(at, self.part.count)
        if min(index) < 0 or max(index) >= rows:
            raise InvalidArgument(
                f"an index points outside its table of {rows} rows", field="batch", value=max(index)
            )
        return index

    def offset_deltas(self) -> tuple[int, ...] | range:
        """Return each message's offset minus the base offset, a range if there are no gaps."""
        at = self.column_start(BatchColumn.OFFSET_DELTA)
        return range(self.part.count) if at is None else self.ints(at, self.part.count, "I")

    def offsets(self) -> list[int] | range:
        """Return the offset of each message."""
        deltas, base = self.offset_deltas(), self.base_offset
        if isinstance(deltas, range):
            return range(base, base + len(deltas))
        return [base + delta for delta in deltas]
