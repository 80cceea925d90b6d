"""Columns of a batch with their rows in another order, to cut the batch for several consumers. Needs numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]


class Arranged:
    """Rows of a batch in another order. Rows that are contiguous in it are cut by slicing.

    The rows are gathered once for all consumers of a batch. A cut copies nothing, because its columns are views.

    Args:
        length: of every payload.
        payload: offset of the first payload, and the bytes of all.
    """

    __slots__ = (
        "_bits", "_deltas", "_key_offsets", "_keys", "_length", "_offsets", "_payload", "_place",
        "_sequences", "_times", "rows",
    )  # fmt: skip

    def __init__(
        self,
        rows: Ints,
        *,
        count: int,
        length: int,
        payload: tuple[int, Buffer],
        keys: tuple[Ints, Ints, Buffer] | None,
        times: Ints | None,
        first_sequence: int,
    ) -> None:
        self.rows = rows
        self._place = np.full(count, -1, np.intp)
        self._place[rows] = np.arange(len(rows))
        self._length = length
        self._offsets = _octets((np.arange(len(rows) + 1) * length).astype("<i4"))
        self._payload = memoryview(b"")
        if length:
            start, raw = payload
            self._payload = _octets(np.frombuffer(raw, f"V{length}", count, start).take(rows))
        self._times = None if times is None else _octets(times.take(rows))
        self._sequences = _octets((rows + first_sequence).astype("<i8", copy=False))
        self._deltas = rows.astype("<u4")
        self._keys = memoryview(b"")
        self._bits = self._key_offsets = None
        if keys is not None:
            bits, key_offsets, stored = keys
            self._bits = bits.take(rows)
            starts = key_offsets.take(rows)
            lengths = key_offsets[1:].take(rows) - starts
            self._key_offsets = np.zeros(len(rows) + 1, "<i4")
            np.add.accumulate(lengths, out=self._key_offsets[1:])
            where = (starts - self._key_offsets[:-1]).repeat(lengths)
            where += np.arange(len(where), dtype=where.dtype)
            self._keys = _octets(np.frombuffer(stored, np.uint8).take(where))

    def find(self, rows: Ints) -> int | None:
        """Return the position of these rows in the order, None if they are not contiguous."""
        at = int(self._place[rows[0]])
        if at < 0:
            return None
        own = self.rows[at : at + len(rows)]
        return at if len(own) == len(rows) and bool((own == rows).all()) else None

    def payload(self, at: int, count: int) -> tuple[Buffer, Buffer]:
        """Return offsets and bytes of the payloads."""
        length = self._length
        return self._offsets[: 4 * (count + 1)], self._payload[at * length : (at + count) * length]

    def keys(self, at: int, count: int) -> tuple[Buffer, Buffer, Buffer] | None:
        """Return the bits, offsets and bytes of the keys, None without keys."""
        if self._key_offsets is None or self._bits is None:
            return None
        offsets = self._key_offsets[at : at + count + 1]
        first, end = int(offsets[0]), int(offsets[-1])
        bits = np.packbits(self._bits[at : at + count], bitorder="little")
        return bits.data, _octets(offsets - offsets[0]), self._keys[first:end]

    def times(self, at: int, count: int) -> Buffer | None:
        """Return the publish times, None without that column."""
        return None if self._times is None else self._times[4 * at : 4 * (at + count)]

    def numbers(self, at: int, count: int) -> tuple[Buffer, Buffer]:
        """Return the sequences, and the row numbers relative to the first row."""
        deltas = self._deltas[at : at + count]
        return self._sequences[8 * at : 8 * (at + count)], _octets(deltas - deltas[0])


def _octets(values: Ints) -> memoryview:
    """Return a new array as bytes."""
    return values.view(np.uint8).data
