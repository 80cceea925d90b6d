"""The work of the balance report: telemetry rows are grouped by hour, and each hour is judged by `assess`. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.balance import Assessment, BalanceVerdict, Policy, assess
from pydanube_core.errors import CorruptObject, ObjectMissing
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.telemetry.tables import LOAD_EVERY
from pydanube_core.units import format_time
from pydanube_storage.objects import StoreOptions
from pydanube_storage.telemetry.reading import read_samples
from pydanube_storage.topics.located import open_for_reading

from pydanube_spark.reports.balance.loads import (
    BROKER_COLUMNS,
    COOLDOWN_MS,
    GONE,
    TOPIC_COLUMNS,
    Stretch,
    snapshot_of,
)
from pydanube_spark.reports.run import Span
from pydanube_spark.reports.source import Telemetry, find_telemetry, topic_matches

DAMAGED: Final = "DAMAGED"
_BROKER_STEP_MS: Final = 60_000  # one sample of a broker per minute is enough for a rate over an hour
BALANCE_SCHEMA: Final = pa.schema(
    {
        "hour_ms": pa.int64(),
        "as_of_ms": pa.int64(),
        "verdict": pa.string(),
        "because": pa.string(),
        "score": pa.float64(),
        "bottleneck": pa.string(),
        "brokers": pa.int64(),
        "topics": pa.int64(),
        "mean_used": pa.float64(),
        "highest_used": pa.float64(),
        "highest_after": pa.float64(),
        "max_over_mean": pa.float64(),
        "cv": pa.float64(),
        "gini": pa.float64(),
        "must_move": pa.float64(),
        "disk_used": pa.float64(),
        "owner_changes": pa.int64(),
        "flapping": pa.int64(),
        "moves": pa.string(),
        "rejected": pa.string(),
        "resources": pa.string(),
        "hot_topics": pa.string(),
        "what_if": pa.string(),
        "deductions": pa.string(),
        "missing": pa.string(),
    }
)
# `told`: the brokers' last rows of the stretch, from which later stretches detect missing brokers
_MADE: Final = BALANCE_SCHEMA.append(pa.field("told", pa.string()))
_ROWS: Final = pa.schema({"bucket": pa.int64(), "kind": pa.string(), "rows": pa.string()})


def bucket_ms_of(span: Span, interval_ms: int) -> int:
    """Return the length of one snapshot: an hour, or a twelfth of a short time, with at least three samples of load."""
    length = span.until_ms - span.since_ms
    return min(HOUR_MS, max(length // 12, 3 * LOAD_EVERY * interval_ms, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceWork:
    """A planned report with its files. It is sent to the process that does the work."""

    brokers: Telemetry
    topics: Telemetry
    span: Span
    topic: str | None = None
    policy: Policy = field(default_factory=Policy)
    packed: ClassVar = _ROWS
    made: ClassVar = _MADE
    together: ClassVar[tuple[str, ...]] = ("bucket",)

    @classmethod
    def plan(cls, store: StoreOptions, cluster: str | None, span: Span, topic: str | None = None) -> Self:
        """Find the files, so that errors are raised before anything is started.

        Raises `InvalidArgument`, `StoreUnavailable` like `find_telemetry`.
        """
        given = {"start_ms": span.since_ms, "end_ms": span.until_ms}
        brokers = find_telemetry(store, cluster, "brokers", **given)
        return cls(
            brokers=brokers,
            topics=find_telemetry(store, cluster, "topics", **given),
            span=Span(since_ms=max(span.since_ms, brokers.oldest_ms), until_ms=span.until_ms),
            topic=topic,
        )

    @property
    def stored_bytes(self) -> int:
        """Return the size of the files."""
        return self.brokers.stored_bytes + self.topics.stored_bytes

    @property
    def files(self) -> Sequence[tuple[str, str]]:
        """Return (table, key) of each file."""
        return [("brokers", key) for key in self.brokers.keys] + [("topics", key) for key in self.topics.keys]

    @property
    def interval_ms(self) -> int:
        """Return the milliseconds between two samples of a broker."""
        return max(self.brokers.interval_ms, self.brokers.thinned_ms)

    def read(self, files: Iterable[tuple[str, str]]) -> Iterator[Any]:
        """Yield record batches of (bucket, kind, rows as JSON)."""
        opened = open_for_reading(self.brokers.store)
        bucket_ms = bucket_ms_of(self.span, self.interval_ms)
        for kind, key in files:
            yield _rows(opened, kind, key, self.span, bucket_ms, self.topic, self._before_ms(kind))

    def _before_ms(self, kind: str) -> int:
        """Return how long before a stretch rows count for it: two samples, for topics at least a move's cool-down."""
        if kind == "brokers":
            return 2 * self.interval_ms
        return max(2 * LOAD_EVERY * self.interval_ms, COOLDOWN_MS)

    def judge(self, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the row of one stretch from its parts. Damaged files have separate rows."""
        found: dict[str, list[Any]] = {"brokers": [], "topics": [], "damaged": []}
        for part in parts:
            found[part["kind"]] += json.loads(part["rows"])
        nothing = dict.fromkeys(_MADE.names)
        if found["damaged"]:
            return [{**nothing, "verdict": DAMAGED, "because": text} for text in found["damaged"]]
        bucket, interval_ms = parts[0]["bucket"], self.interval_ms
        if all(row["taken_at"] < bucket for row in found["brokers"]):
            return []  # no broker was sampled in the stretch: all rows are from before it
        end_ms = min(
            bucket + bucket_ms_of(self.span, interval_ms), self.span.until_ms, self.brokers.newest_ms
        )
        stretch = snapshot_of(
            found["brokers"],
            found["topics"],
            begin_ms=bucket,
            end_ms=end_ms,
            interval_ms=max(interval_ms, _BROKER_STEP_MS if interval_ms >= 1000 else interval_ms),
            epoch=bucket,
        )
        return [row_of(assess(stretch.snapshot, self.policy), stretch, bucket, end_ms)]


def _rows(
    store: Any, kind: str, key: str, span: Span, bucket_ms: int, topic: str | None, before_ms: int
) -> Any:
    """Return one file's rows by bucket, as JSON, because they are few and of different kinds.

    Rows of the last `before_ms` before a bucket are also in that bucket.
    """
    columns = list(BROKER_COLUMNS if kind == "brokers" else TOPIC_COLUMNS)
    try:
        samples = read_samples(store, key, table_named(kind), columns=columns)
    except (CorruptObject, ObjectMissing) as error:
        said = {"bucket": -1, "kind": "damaged", "rows": json.dumps([error.message])}
        return pa.RecordBatch.from_pylist([said], schema=_ROWS)
    times = samples.column("taken_at").cast(pa.int64())
    samples = samples.set_column(samples.schema.get_field_index("taken_at"), "taken_at", times)
    inside = pc.and_(
        pc.greater_equal(times, pa.scalar(span.since_ms - before_ms)),
        pc.less(times, pa.scalar(span.until_ms)),
    )
    rows = samples.filter(inside).to_pylist()
    if kind == "topics" and topic is not None:
        rows = [row for row in rows if topic_matches(row["topic"], topic)]
    buckets = rows_by_stretch(rows, kind, span, bucket_ms, before_ms)
    found = [{"bucket": bucket, "kind": kind, "rows": json.dumps(each)} for bucket, each in buckets.items()]
    return pa.RecordBatch.from_pylist(found, schema=_ROWS)


def rows_by_stretch(
    rows: Iterable[dict[str, Any]], kind: str, span: Span, bucket_ms: int, before_ms: int
) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each stretch by its begin, with those of the last `before_ms` before it."""
    buckets: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        bucket = span.since_ms + (row["taken_at"] - span.since_ms) // bucket_ms * bucket_ms
        if bucket >= span.since_ms:
            buckets.setdefault(bucket, []).append(row)
        following = bucket + bucket_ms
        if row["taken_at"] >= following - before_ms and following < span.until_ms:
            buckets.setdefault(following, []).append(row)
    if kind == "brokers":  # after the cut, so that each stretch keeps its own first and last
        return {bucket: _thinned(each) for bucket, each in buckets.items()}
    return buckets


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep each broker's first and last sample in each minute, which rates need."""
    kept: dict[tuple[str, int, bool], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["taken_at"]):
        minute = row["taken_at"] // _BROKER_STEP_MS
        kept.setdefault((row["broker_id"], minute, True), row)
        kept[row["broker_id"], minute, False] = row
    return list({id(row): row for row in kept.values()}.values())


def row_of(found: Assessment, stretch: Stretch, bucket: int, end_ms: int) -> dict[str, Any]:
    """Return an assessment as a row."""
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
        "missing": json.dumps([_missing(broker, *stretch.told[broker][:1]) for broker in found.missing]),
        "told": json.dumps(stretch.told),
    }


