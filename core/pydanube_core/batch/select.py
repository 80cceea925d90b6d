"""Cut batches: make a batch of some of a batch's messages, and compute slots and sizes for routing by message.

A cut keeps the values of every column for its messages. Only properties of the whole batch are recomputed: the checksum,
offset deltas (from the first message taken), tables (rows in use), and the codec (a cut is stored uncompressed if that
takes no more room than its batch did). The owner puts a broker part flagged `resealed` in front.

The data must have been validated, and its checksum verified since it was last read from a disk or a network. It is not
verified again here, which would cost ≈ 0.4 µs per KiB and consumer of a shared subscription. Needs numpy. Only the broker
imports it.

Gathering 500 of 2 000 payloads of 128 bytes takes ≈ 20 µs if they have one length, otherwise ≈ 80 µs
(`benchmarks/batch_codec.py`), plus the new checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pydanube_core.batch.arranged import Arranged
from pydanube_core.batch.codec import compress, decompress
from pydanube_core.batch.crc import crc32_each
from pydanube_core.batch.encode import append_padded, seal
from pydanube_core.batch.gather import gather
from pydanube_core.batch.layout import PRODUCER_PART_BYTES, BatchColumn, Codec, padded
from pydanube_core.batch.view import BatchView, ProducerPart, read_producer_part
from pydanube_core.errors import InvalidArgument

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]

# A slot is zlib's CRC-32 of the key, modulo the number of slots. Every language has it, it never changes, and a call
# costs 50 ns. Choosing a consumer by key does not need collision resistance.
KEY_SLOTS: Final = 65_536


class Cut(NamedTuple):
    """Some messages of a batch as a batch of their own.

    The deltas are offsets of its first and last message from the first of the batch it was cut from.
    """

    batch: bytes  # producer part and body
    first_delta: int
    last_delta: int


_FEW_KEY_BYTES: Final = 32  # maximum mean length of a key, because an arrangement copies keys byte by byte
# Columns that an arrangement supports. Batches with others are cut row by row.
_ARRANGED: Final = BatchColumn.PAYLOAD | BatchColumn.KEY | BatchColumn.PUBLISH_TIME | BatchColumn.PRODUCERS


class _Pick(Protocol):
    """The rows of a column that a cut takes."""

    @property
    def count(self) -> int: ...

    def numbers(self, first: int) -> Ints:
        """Return `first` plus the row number for each row."""

    def fixed(self, values: Ints) -> Ints:
        """Return the values of the rows."""

    def ragged(self, offsets: Ints, data: Buffer) -> tuple[bytes, bytes]:
        """Return the offsets, from 0, and the bytes of the rows."""

    def entries(self, offsets: Ints) -> tuple[bytes, _Pick]:
        """Return the entry offsets, from 0, of the rows and the pick of their entries."""


class _Span:
    """Rows [start, stop), which are one slice of each column."""

    __slots__ = ("_start", "_stop", "count")

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop, self.count = start, stop, stop - start

    def numbers(self, first: int) -> Ints:
        return np.arange(first + self._start, first + self._stop, dtype=np.int64)

    def fixed(self, values: Ints) -> Ints:
        return values[self._start : self._stop]

    def ragged(self, offsets: Ints, data: Buffer) -> tuple[bytes, bytes]:
        first, end = int(offsets[self._start]), int(offsets[self._stop])
        return (offsets[self._start : self._stop + 1] - first).tobytes(), bytes(data[first:end])

    def entries(self, offsets: Ints) -> tuple[bytes, _Pick]:
        first, end = int(offsets[self._start]), int(offsets[self._stop])
        return (offsets[self._start : self._stop + 1] - first).tobytes(), _Span(first, end)


class _Rows:
    """The rows of a selection by index, ascending."""

    __slots__ = ("_rows", "count")

    def __init__(self, rows: Ints) -> None:
        self._rows, self.count = rows, len(rows)

    def numbers(self, first: int) -> Ints:
        numbers: Ints = self._rows + first
        return numbers

    def fixed(self, values: Ints) -> Ints:
        return values[self._rows]

    def ragged(self, offsets: Ints, data: Buffer) -> tuple[bytes, bytes]:
        starts, lengths, new = self._measure(offsets)
        return new.tobytes(), gather(data, starts, lengths)

    def entries(self, offsets: Ints) -> tuple[bytes, _Pick]:
        starts, lengths, new = self._measure(offsets)
        rows = np.repeat((starts - new[:-1]).astype(np.intp), lengths)
        rows += np.arange(len(rows))
        return new.tobytes(), _Rows(rows)

    def _measure(self, offsets: Ints) -> tuple[Ints, Ints, Ints]:
        starts = offsets[self._rows]
        lengths = offsets[1:][self._rows] - starts
        new = np.zeros(self.count + 1, "<i4")
        np.add.accumulate(lengths, out=new[1:])
        return starts, lengths, new


class Cutter:
    """Cuts one batch for several consumers. Columns are located and inflated once for all cuts.

    Args:
        order: rows of the batch, each at most once, grouped by consumer and ascending within a group. A cut of rows that
            are contiguous in it is cheaper. Other cuts cost the same as without it.
    """

    def __init__(self, data: Buffer, order: Ints | None = None) -> None:
        self._data = data
        self._part = read_producer_part(data, verify=False)
        self._view = BatchView(data, part=self._part)
        self._order = order

    def arrange(self, order: Ints) -> None:
        """Set another `order` of the rows."""
        self._order = order
        self.__dict__.pop("_arranged", None)

    def select(self, indices: Sequence[int] | Ints) -> Cut:
        """Return the messages at `indices`, strictly ascending, as a separate batch.

        Raises `InvalidArgument` without an index, for one outside the batch, and if they do not ascend.
        """
        rows = np.asarray(indices, dtype=np.intp)
        count = self._part.count
        if not len(rows) or rows[0] < 0 or rows[-1] >= count or np.count_nonzero(rows[1:] <= rows[:-1]):
            raise InvalidArgument(
                f"indices into a batch of {count} are ascending and within it, at least one",
                field="indices",
                value=rows[:16].tolist(),
            )
        if rows[-1] - rows[0] == len(rows) - 1:
            return self._cut(_Span(int(rows[0]), int(rows[-1]) + 1))
        if self._order is not None and (arranged := self._arranged) is not None:
            at = arranged.find(rows)
            if at is not None:
                return self._cut_arranged(arranged, rows, at)
        return self._cut(_Rows(rows))

    @cached_property
    def _arranged(self) -> Arranged | None:
        """Return the layout of the order, None if it does not support the columns or payloads of the batch."""
        part, view = self._part, self._view
        if self._order is None or not len(self._order) or part.columns & ~_ARRANGED:
            return None
        offsets, raw = self._payload
        lengths = self._lengths
        length = int(lengths[0])
        if np.count_nonzero(lengths != length):
            return None
        keys = self._keys
        if keys is not None and int(keys[1][-1]) > _FEW_KEY_BYTES * part.count:
            return None
        at = view.column_start(BatchColumn.PUBLISH_TIME)
        return Arranged(
            self._order,
            count=part.count,
            length=length,
            payload=(int(offsets[0]), raw),
            keys=keys,
            times=None if at is None else np.frombuffer(self._data, "<i4", part.count, at),
            first_sequence=part.first_sequence,
        )

    def _cut_arranged(self, arranged: Arranged, rows: Ints, at: int) -> Cut:
        """Cut the same rows as `_cut`, from the arranged layout."""
        part, count = self._part, len(rows)
        columns, parts = int(BatchColumn.PAYLOAD), list[Buffer]()
        offsets, raw = arranged.payload(at, count)
        codec, payload = self._packed(raw)
        append_padded(parts, offsets)
        append_padded(parts, payload)
        if (keys := arranged.keys(at, count)) is not None:
            columns |= BatchColumn.KEY
            for piece in keys:
                append_padded(parts, piece)
        if (times := arranged.times(at, count)) is not None:
            columns |= BatchColumn.PUBLISH_TIME
            append_padded(parts, times)
        if self._one_producer is not None:
            columns |= BatchColumn.PRODUCERS
            parts += self._one_producer
        first, last = int(rows[0]), int(rows[-1])
        # The rows are not contiguous in the batch, so sequences and offsets have holes.
        columns |= BatchColumn.SEQUENCE | BatchColumn.OFFSET_DELTA
        sequences, deltas = arranged.numbers(at, count)
        parts.append(sequences)
        append_padded(parts, deltas)
        sequence = part.first_sequence + first
        return self._sealed(parts, (codec, count, columns, len(raw), len(payload)), sequence, first, last)

    def _packed(self, raw: Buffer) -> tuple[Codec, Buffer]:
        """Return codec and payloads for storage, uncompressed if that takes no more room than the whole batch did."""
        part = self._part
        if part.codec != Codec.NONE and len(raw) > part.stored_bytes:
            packed = compress(raw, part.codec)
            if len(packed) < len(raw):
                return part.codec, packed
        return Codec.NONE, raw

    def _sealed(
        self,
        parts: Sequence[Buffer],
        shape: tuple[Codec, int, int, int, int],
        first_sequence: int,
        first_delta: int,
        last_delta: int,
    ) -> Cut:
        """Put the producer part before columns. `shape` is codec, count, columns, raw and stored bytes."""
        of = self._part
        times = first_sequence, of.first_publish_time_ms
        part = ProducerPart(
            *shape, of.producer_id, of.producer_epoch, *times, of.schema_id, of.schema_version
        )
        batch = seal(parts, part)
        return Cut(batch, first_delta, last_delta)

    def slice(self, start: int, stop: int) -> Cut:
        """Return the messages [start, stop) by index, like `select` but cheaper.

        Raises `InvalidArgument` if it is not a range within the batch.
        """
        if not 0 <= start < stop <= self._part.count:
            raise InvalidArgument(
                f"[{start}, {stop}) is not a range within a batch of {self._part.count}",
                field="indices",
                value=[start, stop],
            )
        return self._cut(_Span(start, stop))

    def slots(self, slots: int = KEY_SLOTS, *, producer_name: str = "") -> npt.NDArray[np.uint32]:
        """Return the slot of each message: CRC-32 of its key or, without one, of its producer's name.

        Args:
            producer_name: of the producer of the whole batch, for batches without a table of producers. If it is empty,
                the producer's id in decimal is used.
        """
        part, view = self._part, self._view
        hashes = keyed = None
        if (column := self._keys) is not None:
            bits, offsets, keys = column
            hashes, keyed = crc32_each(keys, offsets), bits.view(np.bool_)
            if keyed.all():
                return hashes % np.uint32(slots)
        names = [name.encode() or str(number).encode() for number, name in view.producers()]
        names = names or [(producer_name or str(part.producer_id)).encode()]
        of_names = np.array(list(map(crc32, names)), np.uint32)
        index = view.producer_index()
        result = np.full(part.count, of_names[0]) if index is None else of_names[np.array(index)]
        if hashes is not None and keyed is not None:
            result = np.where(keyed, hashes, result)
        return result % np.uint32(slots)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the size of each message in bytes: raw payload, key, attribute keys and values."""
        data, n = self._data, self._part.count
        sizes: npt.NDArray[np.int64] = self._lengths.astype(np.int64)
        if (column := self._keys) is not None:
            offsets = column[1]
            sizes += offsets[1:] - offsets[:-1]
        if (at := self._view.column_start(BatchColumn.ATTRIBUTES)) is not None:
            entries, keys_at = _offsets_at(data, at, n)
            total = int(entries[n])
            keys, start = _offsets_at(data, keys_at, total)
            values, _ = _offsets_at(data, start + padded(int(keys[total])), total)
            sizes += np.diff(keys[entries]) + np.diff(values[entries])
        return sizes

    @cached_property
    def _lengths(self) -> Ints:
        """The lengths of the payloads."""
        offsets, _ = _offsets_at(self._data, PRODUCER_PART_BYTES, self._part.count)
        lengths: Ints = offsets[1:] - offsets[:-1]
        return lengths

    @cached_property
    def _payload(self) -> tuple[Ints, Buffer]:
        """Offsets and bytes of the payloads."""
        part = self._part
        offsets, at = _offsets_at(self._data, PRODUCER_PART_BYTES, part.count)
        stored: Buffer = memoryview(self._data)[at : at + part.stored_bytes]
        if part.codec != Codec.NONE:
            stored = bytes(decompress(stored, part.codec, part.raw_bytes))
        return offsets, stored

    @cached_property
    def _keys(self) -> tuple[Ints, Ints, Buffer] | None:
        return _key_column(self._data, self._view)

    @cached_property
    def _one_producer(self) -> list[Buffer] | None:
        """Return the table of producers if it has a single row, which every cut copies."""
        at = self._view.column_start(BatchColumn.PRODUCERS)
        if at is None or self._view.column_start(BatchColumn.PRODUCER_INDEX) is not None:
            return None
        parts: list[Buffer] = []
        _producers(parts, self._data, at, self._view, _Span(0, self._part.count))
        return parts

    def _cut(self, pick: _Pick) -> Cut:
        data, part, view = self._data, self._part, self._view
        n, columns, parts = part.count, int(BatchColumn.PAYLOAD), list[Buffer]()

        new_offsets, raw = pick.ragged(*self._payload)
        codec, payload = self._packed(raw)
        append_padded(parts, new_offsets)
        append_padded(parts, payload)

        if (keys := self._keys) is not None:
            columns |= BatchColumn.KEY
            bits, offsets, stored = keys
            append_padded(parts, np.packbits(pick.fixed(bits), bitorder="little").tobytes())
            for piece in pick.ragged(offsets, stored):
                append_padded(parts, piece)
        if (at := view.column_start(BatchColumn.ATTRIBUTES)) is not None:
            columns |= BatchColumn.ATTRIBUTES
            entry_offsets, keys_at = _offsets_at(data, at, n)
            new_entries, entries = pick.entries(entry_offsets)
            append_padded(parts, new_entries)
            total = int(entry_offsets[n])
            values_at = _ragged(parts, data, keys_at, total, entries)
            _ragged(parts, data, values_at, total, entries)
        if (at := view.column_start(BatchColumn.PUBLISH_TIME)) is not None:
            # Relative to the header's time as before: with another base a delta might not fit
            columns |= BatchColumn.PUBLISH_TIME
            append_padded(parts, pick.fixed(np.frombuffer(data, "<i4", n, at)).tobytes())
        if self._one_producer is not None:
            columns |= BatchColumn.PRODUCERS
            parts += self._one_producer
        elif (at := view.column_start(BatchColumn.PRODUCERS)) is not None:
            columns |= BatchColumn.PRODUCERS
            columns |= _producers(parts, data, at, view, pick)
        at = view.column_start(BatchColumn.SEQUENCE)
        first = part.first_sequence
        sequences = pick.numbers(first) if at is None else pick.fixed(np.frombuffer(data, "<i8", n, at))
        first_sequence = int(sequences[0])
        if int(sequences[-1]) - first_sequence != pick.count - 1 or at is not None:
            columns |= BatchColumn.SEQUENCE
            append_padded(parts, sequences.astype("<i8", copy=False).tobytes())
        if (at := view.column_start(BatchColumn.SCHEMAS)) is not None:
            columns |= BatchColumn.SCHEMAS
            _schemas(parts, data, at, n, pick)
        at = view.column_start(BatchColumn.OFFSET_DELTA)
        deltas = pick.numbers(0) if at is None else pick.fixed(np.frombuffer(data, "<u4", n, at))
        first_delta, last_delta = int(deltas[0]), int(deltas[-1])
        if last_delta - first_delta != pick.count - 1:  # rising deltas with holes
            columns |= BatchColumn.OFFSET_DELTA
            append_padded(parts, (deltas - first_delta).astype("<u4").tobytes())

        shape = codec, pick.count, columns, len(raw), len(payload)
        return self._sealed(parts, shape, first_sequence, first_delta, last_delta)


