"""Register our data sources in a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pydanube_spark.sources.telemetry_source import TelemetrySource
from pydanube_spark.sources.topic_source import TopicSource


def register(spark: SparkSession) -> None:
    """Register the formats `danube` and `danube_telemetry` in a session, and enable its filter pushdown for them.

    The session becomes that of this thread: a write looks for its format there only, and a thread that was started has
    none, nor takes pyspark's `InheritableThread` one along.
    """
    spark.createDataFrame([], "nothing int")  # the one public call that sets the thread's session
    spark.dataSource.register(TopicSource)
    spark.dataSource.register(TelemetrySource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
