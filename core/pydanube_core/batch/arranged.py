"""Columns of a batch with their rows in another order, for cutting it up among several consumers. Needs numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pydanube_core.batch.gather import equal_rows

__all__ = ["Arranged"]

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]


class Arranged:
    """Rows of a batch in another order: those that follow each other there are cut by slicing.

    One permuted gather for all consumers of a batch, in place of one each.
    """

    __slots__ = (
        "_bits",
        "_key_offsets",
        "_keys",
        "_length",
        "_offsets",
        "_payload",
        "_place",
        "_times",
        "rows",
    )

    def __init__(
        self,
        rows: Ints,
        *,
        count: int,
        length: int,
        payload: tuple[Ints, Buffer],
        keys: tuple[Ints, Ints, Buffer] | None,
        times: Ints | None,
    ) -> None:
        self.rows = rows
        self._place = np.full(count, -1, np.intp)
        self._place[rows] = np.arange(len(rows))
        self._length = length
        self._offsets = (np.arange(len(rows) + 1) * length).astype("<i4")
        offsets, raw = payload
        self._payload = equal_rows(raw, offsets[rows], length)
        self._times = None if times is None else times[rows]
        self._keys = self._key_offsets = self._bits = None
        if keys is not None:
            bits, key_offsets, stored = keys
            self._bits = bits[rows]
            starts = key_offsets[rows]
            lengths = key_offsets[1:][rows] - starts
            self._key_offsets = np.zeros(len(rows) + 1, "<i4")
            np.add.accumulate(lengths, out=self._key_offsets[1:])
            where = np.repeat(starts - self._key_offsets[:-1], lengths)
            where += np.arange(len(where), dtype=where.dtype)
            self._keys = np.frombuffer(stored, np.uint8)[where].tobytes()

    def find(self, rows: Ints) -> int | None:
        """Where these rows follow each other, if they do."""
        at = int(self._place[rows[0]])
        if at < 0 or not np.array_equal(self.rows[at : at + len(rows)], rows):
            return None
        return at

    def payload(self, at: int, count: int) -> tuple[bytes, bytes]:
        """Offsets and bytes of the payloads."""
        return self._offsets[: count + 1].tobytes(), self._payload[
            at * self._length : (at + count) * self._length
        ]

    def keys(self, at: int, count: int) -> tuple[bytes, bytes, bytes] | None:
        """The bits, offsets and bytes of the keys, if there are any."""
        if self._keys is None or self._key_offsets is None or self._bits is None:
            return None
        offsets = self._key_offsets[at : at + count + 1]
        first, end = int(offsets[0]), int(offsets[-1])
        bits = np.packbits(self._bits[at : at + count], bitorder="little").tobytes()
        return bits, (offsets - offsets[0]).tobytes(), self._keys[first:end]

    def times(self, at: int, count: int) -> bytes | None:
        """The publish times, if there are any."""
        return None if self._times is None else self._times[at : at + count].tobytes()
