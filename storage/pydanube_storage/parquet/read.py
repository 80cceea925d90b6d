"""Read an object from a store, a row group at a time: one range request each, page checksums verified.

The object's length and footer are checked against the catalog, so that a replaced or truncated object is reported as
damaged.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydanube_core.errors import CorruptObject

from pydanube_storage.objects.protocol import ObjectStore
from pydanube_storage.parquet.columns import SCHEMA, Meta
from pydanube_storage.parquet.write import WrittenObject

_APPEND_TIME: Final = SCHEMA.get_field_index("append_time")
_TAIL_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The catalog's facts about an object."""

    bytes: int
    footer_bytes: int
    footer_crc: int


class _Window(io.RawIOBase):
    """An object as a file, with some parts already in memory."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = size
        self._at = 0
        self.parts: list[tuple[int, bytes]] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        start, self._at = self._at, max(self._at, end)
        for first, data in self.parts:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        return self._store.read(self._key, start, end) if start < end else b""


# Errors of pyarrow for bytes that are not Parquet. It raises ValueError for names that are not UTF-8.
_DAMAGED: Final = (pa.ArrowException, OSError, ValueError)


class ObjectReader:
    """An open object with its footer read and checked. Not thread-safe.

    Raises `ObjectMissing`, `CorruptObject`, `StoreUnavailable`, `FormatTooNew`.
    """

    def __init__(self, store: ObjectStore, key: str, expected: Expected | None = None) -> None:
        self._store = store
        self.key = key
        size = store.size(key)
        if expected is not None and size != expected.bytes:
            raise self._corrupt(f"it has {size} bytes, and {expected.bytes} in the catalog", "length")
        tail_bytes = min(size, max(_TAIL_BYTES, expected.footer_bytes if expected else 0))
        tail = store.read(key, size - tail_bytes, size)
        if expected is not None and crc32(tail[-expected.footer_bytes :]) != expected.footer_crc:
            raise self._corrupt("its footer differs from the written one", "footer")
        self._window = _Window(store, key, size)
        self._tail = (size - tail_bytes, tail)
        self._window.parts = [self._tail]
        try:
            self._file = pq.ParquetFile(
                pa.PythonFile(self._window, mode="r"), page_checksum_verification=True, pre_buffer=False
            )
            self.footer: Any = self._file.metadata
            self.row_groups: int = self.footer.num_row_groups
            self.messages: int = self.footer.num_rows
            statistics = [self.footer.row_group(i).column(0).statistics for i in range(self.row_groups)]
            self._last = [int(each.max) for each in statistics]  # last offset of each row group
            self.first = [int(each.min) for each in statistics]
        except (*_DAMAGED, AttributeError, TypeError) as error:  # the last two: missing statistics
            raise self._corrupt(f"it is not Parquet: {error}", "footer") from error
        self.meta = Meta.from_footer(self.footer.metadata, key=key)

    def row_group_at(self, offset: int) -> int:
        """Return the first row group with a message at or after `offset`, `row_groups` if there is none."""
        return bisect_right(self._last, offset - 1)

    def row_group_end(self, index: int) -> int:
        """Return the end (exclusive) of the offsets that a row group covers, including the gap after it."""
        return self.meta.end if index + 1 >= self.row_groups else self.first[index + 1]

    def read_row_group(self, index: int, columns: list[str] | None = None) -> Any:
        """Return a row group as a table. Raises like the constructor."""
        group = self.footer.row_group(index)
        starts, ends = [], []
        for i in range(group.num_columns):
            column = group.column(i)
            start = column.dictionary_page_offset or column.data_page_offset
            starts.append(min(start, column.data_page_offset))
            ends.append(starts[-1] + column.total_compressed_size)
        if columns is None:
            data = self._store.read(self.key, min(starts), max(ends))
            self._window.parts = [self._tail, (min(starts), data)]
        try:
            table = self._file.read_row_group(index, columns=columns, use_threads=False)
            table = _without_nulls(table)
            return table if columns is not None else table.cast(SCHEMA)
        except _DAMAGED as error:
            raise self._corrupt(f"row group {index}: {error}", "page") from error
        finally:
            self._window.parts = [self._tail]

    def offset_at_time(self, time_ms: int) -> int | None:
        """Return the first offset appended at or after `time_ms`, None if this object has none."""
        for index in range(self.row_groups):
            table = self.read_row_group(index, ["offset", "append_time"])
            times = table.column("append_time").cast(pa.int64()).to_numpy()
            # A clock that ran ahead may have stamped some messages: limit each time to those that follow.
            at = int(np.minimum.accumulate(times[::-1])[::-1].searchsorted(time_ms))
            if at < len(times):
                return int(table.column("offset")[at].as_py())
        return None

    def time_at_offset(self, offset: int) -> int | None:
        """Return the append time of the first message at or after `offset`, None if this object has none."""
        times = self.times_from(offset, 1)
        return times[0][1] if times else None

    def times_from(self, offset: int, points: int) -> list[tuple[int, int]]:
        """Return (offset, append time) of up to `points` messages: the first one at or after `offset`, and further ones
        evenly spaced to the end of its row group. Empty if the object ends before."""
        index = self.row_group_at(offset)
        if index == self.row_groups:
            return []
        table = self.read_row_group(index, ["offset", "append_time"])
        offsets = table.column("offset").to_numpy()
        times = table.column("append_time").cast(pa.int64()).to_numpy()
        first, last = int(offsets.searchsorted(offset)), len(offsets) - 1
        steps = max(1, points - 1)
        places = sorted({first + (last - first) * i // steps for i in range(points)})
        return [(int(offsets[place]), int(times[place])) for place in places]

    def described(self) -> WrittenObject:
        """Return the facts of an object that is not in the catalog, as its writer computed them. Reads the whole object."""
        tail = self._tail[1]
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
        size = self._tail[0] + len(tail)
        footer = self._store.read(self.key, size - footer_bytes, size)
        times = [self.footer.row_group(i).column(_APPEND_TIME).statistics for i in range(self.row_groups)]
        return WrittenObject(
            meta=self.meta,
            messages=self.messages,
            bytes=size,
            min_append_time_ms=min((_ms(each.min) for each in times), default=0),
            max_append_time_ms=max((_ms(each.max) for each in times), default=0),
            digest=digest_of(self._store, self.key, size),
            footer_bytes=footer_bytes,
            footer_crc=crc32(footer),
        )

    def _corrupt(self, why: str, cause: str) -> CorruptObject:
        return CorruptObject(
            f"object {self.key} in {self._store.url} is damaged: {why}. Restore it from a copy of the bucket",
            store=self._store.url,
            key=self.key,
            cause=cause,
        )


def _without_nulls(table: Any) -> Any:
    """Return a table with payloads as in format 1: a null payload is empty and keeps its attribute."""
    at = table.schema.get_field_index("payload")
    if at < 0 or not table.column(at).null_count:
        return table
    return table.set_column(at, SCHEMA.field("payload"), table.column(at).fill_null(b""))


def _ms(time: Any) -> int:
    """Return milliseconds from a statistic of a timestamp column."""
    return int(time) if isinstance(time, int) else round(time.timestamp() * 1000)


def digest_of(store: ObjectStore, key: str, size: int, *, like: str = "") -> str:
    """Return the SHA-256 of an object in the store. With hardware support it is three times as fast as BLAKE2b.

    Args:
        like: a digest to compare with. If it has 32 digits, the result is BLAKE2b-128, which the first objects have.
    """
    digest = hashlib.blake2b(digest_size=16) if len(like) == 32 else hashlib.sha256()
    for piece in _pieces(size):
        digest.update(store.read(key, *piece))
    return digest.hexdigest()


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _PIECE_BYTES):
        yield start, min(size, start + _PIECE_BYTES)
