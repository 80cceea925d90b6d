"""`read_topic`: a topic as a table by Spark's own Parquet reader, which prunes columns and decodes in the JVM.

Committed objects are read as files, later messages by the data source: each message exactly once, as of the moment of
the call. If Spark cannot open the store (S3 without its jar), the data source reads everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import Final

from pydanube_core.batch.nulls import NULL
from pydanube_storage.topics.decoding.registry import latest_version
from pydanube_storage.topics.extent import Extent
from pydanube_storage.topics.located import Located, locate
from pydanube_storage.topics.positions import between
from pydanube_storage.topics.reading import Times
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pydanube_spark.sources.columns import FILE_SCHEMA, TOPIC_SCHEMA
from pydanube_spark.sources.decoded import schema_of
from pydanube_spark.sources.options import TopicOptions
from pydanube_spark.sources.registration import register

_S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def read_topic(
    spark: SparkSession,
    topic: str = "",
    *,
    pattern: str | None = None,
    broker: str | None = None,
    admin: str | None = None,
    tier: str | None = None,
    cluster: str | None = None,
    start: str = "earliest",
    end: str | None = None,
    decode: bool = False,
    on_error: str = "null",
    schema: str | None = None,
    **store: str,
) -> DataFrame:
    """Return the messages of a topic from `start` to `end`, in the columns of the data source `danube`.

    Args:
        topic: name, or names separated by commas.
        pattern: instead of `topic`, a glob over the topics of one namespace, such as `orders*`.
        broker, admin: the broker's addresses. Without them and with `tier`, only the object store is read.
        tier: URL of the object store. The default is the broker's.
        cluster: name of the cluster in the store, if the store has several.
        start, end: positions. `end` is exclusive. None is the current end.
        decode: add the columns `value`, the payload by the topic's schema, and `_decode_error`.
        on_error: for a payload that cannot be decoded, `null` for a null value, or `fail` to fail the job.
        schema: the subject to decode by. The default is the topic's.
        store: endpoint, region, path_style, profile of an S3 store.

    Raises:
        ClusterError: TOPIC_NOT_FOUND, UNAVAILABLE, STORE_UNAVAILABLE, INVALID_ARGUMENT …
    """
    options = TopicOptions(
        topic=topic,
        pattern=pattern,
        broker=broker,
        admin=admin,
        tier=tier,
        cluster=cluster,
        start=start,
        end=end,
        decode=decode,
        on_error=on_error,
        schema=schema,
        store=store,
    )
    register(spark)
    located = locate(options.query)
    if decode:  # all parts are decoded by one subject
        subject = latest_version(options.calls, located.topic, options.schema).subject
        options = replace(options, schema=subject)
    extents, times = between(options.query, located)
    if not decode and _spark_can_open(spark, located):
        parts = [frame for each in extents for frame in _frames(spark, options, located, each, times)]
    else:
        parts = [_by_source(spark, options, each) for each in extents]
    if not parts:
        return spark.createDataFrame([], schema_of(options) if decode else TOPIC_SCHEMA)
    frame = reduce(DataFrame.unionAll, parts)
    return frame.where(reduce(Column.__and__, conditions)) if (conditions := _by_time(times)) else frame


def _signed(name: str) -> Column:
    return f.col(name).try_cast("bigint")


def _as_in_table(name: str) -> Column:
    """Return a column of the files in the table's form: ids as bigint, null payloads as null."""
    if name == "producer":
        return f.struct(_signed("producer.id").alias("id"), f.col("producer.name").alias("name")).alias(
            "producer"
        )
    if name == "payload":  # a null is stored as an empty payload beside an attribute
        null = (f.length("payload") == 0) & f.map_contains_key("attributes", f.lit(NULL))
        return f.when(~null, f.col("payload")).alias(name)
    return _signed(name).alias(name) if name == "schema_id" else f.col(name)


def _frames(
    spark: SparkSession, options: TopicOptions, located: Located, extent: Extent, times: Times
) -> Iterable[DataFrame]:
    cold_end = extent.cold_end
    objects = [
        each
        for each in extent.objects
        if times.may_hold(each.min_append_time_ms, each.max_append_time_ms) and each.start < extent.end
    ]
    if objects:
        assert located.store is not None
        root = located.store.url.rstrip("/")
        paths = [f"{root}/{each.key}" for each in objects]
        frame = spark.read.schema(FILE_SCHEMA).parquet(*paths)
        # Filter only if needed: a filter costs a little wherever statistics do not decide it.
        if objects[0].start < extent.start:
            frame = frame.where(f.col("offset") >= extent.start)
        if objects[-1].end > cold_end:
            frame = frame.where(f.col("offset") < cold_end)
        assert all(each.whole for each in objects)
        yield frame.select(
            f.lit(extent.shown).alias("topic"),
            f.lit(extent.partition).cast("int").alias("partition"),
            *map(_as_in_table, FILE_SCHEMA.names),
        )
    if located.live and cold_end < extent.end:
        yield _by_source(spark, options, replace(extent, start=max(cold_end, extent.start)))


def _by_source(spark: SparkSession, options: TopicOptions, extent: Extent) -> DataFrame:
    """Read a range of one concrete topic by the data source, as a part of the whole topic."""
    reader = spark.read.format("danube").option("topic", extent.topic)
    given = {
        # This process's addresses, because a worker has the environment in which the JVM was started.
        "broker": None if options.offline else options.broker_url,
        "admin": None if options.offline else options.admin_url,
        "tier": options.tier,
        "cluster": options.cluster,
        "decode": str(options.decode).lower(),
        "on_error": options.on_error,
        "schema": options.schema,
        "start": f"offset:{extent.start}",
        "end": f"offset:{extent.end}",
        **(options.store or {}),
    }
    frame = reader.options(**{name: value for name, value in given.items() if value is not None}).load()
    return frame.withColumn("topic", f.lit(extent.shown)).withColumn(
        "partition", f.lit(extent.partition).cast("int")
    )


def _by_time(times: Times) -> list[Column]:
    conditions = []
    if times.start_ms is not None:
        conditions.append(f.col("append_time") >= f.timestamp_millis(f.lit(times.start_ms)))
    if times.end_ms is not None:
        conditions.append(f.col("append_time") < f.timestamp_millis(f.lit(times.end_ms)))
    return conditions


def _spark_can_open(spark: SparkSession, located: Located) -> bool:
    """Return whether Spark's own reader can be used: it reaches the store, and no objects overlap."""
    if located.store is None:
        return True
    scheme, there, _ = located.store.url.partition("://")
    if there and scheme in ("memory", "gs", "az"):  # Spark does not include their connectors
        return False
    if not all(one.whole for each in located.extents for one in each.objects):
        return False
    if there and scheme in ("s3", "s3a"):
        try:
            spark._jvm.java.lang.Class.forName(_S3A)  # type: ignore[union-attr]
        except Exception:
            return False
    return True
