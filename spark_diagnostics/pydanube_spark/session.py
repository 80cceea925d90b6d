"""A Spark session with our data sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from pydanube_spark.failures import check_master, start_failure
from pydanube_spark.java import find_java
from pydanube_spark.sources.registration import register

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # as in all our times
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_REMOTE: Final = ("spark.driver.host", "spark.driver.bindAddress")  # a cluster must reach the driver


def open_session(
    master: str | None = None, *, name: str = "danube", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with our data sources, this process' session if there is one.

    Args:
        master: Spark's master. The default is spark-submit's, else `local[*]`.
        settings: Spark's settings, which override ours.

    Raises:
        MissingExtra: there is no Java 17 or newer.
        Unavailable: the master does not accept connections.
        InvalidArgument: the master's address is invalid.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        return running
    if master is not None:
        check_master(master)
    if "JAVA_HOME" not in os.environ or master is not None or "SPARK_ENV_LOADED" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need what the driver has
    builder = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has chosen the master
    if master is not None or not submitted:
        builder = builder.master(master or "local[*]")
    local = not submitted and (master or "local").startswith("local")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        if local or key not in _REMOTE or key in (settings or {}):
            builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise start_failure(error, master) from error
    register(spark)
    return spark
