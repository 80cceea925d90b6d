"""Objects as a broker writes them, by the data source and by Spark's own reader: the same rows, in every column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydanube_spark import read_topic

from benchmarks.spark_reading import write

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def test_all_columns_are_alike_by_both_ways(spark: Any, tmp_path: Path) -> None:
    """All are used: Spark decodes only what it needs, and ids lie in dictionaries where there are many messages."""
    write(tmp_path, 20_000, 32)
    ways = (
        spark.read.format("danube").options(topic="orders", tier=str(tmp_path)).load(),
        read_topic(spark, "orders", tier=str(tmp_path)),
    )
    assert ways[0].schema.simpleString() == ways[1].schema.simpleString()
    columns = [f"map_entries({name})" if kind.startswith("map") else name for name, kind in ways[0].dtypes]
    by_source, by_spark = (
        frame.selectExpr(f"xxhash64({', '.join(columns)}) h", "producer.id producer")
        .selectExpr("count(*) n", "bit_xor(h) h", "min(producer) a", "max(producer) z")
        .collect()[0]
        .asDict()
        for frame in ways
    )
    assert by_source == by_spark
    assert (by_source["n"], by_source["a"], by_source["z"]) == (20_000, 1, 1)


def test_objects_deleted_under_a_query_end_it_and_are_no_smaller_table(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, 2_000, 32)
    by_source = spark.read.format("danube").options(topic="orders", tier=str(tmp_path)).load()
    by_spark = read_topic(spark, "orders", tier=str(tmp_path))
    assert (by_source.count(), by_spark.count()) == (2_000, 2_000)
    gone = list(tmp_path.rglob("*.parquet"))
    for path in gone:
        path.unlink()
    for frame in (by_source, by_spark):
        with pytest.raises(Exception, match=gone[0].name):
            frame.agg({"payload": "max"}).collect()