def _offsets_at(data: Buffer, at: int, n: int) -> tuple[Ints, int]:
    """Return the offset array of a variable-length column and the start of its bytes."""
    return np.frombuffer(data, "<i4", n + 1, at), at + padded(4 * (n + 1))


def _key_column(data: Buffer, view: BatchView) -> tuple[Ints, Ints, Buffer] | None:
    """Return which messages have a key (0 or 1 each), and offsets and bytes of the keys. None without a key column."""
    at, n = view.column_start(BatchColumn.KEY), view.part.count
    if at is None:
        return None
    packed = (n + 7) // 8
    bits = np.unpackbits(np.frombuffer(data, np.uint8, packed, at), count=n, bitorder="little")
    offsets, start = _offsets_at(data, at + padded(packed), n)
    return bits, offsets, memoryview(data)[start : start + int(offsets[n])]


def _ragged(parts: list[Buffer], data: Buffer, at: int, n: int, pick: _Pick) -> int:
    """Append the picked rows of a variable-length column and return the end of the column."""
    offsets, start = _offsets_at(data, at, n)
    end = start + int(offsets[n])
    new_offsets, taken = pick.ragged(offsets, memoryview(data)[start:end])
    append_padded(parts, new_offsets)
    append_padded(parts, taken)
    return start + padded(end - start)


