"""The consumer-lag report on Spark: tasks read files, Spark brings together what belongs to one subscription, tasks judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pydanube_spark.reports.lag_work import LAG_DDL, LAG_SCHEMA, LagWork
from pydanube_spark.reports.source import PACKED_DDL


def lag_table(spark: SparkSession, work: LagWork) -> DataFrame:
    """The rows of the report: `LAG_SCHEMA`, hours and whole. Damaged files are rows of status DAMAGED."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from work.read(batch.column(0).to_pylist())

    def judge(table: Any) -> Any:
        return pa.Table.from_pylist(work.judge(table.to_pylist()), schema=LAG_SCHEMA)

    keys = work.telemetry.keys
    tasks = max(1, min(len(keys), 4 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame([(key,) for key in keys], "key string").repartition(tasks)
    packed = files.mapInArrow(read, PACKED_DDL)
    return packed.groupBy("topic_id", "subscription_id").applyInArrow(judge, LAG_DDL)
