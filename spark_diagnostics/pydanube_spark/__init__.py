"""Danube's topics and telemetry in Spark: data sources, a fast reader, reports.

    from pydanube_spark import open_session, read_topic

    spark = open_session()                                          # or register(spark) in a session of your own
    spark.read.format("danube").option("topic", "orders").load()    # also readStream, and df.write
    read_topic(spark, "orders")                                     # Spark's own Parquet reader, and the live tail

Needs the extra `spark`, and Java 17 or newer (`pydanube_spark.java` finds one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube_spark.session import open_session
    from pydanube_spark.sources.registration import register
    from pydanube_spark.sources.topic_table import read_topic

__all__ = ["open_session", "read_topic", "register"]

_HOMES = {
    "open_session": "pydanube_spark.session",
    "register": "pydanube_spark.sources.registration",
    "read_topic": "pydanube_spark.sources.topic_table",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use. Without the extra, the error names the package to install."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from pydanube_core.errors import MissingExtra
    from pydanube_core.extras import install_command

    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow", "py4j", "numpy"):
            raise
        raise MissingExtra(
            f"Spark is not installed: {install_command('spark')}", extra="spark", module=error.name
        ) from error
