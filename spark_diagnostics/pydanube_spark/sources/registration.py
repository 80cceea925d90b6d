"""Register our data sources in a session."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pydanube_spark.sources.telemetry_source import TelemetrySource
from pydanube_spark.sources.topic_source import TopicSource

_SPARKS_CHOICE: Final = "python3"  # whichever is first in PATH, unless PYSPARK_PYTHON is set


def register(spark: SparkSession) -> None:
    """Register the formats `danube` and `danube_telemetry` in a session, and enable its filter pushdown for them.

    The session becomes this thread's session, the only place where a write looks up its format. A new thread has none,
    and pyspark's `InheritableThread` does not inherit one either.
    """
    spark.createDataFrame([], "nothing int")  # the one public call that sets the thread's session
    with suppress(PySparkException, AttributeError):  # Spark Connect has no context: its server chooses
        context = spark.sparkContext
        if (context.master or "").startswith("local") and context.pythonExec == _SPARKS_CHOICE:
            context.pythonExec = sys.executable  # another Python does not have this package
    spark.dataSource.register(TopicSource)
    spark.dataSource.register(TelemetrySource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
