"""Read files of samples as Arrow. Page checksums are verified, and columns checked against the table."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydanube_core.errors import CorruptObject, ObjectMissing
from pydanube_core.telemetry import ColumnType, Table, live_files, telemetry_folder
from pydanube_core.telemetry.files import DAY_MS, TelemetryFile, date_of

from pydanube_storage.objects.protocol import ObjectStore
from pydanube_storage.telemetry.writing import arrow_schema

_MOST_FILES: Final = 300  # of one answer: hours of ten days, of one broker


def stored_files(
    store: ObjectStore, cluster: str, table: Table, *, start_ms: int = 0, end_ms: int = 1 << 62
) -> Iterator[tuple[str, TelemetryFile, int]]:
    """Yield (key, name, bytes) of the files that count for samples of `[start_ms, end_ms)`, a day at a time."""
    folder = telemetry_folder(cluster, table.name)
    last_day = date_of(min(end_ms - 1, 253_402_300_799_000)) if end_ms < 1 << 62 else "9999"
    first_day = date_of(max(0, start_ms - DAY_MS))
    for name in store.folders(folder):
        day = name.removeprefix("date=")
        if not first_day <= day <= last_day:
            continue
        sizes = {fact.key: fact.bytes for fact in store.list(f"{folder}/{name}")}
        for key, file in live_files(sizes, start_ms=start_ms, end_ms=end_ms):
            yield key, file, sizes[key]


def read_samples(store: ObjectStore, key: str, table: Table, *, columns: list[str] | None = None) -> Any:
    """Return the samples of one file. Columns that its writer did not have are null.

    Raises:
        ObjectMissing, StoreUnavailable. CorruptObject: it is not a whole file of this table.
    """
    data = store.read(key, 0, store.size(key))
    wanted = arrow_schema(table)
    if columns is not None:
        wanted = pa.schema([wanted.field(name) for name in columns])
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        known = set(file.schema_arrow.names)
        found = file.read([name for name in wanted.names if name in known], use_threads=False)
        count = found.num_rows
        arrays = [
            found.column(field.name).cast(field.type) if field.name in known else pa.nulls(count, field.type)
            for field in wanted
        ]
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:  # ValueError: a name is not UTF-8
        raise CorruptObject(
            f"telemetry file {key} in {store.url} is damaged: {str(error).rstrip('. ')}. Delete it, or restore it from a copy of the "
            "bucket. Its rows are missing from reports then",
            store=store.url,
            key=key,
            cause="page",
        ) from error
    return pa.Table.from_arrays(arrays, names=wanted.names)


def newest_rows(
    store: ObjectStore,
    cluster: str,
    table: Table,
    *,
    start_ms: int,
    end_ms: int,
    most: int,
    broker_id: str | None = None,
) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the newest rows with a time in `[start_ms, end_ms)`, newest first, and whether there are older ones.

    Times are milliseconds. `broker_id`: only what this broker wrote. Damaged files are left out. Raises `StoreUnavailable`.
    """
    listed = stored_files(store, cluster, table, start_ms=start_ms, end_ms=end_ms)
    files = sorted(
        (each for each in listed if broker_id in (None, each[1].broker_id)),
        key=lambda each: each[1].end_ms,
        reverse=True,
    )
    rows: list[tuple[Any, ...]] = []
    more = len(files) > _MOST_FILES
    for key, file, _ in files[:_MOST_FILES]:
        rows.sort(key=lambda row: row[0], reverse=True)
        if len(rows) >= most and rows[most - 1][0] >= file.end_ms:
            more = True  # the remaining files are older
            break
        with suppress(CorruptObject, ObjectMissing):
            samples = read_samples(store, key, table)
            times = samples.column("taken_at").cast(pa.int64())
            samples = samples.filter(pc.and_(pc.greater_equal(times, start_ms), pc.less(times, end_ms)))
            columns = [
                (found.cast(pa.int64()) if column.kind is ColumnType.TIME else found).to_pylist()
                for column in table.columns
                for found in [samples.column(column.name)]
            ]
            rows += zip(*columns, strict=True)
    rows.sort(key=lambda row: row[0], reverse=True)
    return rows[:most], more or len(rows) > most
