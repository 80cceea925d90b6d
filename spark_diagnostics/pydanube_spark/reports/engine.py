"""Choose the engine of a report: this process if its files are small, Spark if they are large or a master is given.

The work is the same: files are read into packed rows, which are grouped by subject and judged. On Spark, tasks read and
judge, and Spark groups.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

#: telemetry of a day of some hundred subscriptions. A report on it takes as long as the start of Spark.
FEW_BYTES: Final = 16 << 20


class Work(Protocol):
    """A planned report with its files. It is sent to the process that does the work.

    Attributes:
        packed, made: Arrow schemas of the results of `read` and `judge`.
        together: columns of `packed` by which its rows are grouped.
    """

    packed: ClassVar[Any]
    made: ClassVar[Any]
    together: ClassVar[tuple[str, ...]]

    @property
    def stored_bytes(self) -> int:
        """Return the size of the files."""

    @property
    def files(self) -> Sequence[tuple[str, str]]:
        """Return (table, key) of each file."""

    def read(self, files: Iterable[tuple[str, str]]) -> Iterator[Any]:
        """Yield record batches of `packed`."""

    def judge(self, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows, of schema `made`, for one group of parts."""


def rows_of(work: Work, master: str | None) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a report, and the engine that made them: `python` or `spark`.

    Args:
        master: Spark's master. None chooses the faster engine.

    Raises:
        MissingExtra: the telemetry is too large for this process, and Spark is not installed.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, whose executors are waiting
    if master is None and not submitted and work.stored_bytes <= FEW_BYTES:
        return _made_here(work), "python"
    for module in ("pyspark", "pandas"):
        if find_spec(module) is None:
            raise MissingExtra(
                f"{work.stored_bytes >> 20} MiB of telemetry are reported on Spark, and {module} is not installed: "
                f"{install_command('spark')}, or report less with --since, --until",
                extra="spark",
                module=module,
            )
    from pydanube_spark.session import open_session

    return on_spark(open_session(master, name="danube report"), work).toArrow().to_pylist(), "spark"


def _made_here(work: Work) -> list[dict[str, Any]]:
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for batch in work.read(work.files):
        for part in batch.to_pylist():
            together[tuple(part[name] for name in work.together)].append(part)
    return [row for parts in together.values() for row in work.judge(parts)]


def on_spark(spark: Any, work: Work) -> Any:
    """Return the rows of a report as a DataFrame of a session."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from work.read((row["kind"], row["key"]) for row in batch.to_pylist())

    def judge(table: Any) -> Any:
        return pa.Table.from_pylist(work.judge(table.to_pylist()), schema=work.made)

    tasks = max(1, min(len(work.files), 4 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame(list(work.files), "kind string, key string").repartition(tasks)
    packed = files.mapInArrow(read, from_arrow_schema(work.packed))
    return packed.groupBy(*work.together).applyInArrow(judge, from_arrow_schema(work.made))