def _producers(parts: list[Buffer], data: Buffer, at: int, view: BatchView, pick: _Pick) -> int:
    """Append the used rows of the producers' table, and the index for two or more. Return the index's column bit or 0."""
    rows, index_at = (
        int.from_bytes(data[at : at + 4], "little"),
        view.column_start(BatchColumn.PRODUCER_INDEX),
    )
    used, index = np.zeros(1, np.intp), None
    if index_at is not None:
        taken = pick.fixed(np.frombuffer(data, "<i4", view.part.count, index_at))
        used, index = np.unique(taken, return_inverse=True)
    parts.append(len(used).to_bytes(8, "little"))
    append_padded(parts, np.frombuffer(data, "<u8", rows, at + 8)[used].tobytes())
    _ragged(parts, data, at + 8 + 8 * rows, rows, _Rows(used))
    if index is None or len(used) == 1:
        return 0
    append_padded(parts, index.astype("<i4").tobytes())
    return int(BatchColumn.PRODUCER_INDEX)


def _schemas(parts: list[Buffer], data: Buffer, at: int, n: int, pick: _Pick) -> None:
    rows = int.from_bytes(data[at : at + 4], "little")
    versions_at = at + 8 + 8 * rows
    index_at = versions_at + padded(4 * rows)
    used, index = np.unique(pick.fixed(np.frombuffer(data, "<i4", n, index_at)), return_inverse=True)
    parts.append(len(used).to_bytes(8, "little"))
    append_padded(parts, np.frombuffer(data, "<u8", rows, at + 8)[used].tobytes())
    append_padded(parts, np.frombuffer(data, "<u4", rows, versions_at)[used].tobytes())
    append_padded(parts, index.astype("<i4").tobytes())


# -- routing -------------------------------------------------------------------------------------------------


def key_slots(data: Buffer, slots: int = KEY_SLOTS, *, producer_name: str = "") -> npt.NDArray[np.uint32]:
    """Return the key slots of a batch. See `Cutter.slots`."""
    return Cutter(data).slots(slots, producer_name=producer_name)
