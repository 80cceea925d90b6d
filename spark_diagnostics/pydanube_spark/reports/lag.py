"""The consumer-lag report, on Spark: samples are gathered by subscription, and each is judged by the pure rules.

Tasks read telemetry files, Spark brings together what belongs to one subscription, tasks judge. Memory is bounded by
one file and by one subscription's samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import pyarrow as pa
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.errors import InvalidArgument
from pydanube_storage.objects import StoreOptions
from pyspark.sql import DataFrame, SparkSession

from pydanube_spark.reports.cold_ages import ColdAges
from pydanube_spark.reports.history import Grid, History
from pydanube_spark.reports.known_logs import log_facts
from pydanube_spark.reports.lag_rows import LagRow, Span, rows_of_history
from pydanube_spark.reports.source import PACKED_DDL, Telemetry, find_telemetry, packed_samples, unpacked

_KINDS: Final = {
    "int": (pa.int64(), "bigint"),
    "float": (pa.float64(), "double"),
    "str": (pa.string(), "string"),
}
_SUBJECT: Final = [
    ("topic", pa.string(), "string"),
    ("partition", pa.int64(), "bigint"),
    ("subscription", pa.string(), "string"),
    ("type", pa.string(), "string"),
]


def _columns() -> list[tuple[str, Any, str]]:
    found = list(_SUBJECT)
    for each in fields(LagRow):
        text = str(each.type).removesuffix(" | None")
        kind, ddl = (pa.bool_(), "boolean") if text == "bool" else _KINDS[text]
        found.append((each.name, kind, ddl))
    return found


LAG_SCHEMA: Final = pa.schema([pa.field(name, kind) for name, kind, _ in _columns()])
_LAG_DDL: Final = ", ".join(f"{name} {ddl}" for name, _, ddl in _columns())
#: status of a row that stands for a damaged file, which `evidence` names
DAMAGED: Final = "DAMAGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagQuestion:
    """What to report. `topic`: a glob."""

    store: StoreOptions
    cluster: str | None
    span: Span
    topic: str | None = None
    exact_ages: bool = True  # ask the cold tier for what telemetry does not say
    options: DiagnosisOptions = field(default_factory=DiagnosisOptions)

    def __post_init__(self) -> None:
        if self.span.since_ms >= self.span.until_ms:
            raise InvalidArgument(
                "the time to report is empty: --since lies before --until",
                field="since",
                value=self.span.since_ms,
            )


def find_cursors(question: LagQuestion) -> Telemetry:
    """The files of the report: what can be wrong is said before a JVM is started for it.

    Raises:
        InvalidArgument, StoreUnavailable: as `find_telemetry`.
    """
    start_ms, end_ms = _start_ms(question.span), question.span.until_ms
    return find_telemetry(question.store, question.cluster, "cursors", start_ms=start_ms, end_ms=end_ms)


def _start_ms(span: Span) -> int:
    """A window's worth before the time, so that its first window is whole; and heads that say how old old mail is."""
    return span.since_ms - 2 * Grid.of(5000).window_ms


def lag_table(spark: SparkSession, question: LagQuestion, telemetry: Telemetry) -> DataFrame:
    """The rows of the report: `LAG_SCHEMA`, hours and whole. Damaged files are rows of status DAMAGED."""
    span, start_ms = question.span, _start_ms(question.span)
    grid = Grid.of(telemetry.interval_ms, thinned_ms=telemetry.thinned_ms)
    store, topic, until_ms = question.store, question.topic, span.until_ms
    end_ms = min(until_ms, max(telemetry.newest_ms, span.since_ms + 1))
    whole = Span(since_ms=span.since_ms, until_ms=until_ms if end_ms + grid.hold_ms >= until_ms else end_ms)
    options, cluster = question.options, telemetry.cluster
    ages = question.exact_ages
    alive_ms = dict(telemetry.alive_ms)
    logs = log_facts(store, cluster, span, topic)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from packed_samples(store, batch.column(0).to_pylist(), topic, start_ms, until_ms)

    def judge(table: Any) -> Any:
        first = table.slice(0, 1).to_pylist()[0]
        subject = {name: first[name] for name, _, _ in _SUBJECT}
        if first["topic"] is None:
            return _table(
                [{**_nothing(), "status": DAMAGED, "evidence": text} for text in table["damaged"].to_pylist()]
            )
        history = History(unpacked(table["samples"].to_pylist()), logs.get(first["topic_id"]))
        append_time = (
            ColdAges(store, cluster, first["topic"], first["topic_id"]).append_time if ages else None
        )
        last = max(table.select(["first_ms", "broker_id"]).to_pylist(), key=lambda row: row["first_ms"])
        # Twice, since a broker that is late with its rounds is late with what it tells once in so many.
        gone = alive_ms.get(last["broker_id"], 0) > history.last_ms + 2 * grid.hold_ms
        rows = rows_of_history(history, whole, grid, options, append_time, gone=gone)
        return _table([{**subject, **asdict(row)} for row in rows])

    tasks = max(1, min(len(telemetry.keys), 4 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame([(key,) for key in telemetry.keys], "key string").repartition(tasks)
    packed = files.mapInArrow(read, PACKED_DDL)
    return packed.groupBy("topic_id", "subscription_id").applyInArrow(judge, _LAG_DDL)


def _nothing() -> dict[str, Any]:
    return dict.fromkeys(LAG_SCHEMA.names)


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    return pa.Table.from_pylist(list(rows), schema=LAG_SCHEMA)
