"""The columns of a topic in Spark, as returned by `pydanube_storage.topics.rows`, and the columns of the files."""

from __future__ import annotations

from typing import Final

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
# The files' types for Spark's own reader. It supports unsigned 64-bit integers only as decimals. With bigint it fails at
# pages with a dictionary (ParquetDictionary.decodeToLong, seen in Spark 4.3.0).
_UNSIGNED: Final = DecimalType(20, 0)
_IN_FILES: Final = {
    "producer": StructType([StructField("id", _UNSIGNED), StructField("name", StringType())]),
    "schema_id": _UNSIGNED,
}
FILE_SCHEMA: Final = StructType(
    [_OFFSET, *(StructField(each.name, _IN_FILES.get(each.name, each.dataType)) for each in _COLUMNS)]
)
