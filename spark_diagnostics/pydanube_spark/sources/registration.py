"""Make our data sources known to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pydanube_spark.sources.telemetry_source import TelemetrySource
from pydanube_spark.sources.topic_source import TopicSource


def register(spark: SparkSession) -> None:
    """Make the formats `danube` and `danube_telemetry` known to a session, and let it push filters down to them."""
    spark.dataSource.register(TopicSource)
    spark.dataSource.register(TelemetrySource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
