"""The columns of a topic in Spark, and the conversion of a stored row group to them.

Ids are unsigned in the file and signed in Spark, which has no unsigned integers: they are small counters, so the bits
are taken as they are. Times are microseconds in Spark.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pydanube_storage.parquet.nulls import with_nulls
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TIME: Final = pa.timestamp("us", tz="UTC")
_PRODUCER: Final = [pa.field("id", pa.int64()), pa.field("name", pa.string())]
_COLUMNS: Final = [
    StructField("append_time", TimestampType()),
    StructField("publish_time", TimestampType()),
    StructField("producer", StructType([StructField("id", LongType()), StructField("name", StringType())])),
    StructField("key", StringType()),
    StructField("attributes", MapType(StringType(), StringType())),
    StructField("schema_id", LongType()),
    StructField("schema_version", LongType()),
    StructField("payload", BinaryType()),
]
_OFFSET: Final = StructField("offset", LongType())
TOPIC_SCHEMA: Final = StructType(
    [StructField("topic", StringType()), StructField("partition", IntegerType()), _OFFSET, *_COLUMNS]
)
# What Spark's own reader is told of the files. It takes unsigned 64-bit integers as decimals only: told bigint, it
# fails over pages with a dictionary (ParquetDictionary.decodeToLong, seen in Spark 4.3.0).
_UNSIGNED: Final = DecimalType(20, 0)
_IN_FILES: Final = {
    "producer": StructType([StructField("id", _UNSIGNED), StructField("name", StringType())]),
    "schema_id": _UNSIGNED,
}
FILE_SCHEMA: Final = StructType(
    [_OFFSET, *(StructField(each.name, _IN_FILES.get(each.name, each.dataType)) for each in _COLUMNS)]
)


def rows_of(table: Any, *, topic: str, partition: int | None) -> Any:
    """Return an object's record batch in the columns of `TOPIC_SCHEMA`."""
    count = table.num_rows
    column = {name: _one(table.column(name)) for name in table.schema.names}
    producer = column["producer"]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic), count),
            pa.nulls(count, pa.int32())
            if partition is None
            else pa.repeat(pa.scalar(partition, pa.int32()), count),
            column["offset"],
            column["append_time"].cast(_TIME),
            column["publish_time"].cast(_TIME),
            pa.StructArray.from_arrays(
                [producer.field("id").cast(pa.int64(), safe=False), producer.field("name")], fields=_PRODUCER
            ),
            column["key"],
            column["attributes"].cast(pa.map_(pa.string(), pa.string())),
            column["schema_id"].cast(pa.int64(), safe=False),
            column["schema_version"].cast(pa.int64()),
            with_nulls(column["payload"], column["attributes"]),
        ],
        names=TOPIC_SCHEMA.names,
    )


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
