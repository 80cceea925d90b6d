"""Convert Arrow to stored batches for cold reads, with no work per message: ≈ 60 µs per batch.

A batch has one append time, so rows are cut where it changes, and by size. The batches differ from those that producers
sent (`resealed`, the tier's checksum, a producer id only if all rows share it): batch boundaries are not observable, and
duplicates are detected by the log's state, never by old batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydanube_core.batch import MAX_BATCH_MESSAGES, BatchColumn, Codec, ProducerPart, broker_part
from pydanube_core.batch.encode import append_padded, seal

Ints = npt.NDArray[Any]
BATCH_BYTES: Final = 256 << 10  # target for the payload bytes of a batch, which fit a delivery frame
BATCH_MESSAGES: Final = 8192
_MAX_DELTA: Final = (1 << 31) - 1

assert BATCH_MESSAGES <= MAX_BATCH_MESSAGES


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A stored batch (broker part, producer part, body) with its offsets [base, end)."""

    base: int
    end: int
    count: int
    append_time_ms: int
    data: bytes


@dataclass(slots=True)
class _Texts:
    """A variable-length column for numpy: offsets into `data`, one more than there are entries."""

    offsets: Ints
    data: memoryview

    @classmethod
    def of(cls, array: Any) -> _Texts:
        _, offsets, data = array.buffers()
        n = len(array)
        if offsets is None or n == 0:
            return cls(np.zeros(n + 1, np.int32), memoryview(b""))
        found = np.frombuffer(offsets, np.int32, n + 1, 4 * array.offset)
        return cls(found, memoryview(b"") if data is None else memoryview(data))

    def append(self, parts: list[bytes | memoryview], first: int, end: int) -> None:
        """Append the entries [first, end) to a batch as a column."""
        offsets = self.offsets[first : end + 1]
        append_padded(parts, (offsets - offsets[0]).astype("<i4").tobytes())
        append_padded(parts, bytes(self.data[int(offsets[0]) : int(offsets[-1])]))


