"""Convert stored batches to Arrow, many at a time, with no work per message: ≈ 15 µs per batch.

Batches are split into pieces of columns, which are joined once per row group. A batch was validated when it was received
(`pydanube_core.batch.validate`), and its checksums are verified here. So its offset arrays are trusted, although a
descending one would crash this process.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydanube_core.batch import (
    BROKER_PART_BYTES,
    PRODUCER_PART_BYTES,
    BatchColumn,
    BatchView,
    BrokerPart,
    read_broker_part,
)
from pydanube_core.batch.codec import decompress
from pydanube_core.batch.layout import padded

from pydanube_storage.parquet.columns import ATTRIBUTES, PRODUCER, SCHEMA

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]
_ROW_BYTES: Final = 64  # memory of a row beside its texts


class _Ragged:
    """A variable-length column, collected in pieces."""

    __slots__ = ("data", "lengths")

    def __init__(self) -> None:
        self.lengths: list[Ints] = []
        self.data: list[Buffer] = []

    def add(self, offsets: Ints, data: Buffer) -> None:
        self.lengths.append(offsets[1:] - offsets[:-1])
        self.data.append(data)

    def skip(self, count: int) -> None:
        self.lengths.append(np.zeros(count, np.int32))

    def array(self, kind: Any, validity: Ints | None = None) -> Any:
        lengths = np.concatenate(self.lengths) if self.lengths else np.zeros(0, np.int32)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        bits = None if validity is None else pa.py_buffer(np.packbits(validity, bitorder="little"))
        data = pa.py_buffer(b"".join(self.data))
        return pa.Array.from_buffers(kind, len(lengths), [bits, pa.py_buffer(offsets), data])


class RowGroup:
    """Ascending batches of one topic that become one row group."""

    def __init__(self) -> None:
        self.messages = 0
        self.raw_bytes = 0  # approximate memory of the columns
        self._counts: list[int] = []
        self._parts: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._payload = _Ragged()
        self._over: list[tuple[str, int, Ints]] = []  # (column, first row, values) that are stored explicitly
        self._keys = _Ragged()
        self._key_valid: list[Ints] = []
        self._has_keys = False
        self._entries: list[Ints] = []
        self._attribute_keys = _Ragged()
        self._attribute_values = _Ragged()
        self._names: dict[str, int] = {"": 0}

    def add(self, data: Buffer) -> BrokerPart:
        """Add a stored batch and return its broker part.

        Raises `ChecksumMismatch` or `InvalidArgument` if the batch is damaged.
        """
        owner = read_broker_part(data)
        body = memoryview(data)[BROKER_PART_BYTES:]
        view = BatchView(body)
        part = view.part
        n, row = part.count, self.messages
        self._counts.append(n)
        self._parts.append(
            (
                owner.base_offset,
                owner.append_time_ms,
                part.first_publish_time_ms,
                part.first_sequence,
                part.producer_id,
                part.schema_id,
                part.schema_version,
                0,
            )
        )
        start = PRODUCER_PART_BYTES + padded(4 * (n + 1))
        raw = decompress(body[start : start + part.stored_bytes], part.codec, part.raw_bytes)
        self._payload.add(np.frombuffer(body, "<i4", n + 1, PRODUCER_PART_BYTES), raw)
        self.raw_bytes += part.raw_bytes + _ROW_BYTES * n + len(body) - part.stored_bytes
        self._add_keys(view, body, n)
        self._add_attributes(view, body, n)
        if part.columns & ~(BatchColumn.PAYLOAD | BatchColumn.KEY | BatchColumn.ATTRIBUTES):
            self._add_others(view, body, n, row)
        self.messages += n
        return owner

    def _add_keys(self, view: BatchView, body: memoryview, n: int) -> None:
        at = view.column_start(BatchColumn.KEY)
        if at is None:
            self._keys.skip(n)
            self._key_valid.append(np.zeros(n, np.uint8))
            return
        self._has_keys = True
        bits = np.frombuffer(body, np.uint8, (n + 7) // 8, at)
        self._key_valid.append(np.unpackbits(bits, count=n, bitorder="little"))
        _take_ragged(self._keys, body, at + padded((n + 7) // 8), n)

    def _add_attributes(self, view: BatchView, body: memoryview, n: int) -> None:
        at = view.column_start(BatchColumn.ATTRIBUTES)
        if at is None:
            self._entries.append(np.zeros(n, np.int32))
            return
        entries = np.frombuffer(body, "<i4", n + 1, at)
        total = int(entries[n])
        self._entries.append(entries[1:] - entries[:-1])
        at = _take_ragged(self._attribute_keys, body, at + padded(4 * (n + 1)), total)
        _take_ragged(self._attribute_values, body, at, total)

    def _add_others(self, view: BatchView, body: memoryview, n: int, row: int) -> None:
        part, base = view.part, self._parts[-1][0]
        if (at := view.column_start(BatchColumn.PUBLISH_TIME)) is not None:
            deltas = np.frombuffer(body, "<i4", n, at).astype(np.int64)
            self._over.append(("publish_time", row, part.first_publish_time_ms + deltas))
        if (at := view.column_start(BatchColumn.SEQUENCE)) is not None:
            self._over.append(("sequence", row, np.frombuffer(body, "<i8", n, at)))
        if (at := view.column_start(BatchColumn.OFFSET_DELTA)) is not None:
            self._over.append(("offset", row, base + np.frombuffer(body, "<u4", n, at).astype(np.int64)))
        if table := view.producers():
            ids = np.array([number for number, _ in table], np.uint64)
            names = np.array([self._names.setdefault(name, len(self._names)) for _, name in table], np.int32)
            at = view.column_start(BatchColumn.PRODUCER_INDEX)
            index = np.zeros(n, np.int32) if at is None else np.frombuffer(body, "<i4", n, at)
            self._over.append(("producer_id", row, ids[index]))
            self._over.append(("producer_name", row, names[index]))
        if (at := view.column_start(BatchColumn.SCHEMAS)) is not None:
            rows = int.from_bytes(body[at : at + 4], "little")
            ids = np.frombuffer(body, "<u8", rows, at + 8)
            versions = np.frombuffer(body, "<u4", rows, at + 8 + 8 * rows)
            index = np.frombuffer(body, "<i4", n, at + 8 + 8 * rows + padded(4 * rows))
            self._over.append(("schema_id", row, ids[index]))
            self._over.append(("schema_version", row, versions[index]))

    def to_arrow(self) -> Any:
        """Return the rows as one `RecordBatch` of `SCHEMA`."""
        n = self.messages
        counts = np.array(self._counts, np.int64)
        firsts = np.cumsum(counts) - counts
        within = np.arange(n, dtype=np.int64) - np.repeat(firsts, counts)

        def spread(field: int, kind: Any) -> Ints:
            return np.repeat(np.array([part[field] for part in self._parts], kind), counts)

        columns: dict[str, Ints] = {
            "offset": spread(0, np.int64) + within,
            "append_time": spread(1, np.int64),
            "publish_time": spread(2, np.int64),
            "sequence": spread(3, np.int64) + within,
            "producer_id": spread(4, np.uint64),
            "producer_name": np.zeros(n, np.int32),
            "schema_id": spread(5, np.uint64),
            "schema_version": spread(6, np.uint32),
        }
        for name, row, values in self._over:
            columns[name][row : row + len(values)] = values
        producer = pa.StructArray.from_arrays(
            [
                pa.array(columns["producer_id"]),
                pa.array(list(self._names), pa.string()).take(pa.array(columns["producer_name"])),
            ],
            fields=list(PRODUCER),
        )
        no_schema = (columns["schema_id"] == 0) & (columns["schema_version"] == 0)
        keys = (
            self._keys.array(pa.string(), np.concatenate(self._key_valid))
            if self._has_keys
            else pa.nulls(n, pa.string())
        )
        time = SCHEMA.field("append_time").type
        return pa.RecordBatch.from_arrays(
            [
                pa.array(columns["offset"]),
                pa.array(columns["append_time"]).cast(time),
                pa.array(columns["publish_time"]).cast(time),
                producer,
                pa.array(columns["sequence"]),
                keys,
                self._attributes(n),
                pa.array(columns["schema_id"], mask=no_schema),
                pa.array(columns["schema_version"], mask=no_schema),
                self._payload.array(pa.binary()),
            ],
            schema=SCHEMA,
        )

    def _attributes(self, n: int) -> Any:
        offsets = np.zeros(n + 1, np.int32)
        np.cumsum(np.concatenate(self._entries), out=offsets[1:])
        keys, values = self._attribute_keys.array(pa.string()), self._attribute_values.array(pa.string())
        entries = pa.StructArray.from_arrays(
            [keys, values], fields=[ATTRIBUTES.key_field, ATTRIBUTES.item_field]
        )
        return pa.Array.from_buffers(ATTRIBUTES, n, [None, pa.py_buffer(offsets)], children=[entries])


def _take_ragged(column: _Ragged, body: memoryview, at: int, n: int) -> int:
    """Add `n` entries that begin at byte `at`, and return the byte after them."""
    offsets = np.frombuffer(body, "<i4", n + 1, at)
    start = at + padded(4 * (n + 1))
    length = int(offsets[n])
    column.add(offsets, body[start : start + length])
    return start + padded(length)
