"""Where a report is made: in this process while its files are few, on Spark where they are many or it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: of telemetry: a day of some hundred subscriptions. Spark takes as long to start as this takes to report.
FEW_BYTES: Final = 16 << 20


def rows_of(
    stored_bytes: int,
    master: str | None,
    *,
    here: Callable[[], list[dict[str, Any]]],
    spark: Callable[[SparkSession], Any],
) -> tuple[list[dict[str, Any]], str]:
    """The rows of a report, and what made them: `python` or `spark`.

    Args:
        stored_bytes: of the files to read.
        master: Spark's; None: whatever is quicker.
        here, spark: make the same rows, in this process or as a DataFrame.

    Raises:
        MissingExtra: there is too much for this process, and Spark is not installed.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit: its executors are waiting
    if master is None and not submitted and stored_bytes <= FEW_BYTES:
        return here(), "python"
    for module in ("pyspark", "pandas"):
        if find_spec(module) is None:
            raise MissingExtra(
                f"{stored_bytes >> 20} MiB of telemetry are reported on Spark, and {module} is not installed: "
                f"{install_command('spark')}; or report less with --since, --until",
                extra="spark",
                module=module,
            )
    from pydanube_spark.session import open_session

    return spark(open_session(master, name="danube report")).toArrow().to_pylist(), "spark"
