"""The cluster-balance report on Spark: tasks read files, Spark brings together what belongs to one stretch of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pydanube_spark.reports.balance_work import BALANCE_DDL, BALANCE_SCHEMA, ROWS_DDL, BalanceWork


def balance_table(spark: SparkSession, work: BalanceWork) -> DataFrame:
    """A row for each stretch of the time, in `BALANCE_SCHEMA`."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from work.read((row["kind"], row["key"]) for row in batch.to_pylist())

    def judge(table: Any) -> Any:
        return pa.Table.from_pylist(work.judge(table.to_pylist()), schema=BALANCE_SCHEMA)

    tasks = max(1, min(len(work.files), 4 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame(work.files, "kind string, key string").repartition(tasks)
    return files.mapInArrow(read, ROWS_DDL).groupBy("bucket").applyInArrow(judge, BALANCE_DDL)