def with_missing(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ascending stretches. A stretch without samples of a broker is undecided.

    A broker is missing after its last sample until its next one, unless the state of its last row is in `GONE`.
    """
    last: dict[str, tuple[int, str]] = {}
    found = []
    for row in rows:
        told = json.loads(row["told"])
        missing = [
            (broker, at)
            for broker, (at, state) in sorted(last.items())
            if broker not in told and state not in GONE
        ]
        last |= told
        if missing:
            since = [_missing(broker, at) for broker, at in missing]
            names = ", ".join(
                f"broker {each['broker_id']} (last sample {each['last_sample']})" for each in since[:5]
            )
            row = {
                **row,
                **_UNDECIDED,
                "missing": json.dumps(since),
                "brokers": row["brokers"] + len(missing),
            }
            row["because"] = (
                f"{names} has no sample in this time, and no record of a stop: its load is unknown"
            )
        found.append(row)
    return found


def _missing(broker_id: str, last_ms: int) -> dict[str, str]:
    return {"broker_id": broker_id, "last_sample": format_time(last_ms)}


_UNDECIDED: Final = {
    "verdict": BalanceVerdict.UNDECIDED.value,
    **dict.fromkeys(
        ("score", "bottleneck", "mean_used", "highest_used", "highest_after", "max_over_mean", "cv", "gini")
    ),
    "must_move": None,
    **dict.fromkeys(("moves", "hot_topics", "what_if", "deductions"), "[]"),
    **dict.fromkeys(("rejected", "resources"), "{}"),
}
