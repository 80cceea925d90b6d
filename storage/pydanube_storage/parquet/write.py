"""Write one object: row groups as they fill, then the footer. Return digest, size and facts.

Memory is bounded by one row group for any object size. The file is written to the store's spool folder.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from pydanube_storage.parquet.columns import FORMAT_VERSION, SCHEMA, SCHEMA_2, Meta
from pydanube_storage.parquet.encode import Buffer, RowGroup
from pydanube_storage.parquet.nulls import with_nulls

ROW_GROUP_BYTES: Final = 12 << 20  # raw; 8 to 16 MB: docs/design.md#5-the-cold-tier
_MAX_ROW_GROUP_BYTES: Final = 16 << 20
_DICTIONARY: Final = ["producer.id", "producer.name", "key", "schema_id", "schema_version"]
_DELTA: Final = dict.fromkeys(("offset", "append_time", "publish_time", "sequence"), "DELTA_BINARY_PACKED")
# Every column except the payload: DuckDB answers min and max from the footer only if each column it may need has
# statistics (19 ms against 3 ms for 1.5 million rows). A payload's statistics would be copies of payloads.
_STATISTICS: Final = [
    *("offset", "append_time", "publish_time", "sequence", "key", "producer.id", "producer.name"),
    *("attributes.key_value.key", "attributes.key_value.value", "schema_id", "schema_version"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenObject:
    """A written object. `digest` is the file's SHA-256 in hexadecimal. `footer_crc` covers the last `footer_bytes`."""

    meta: Meta
    messages: int
    bytes: int
    min_append_time_ms: int
    max_append_time_ms: int
    digest: str
    footer_bytes: int
    footer_crc: int


class _Hashing(io.RawIOBase):
    """A file that hashes its data while it is written."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__()
        self._file = path.open(mode)
        self.digest = hashlib.sha256()
        self.written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.written

    def write(self, data: Any) -> int:
        self.digest.update(data)
        view = memoryview(data)
        self._file.write(view)
        self.written += view.nbytes
        return view.nbytes

    def close(self) -> None:
        self._file.close()
        super().close()


class ObjectWriter:
    """Use as `with ObjectWriter(path, meta) as writer`: add batches or tables, then `finish`.

    Without `finish`, the file is removed on exit.
    """

    def __init__(self, path: Path, meta: Meta, *, must_be_new: bool = False) -> None:
        self._path = path
        self._meta = meta
        self._schema = SCHEMA if meta.format_version == FORMAT_VERSION else SCHEMA_2
        self._has_nulls = False
        self._sink = _Hashing(path, "xb" if must_be_new else "wb")
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY,
            column_encoding=_DELTA,
            write_page_checksum=True,
            write_statistics=_STATISTICS,
            store_schema=False,
        )
        self._group = RowGroup()
        self._tables: list[Any] = []
        self._messages = 0
        self._times: list[int] = []
        self._epochs: list[tuple[int, int]] = []
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            try:
                self._writer.close()
            finally:
                self._sink.close()
                self._path.unlink(missing_ok=True)

    def add(self, data: Buffer) -> tuple[int, int]:
        """Add a stored batch and return its offsets [base, end). Raises like `RowGroup.add`."""
        if self._group.messages and self._group.raw_bytes + len(data) > _MAX_ROW_GROUP_BYTES:
            self._flush()
        owner = self._group.add(data)
        epoch, base, time_ms = owner.epoch, owner.base_offset, owner.append_time_ms
        if not self._epochs or self._epochs[-1][0] != epoch:
            self._epochs.append((epoch, base))
        self._note_time(time_ms, time_ms)
        if self._group.raw_bytes >= ROW_GROUP_BYTES:
            self._flush()
        return base, owner.last_offset + 1

    def add_table(self, table: Any, epochs: tuple[tuple[int, int], ...]) -> None:
        """Add one row group of another object (compaction)."""
        for epoch, first in epochs:
            if not self._epochs or self._epochs[-1][0] < epoch:
                self._epochs.append((epoch, first))
        if table.num_rows:
            times = table.column("append_time").cast(pa.int64())
            self._note_time(times[0].as_py(), times[-1].as_py())  # append times never decrease
            if (
                self._tables
                and sum(each.nbytes for each in self._tables) + table.nbytes > _MAX_ROW_GROUP_BYTES
            ):
                self._flush()
            self._tables.append(table)
            if sum(each.nbytes for each in self._tables) >= ROW_GROUP_BYTES:
                self._flush()

    def _note_time(self, first_ms: int, last_ms: int) -> None:
        self._times = [self._times[0] if self._times else first_ms, last_ms]

    def _flush(self) -> None:
        if self._group.messages:
            self._messages += self._group.messages
            self._write(pa.Table.from_batches([self._group.to_arrow()]))
            self._group = RowGroup()
        if self._tables:
            table = pa.concat_tables(self._tables)
            self._messages += table.num_rows
            self._write(table.combine_chunks())
            self._tables = []

    def _write(self, table: Any) -> None:
        """Write one row group, of one chunk."""
        if self._schema is not SCHEMA:
            payload = with_nulls(table.column("payload").chunk(0), table.column("attributes").chunk(0))
            self._has_nulls = self._has_nulls or payload.null_count > 0
            at = self._schema.get_field_index("payload")
            table = table.set_column(at, self._schema.field(at), payload)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def finish(self, *, covers: tuple[int, int] | None = None) -> WrittenObject:
        """Write the remaining rows and the footer. `covers`: the offsets [start, end), if `meta` does not have them."""
        assert not self._finished
        self._flush()
        start, end = covers or (self._meta.start, self._meta.end)
        version = self._meta.format_version if self._has_nulls else FORMAT_VERSION
        meta = replace(self._meta, epochs=tuple(self._epochs), start=start, end=end, format_version=version)
        self._writer.add_key_value_metadata(meta.to_footer())
        self._writer.close()
        self._finished = True
        size = self._sink.written
        self._sink.close()
        footer = _footer_of(self._path, size)
        return WrittenObject(
            meta=meta,
            messages=self._messages,
            bytes=size,
            min_append_time_ms=self._times[0] if self._times else 0,
            max_append_time_ms=self._times[-1] if self._times else 0,
            digest=self._sink.digest.hexdigest(),
            footer_bytes=len(footer),
            footer_crc=crc32(footer),
        )


def _footer_of(path: Path, size: int) -> bytes:
    """Return the last bytes of the file: metadata, its length, the magic."""
    with path.open("rb") as file:
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little") + 8
        file.seek(size - length)
        return file.read()
