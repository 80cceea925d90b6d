"""The columns of a topic, and the conversion of a stored row group to them.

Ids are unsigned in the file and signed here, because Spark has no unsigned integers. They are small counters, so the bits
are taken as they are. Times are microseconds, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from pydanube_storage.parquet.nulls import with_nulls

_TIME: Final = pa.timestamp("us", tz="UTC")
_OF_LOG: Final = ("topic", "partition")  # not in objects
_PRODUCER: Final = [pa.field("id", pa.int64()), pa.field("name", pa.string())]
ROWS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("append_time", _TIME),
        pa.field("publish_time", _TIME),
        pa.field("producer", pa.struct(_PRODUCER)),
        pa.field("key", pa.string()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("schema_id", pa.int64()),
        pa.field("schema_version", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)


def stored_columns(columns: Sequence[str], *, by_time: bool) -> list[str] | None:
    """Return the columns of an object that rows with these columns need. None for all of them.

    Args:
        by_time: whether rows are chosen by append time.
    """
    needed = {"offset", *columns}
    needed |= {"append_time"} if by_time else set()
    needed |= {"attributes"} if "payload" in needed else set()
    found = [name for name in ROWS.names if name in needed and name not in _OF_LOG]
    return None if len(found) == len(ROWS) - len(_OF_LOG) else found


def rows_of(table: Any, *, topic: str, partition: int | None, columns: Sequence[str] = ROWS.names) -> Any:
    """Return a part of an object as a record batch with the named columns of `ROWS`."""
    made = [_column(name, table, topic, partition) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=pa.schema([ROWS.field(name) for name in columns]))


def _column(name: str, table: Any, topic: str, partition: int | None) -> Any:
    kind = ROWS.field(name).type
    match name:
        case "topic" | "partition":
            value = topic if name == "topic" else partition
            return pa.repeat(pa.scalar(value, kind), table.num_rows)
        case "producer":
            producer = _one(table.column(name))
            ids = producer.field("id").cast(pa.int64(), safe=False)
            return pa.StructArray.from_arrays([ids, producer.field("name")], fields=_PRODUCER)
        case "schema_id":
            return _one(table.column(name)).cast(kind, safe=False)
        case "payload":
            return with_nulls(_one(table.column(name)), _one(table.column("attributes")))
        case _:
            return _one(table.column(name)).cast(kind)


def _one(column: Any) -> Any:
    """Return a column as one array. `combine_chunks` copies, also a single chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