class _Rows:
    """One row group, its columns as numpy arrays."""

    def __init__(self, table: Any) -> None:
        batch = table.combine_chunks()
        columns = {name: _whole(batch.column(name)) for name in table.column_names}
        self.count = len(columns["offset"])
        self.offset = columns["offset"].to_numpy()
        self.append_time = columns["append_time"].cast(pa.int64()).to_numpy()
        self.publish_time = columns["publish_time"].cast(pa.int64()).to_numpy()
        self.sequence = columns["sequence"].to_numpy()
        self.payload = _Texts.of(columns["payload"])
        producer = columns["producer"]
        self.producer_id = producer.field("id").to_numpy()
        encoded = producer.field("name").dictionary_encode()
        self.producer_name = encoded.indices.to_numpy()
        self.names: list[str] = encoded.dictionary.to_pylist()
        self.schema_id = columns["schema_id"].fill_null(0).to_numpy()
        self.schema_version = columns["schema_version"].fill_null(0).to_numpy()
        keys = columns["key"]
        self.key_valid: Ints | None = None
        if keys.null_count < self.count:
            self.key_valid = keys.is_valid().to_numpy(zero_copy_only=False)
            self.keys = _Texts.of(keys)
        attributes = columns["attributes"]
        self.entries = np.frombuffer(attributes.buffers()[1], np.int32, self.count + 1, 4 * attributes.offset)
        self.has_attributes = bool(self.entries[-1] > self.entries[0])
        if self.has_attributes:
            self.attribute_keys = _Texts.of(attributes.keys)
            self.attribute_values = _Texts.of(attributes.items)

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Return the row ranges that become batches."""
        breaks = (self.append_time[1:] != self.append_time[:-1]) | (
            self.offset[1:] - self.offset[:-1] > _MAX_DELTA // BATCH_MESSAGES
        )
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), self.count]
        ends = self.payload.offsets
        for first, last in itertools.pairwise(edges):
            while first < last:
                limit = int(ends[first]) + BATCH_BYTES
                end = int(np.searchsorted(ends[first + 1 : last + 1], limit, "right")) + first
                end = min(max(end, first + 1), first + BATCH_MESSAGES, last)
                yield from self._publishable(first, end)
                first = end

    def _publishable(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Halve a range until its publish times fit their column, whose differences from the first have 31 bits."""
        times = self.publish_time[first:end]
        spread = max(int(times.max()) - int(times[0]), int(times[0]) - int(times.min()))
        if spread <= _MAX_DELTA or end - first == 1:
            yield first, end
            return
        middle = (first + end) // 2
        yield from self._publishable(first, middle)
        yield from self._publishable(middle, end)

    def batch(self, first: int, end: int, epoch: int) -> DecodedBatch:
        n = end - first
        rows = slice(first, end)
        parts: list[bytes | memoryview] = []
        columns = int(BatchColumn.PAYLOAD)
        self.payload.append(parts, first, end)
        raw = int(self.payload.offsets[end] - self.payload.offsets[first])
        if self.key_valid is not None and bool((valid := self.key_valid[rows]).any()):
            columns |= BatchColumn.KEY
            append_padded(parts, np.packbits(valid, bitorder="little").tobytes())
            self.keys.append(parts, first, end)
        if self.has_attributes:
            entries = self.entries[first : end + 1]
            low, high = int(entries[0]), int(entries[-1])
            if high > low:
                columns |= BatchColumn.ATTRIBUTES
                append_padded(parts, (entries - low).astype("<i4").tobytes())
                # `keys` and `items` of a map array are its whole children, so entry numbers index into them
                self.attribute_keys.append(parts, low, high)
                self.attribute_values.append(parts, low, high)
        times = self.publish_time[rows]
        if bool((times != times[0]).any()):
            columns |= BatchColumn.PUBLISH_TIME
            append_padded(parts, (times - times[0]).astype("<i4").tobytes())
        producer_id, more = self._producers(parts, rows)
        columns |= more
        sequence = self.sequence[rows]
        if n > 1 and bool((sequence[1:] - sequence[:-1] != 1).any()):
            columns |= BatchColumn.SEQUENCE
            append_padded(parts, sequence.astype("<i8").tobytes())
        schema_id, schema_version, more = self._schemas(parts, rows)
        columns |= more
        offset = self.offset[rows]
        base, last = int(offset[0]), int(offset[-1])
        if last - base != n - 1:
            columns |= BatchColumn.OFFSET_DELTA
            append_padded(parts, (offset - base).astype("<u4").tobytes())
        time_ms = int(self.append_time[first])
        sealed = seal(
            parts,
            ProducerPart(
                codec=Codec.NONE,
                count=n,
                columns=columns,
                raw_bytes=raw,
                stored_bytes=raw,
                producer_id=producer_id,
                producer_epoch=0,
                first_sequence=int(sequence[0]),
                first_publish_time_ms=int(times[0]),
                schema_id=schema_id,
                schema_version=schema_version,
            ),
        )
        head = broker_part(
            base_offset=base, last_offset=last, epoch=epoch, append_time_ms=time_ms, resealed=True
        )
        return DecodedBatch(base, last + 1, n, time_ms, head + sealed)

    def _producers(self, parts: list[bytes | memoryview], rows: slice) -> tuple[int, int]:
        """Add the producers' columns if needed. Return the common producer id, 0 if there are several, and column bits."""
        ids, codes = self.producer_id[rows], self.producer_name[rows]
        if bool((ids == ids[0]).all()) and bool((codes == codes[0]).all()):
            name = self.names[int(codes[0])]
            if not name:
                return int(ids[0]), 0
            _table(parts, [(int(ids[0]), name)])
            return int(ids[0]), int(BatchColumn.PRODUCERS)
        pairs = np.empty(len(ids), [("id", np.uint64), ("name", np.int32)])
        pairs["id"], pairs["name"] = ids, codes
        table, index = np.unique(pairs, return_inverse=True)
        _table(parts, [(int(number), self.names[code]) for number, code in table.tolist()])
        append_padded(parts, index.astype("<i4").tobytes())
        return 0, BatchColumn.PRODUCERS | BatchColumn.PRODUCER_INDEX

    def _schemas(self, parts: list[bytes | memoryview], rows: slice) -> tuple[int, int, int]:
        ids, versions = self.schema_id[rows], self.schema_version[rows]
        if bool((ids == ids[0]).all()) and bool((versions == versions[0]).all()):
            return int(ids[0]), int(versions[0]), 0
        pairs = np.empty(len(ids), [("id", np.uint64), ("version", np.uint32)])
        pairs["id"], pairs["version"] = ids, versions
        table, index = np.unique(pairs, return_inverse=True)
        parts.append(len(table).to_bytes(8, "little"))
        append_padded(parts, table["id"].astype("<u8").tobytes())
        append_padded(parts, table["version"].astype("<u4").tobytes())
        append_padded(parts, index.astype("<i4").tobytes())
        return 0, 0, int(BatchColumn.SCHEMAS)


def _table(parts: list[bytes | memoryview], rows: list[tuple[int, str]]) -> None:
    names = [name.encode() for _, name in rows]
    parts.append(len(rows).to_bytes(8, "little"))
    append_padded(parts, np.array([number for number, _ in rows], "<u8").tobytes())
    append_padded(parts, np.cumsum([0, *map(len, names)]).astype("<i4").tobytes())
    append_padded(parts, b"".join(names))


def _whole(column: Any) -> Any:
    """Return a chunked column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def batches_of(table: Any, *, epoch: int = 0) -> list[DecodedBatch]:
    """Return the rows of a table of `SCHEMA`, ascending by offset, as stored batches.

    Args:
        epoch: written into the broker parts.
    """
    if not table.num_rows:
        return []
    rows = _Rows(table)
    return [rows.batch(first, end, epoch) for first, end in rows.cuts()]
