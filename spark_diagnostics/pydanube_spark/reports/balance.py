"""The cluster-balance report, on Spark: telemetry rows are gathered by hour, and each hour is judged by `assess`.

spark-submit --master … main.py balance --tier s3://bucket/prefix --since 24h --out DIR
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.balance import Assessment, Policy, assess
from pydanube_core.errors import CorruptObject, ObjectMissing
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.telemetry.tables import LOAD_EVERY
from pydanube_storage.objects import StoreOptions
from pydanube_storage.telemetry.reading import read_samples
from pyspark.sql import DataFrame, SparkSession

from pydanube_spark.reports.lag_rows import Span
from pydanube_spark.reports.loads import BROKER_COLUMNS, TOPIC_COLUMNS, Stretch, snapshot_of
from pydanube_spark.reports.source import Telemetry, find_telemetry, topic_matches
from pydanube_spark.sources.cluster import open_for_reading

DAMAGED: Final = "DAMAGED"
_BROKER_STEP_MS: Final = 60_000  # of a broker's samples one a minute is enough for a rate over an hour
_COLUMNS: Final = (
    ("hour_ms", pa.int64(), "bigint"),
    ("as_of_ms", pa.int64(), "bigint"),
    ("verdict", pa.string(), "string"),
    ("because", pa.string(), "string"),
    ("score", pa.float64(), "double"),
    ("bottleneck", pa.string(), "string"),
    ("brokers", pa.int64(), "bigint"),
    ("topics", pa.int64(), "bigint"),
    ("mean_used", pa.float64(), "double"),
    ("highest_used", pa.float64(), "double"),
    ("highest_after", pa.float64(), "double"),
    ("max_over_mean", pa.float64(), "double"),
    ("cv", pa.float64(), "double"),
    ("gini", pa.float64(), "double"),
    ("must_move", pa.float64(), "double"),
    ("disk_used", pa.float64(), "double"),
    ("owner_changes", pa.int64(), "bigint"),
    ("flapping", pa.int64(), "bigint"),
    ("moves", pa.string(), "string"),
    ("rejected", pa.string(), "string"),
    ("resources", pa.string(), "string"),
    ("hot_topics", pa.string(), "string"),
    ("what_if", pa.string(), "string"),
    ("deductions", pa.string(), "string"),
)
BALANCE_SCHEMA: Final = pa.schema([pa.field(name, kind) for name, kind, _ in _COLUMNS])
_BALANCE_DDL: Final = ", ".join(f"{name} {ddl}" for name, _, ddl in _COLUMNS)
_ROWS: Final = pa.schema(
    [pa.field("bucket", pa.int64()), pa.field("kind", pa.string()), pa.field("rows", pa.string())]
)
_ROWS_DDL: Final = "bucket bigint, kind string, rows string"


def bucket_ms_of(span: Span, interval_ms: int) -> int:
    """How long one snapshot's stretch is: an hour, or a twelfth of a short time, but three samples of load at least."""
    length = span.until_ms - span.since_ms
    return min(HOUR_MS, max(length // 12, 3 * LOAD_EVERY * interval_ms, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The files of the report."""

    brokers: Telemetry
    topics: Telemetry


def find_loads(store: StoreOptions, cluster: str | None, span: Span) -> Loads:
    """The files of the report: what can be wrong is said before a JVM is started for it.

    Raises:
        InvalidArgument, StoreUnavailable: as `find_telemetry`.
    """
    given = {"start_ms": span.since_ms, "end_ms": span.until_ms}
    return Loads(
        brokers=find_telemetry(store, cluster, "brokers", **given),
        topics=find_telemetry(store, cluster, "topics", **given),
    )


def balance_table(
    spark: SparkSession, loads: Loads, span: Span, *, topic: str | None = None, policy: Policy | None = None
) -> DataFrame:
    """A row for each stretch of the time, in `BALANCE_SCHEMA`."""
    brokers, topics = loads.brokers, loads.topics
    store = brokers.store
    keys = [("brokers", key) for key in brokers.keys] + [("topics", key) for key in topics.keys]
    rules = policy or Policy()
    interval_ms = max(brokers.interval_ms, brokers.thinned_ms)
    newest_ms = min(span.until_ms, brokers.newest_ms)
    bucket_ms = bucket_ms_of(span, interval_ms)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        opened = open_for_reading(store)
        for batch in batches:
            for row in batch.to_pylist():
                yield _rows(opened, row["kind"], row["key"], span, bucket_ms, topic)

    def judge(table: Any) -> Any:
        found: dict[str, list[Any]] = {"brokers": [], "topics": [], "damaged": []}
        for row in table.to_pylist():
            found[row["kind"]] += json.loads(row["rows"])
        bucket = table["bucket"][0].as_py()
        if found["damaged"]:
            rows = [
                {**dict.fromkeys(BALANCE_SCHEMA.names), "verdict": DAMAGED, "because": text}
                for text in found["damaged"]
            ]
            return pa.Table.from_pylist(rows, schema=BALANCE_SCHEMA)
        end_ms = min(bucket + bucket_ms, newest_ms)
        stretch = snapshot_of(
            found["brokers"],
            found["topics"],
            end_ms=end_ms,
            interval_ms=max(interval_ms, _BROKER_STEP_MS if interval_ms >= 1000 else interval_ms),
            epoch=bucket,
        )
        row = row_of(assess(stretch.snapshot, rules), stretch, bucket, end_ms)
        return pa.Table.from_pylist([row], schema=BALANCE_SCHEMA)

    tasks = max(1, min(len(keys), 4 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame(keys, "kind string, key string").repartition(tasks)
    return files.mapInArrow(read, _ROWS_DDL).groupBy("bucket").applyInArrow(judge, _BALANCE_DDL)


def _rows(store: Any, kind: str, key: str, span: Span, bucket_ms: int, topic: str | None) -> Any:
    """One file's rows by bucket, as JSON: there are few, and they differ by kind."""
    columns = list(BROKER_COLUMNS if kind == "brokers" else TOPIC_COLUMNS)
    try:
        samples = read_samples(store, key, table_named(kind), columns=columns)
    except (CorruptObject, ObjectMissing) as error:
        said = {"bucket": -1, "kind": "damaged", "rows": json.dumps([error.message])}
        return pa.RecordBatch.from_pylist([said], schema=_ROWS)
    times = samples.column("taken_at").cast(pa.int64())
    samples = samples.set_column(samples.schema.get_field_index("taken_at"), "taken_at", times)
    inside = pc.and_(
        pc.greater_equal(times, pa.scalar(span.since_ms)), pc.less(times, pa.scalar(span.until_ms))
    )
    rows = samples.filter(inside).to_pylist()
    if kind == "brokers":
        rows = _thinned(rows)
    elif topic is not None:
        rows = [row for row in rows if topic_matches(row["topic"], topic)]
    buckets: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        bucket = span.since_ms + (row["taken_at"] - span.since_ms) // bucket_ms * bucket_ms
        buckets.setdefault(bucket, []).append(row)
    found = [{"bucket": bucket, "kind": kind, "rows": json.dumps(each)} for bucket, each in buckets.items()]
    return pa.RecordBatch.from_pylist(found, schema=_ROWS)


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and last sample of each broker in each minute: rates need the ends."""
    kept: dict[tuple[str, int, bool], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["taken_at"]):
        minute = row["taken_at"] // _BROKER_STEP_MS
        kept.setdefault((row["broker_id"], minute, True), row)
        kept[row["broker_id"], minute, False] = row
    return list({id(row): row for row in kept.values()}.values())


def row_of(found: Assessment, stretch: Stretch, bucket: int, end_ms: int) -> dict[str, Any]:
    """An assessment as a row."""
    view = None if found.bottleneck is None else found.resources[found.bottleneck]
    resources = {
        resource.value: {
            "counts": each.counts,
            "capacity_known": each.capacity_known,
            "used": dict(each.used),
            "robust_z": dict(each.robust_z),
            **asdict(each.spread),
            "must_move": each.must_move,
        }
        for resource, each in found.resources.items()
    }
    return {
        "hour_ms": bucket,
        "as_of_ms": end_ms,
        "verdict": found.verdict.value,
        "because": found.because,
        "score": found.score,
        "bottleneck": None if found.bottleneck is None else found.bottleneck.value,
        "brokers": len(stretch.snapshot.brokers),
        "topics": len(stretch.snapshot.topics),
        "mean_used": None if view is None else view.spread.mean,
        "highest_used": found.highest_before,
        "highest_after": found.highest_after,
        "max_over_mean": None if view is None else view.spread.max_over_mean,
        "cv": None if view is None else view.spread.cv,
        "gini": None if view is None else view.spread.gini,
        "must_move": None if view is None else view.must_move,
        "disk_used": stretch.disk_used_share,
        "owner_changes": stretch.owner_changes,
        "flapping": stretch.flapping,
        "moves": json.dumps([asdict(move) for move in found.moves]),
        "rejected": json.dumps({reason.value: count for reason, count in found.rejected.items()}),
        "resources": json.dumps(resources),
        "hot_topics": json.dumps(list(found.hot_topics)),
        "what_if": json.dumps([asdict(each) for each in found.what_if]),
        "deductions": json.dumps([asdict(each) for each in found.deductions]),
    }
