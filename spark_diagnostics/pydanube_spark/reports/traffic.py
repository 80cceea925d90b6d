"""The traffic report: messages into and out of topics, by stretches of time. Without Spark.

Telemetry has a topic's counters every few minutes. The rise between two samples is spread evenly over the time between
them. Counters start at 0 with each start of the broker, and whenever the topic moves to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pydanube_core.errors import CorruptObject, InvalidArgument, ObjectMissing
from pydanube_core.names import TopicName
from pydanube_core.telemetry import TelemetryFile, table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.units import format_time
from pydanube_storage.telemetry.reading import read_samples, stored_files
from pydanube_storage.topics.located import open_for_reading

from pydanube_spark.reports.run import Report, ReportRequest, Span, SpanResult, run_report
from pydanube_spark.reports.source import Telemetry, find_telemetry, topic_matches

COUNTERS: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")
#: a sample before the time has the counter's start value. Thinned telemetry has one sample per hour
LEAD_MS: Final = 2 * HOUR_MS
MOST_STRETCHES: Final = 48
_LENGTHS_MS: Final = (300_000, 900_000, HOUR_MS, 6 * HOUR_MS, 24 * HOUR_MS)
_MOST_BYTES: Final = 1 << 30  # size of the files for some ten thousand topics over a week


def compared(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a row with its former values. `change` is of the rate of messages, 0.5 for 50 % more."""
    was = None if before is None else before["messages_in_per_s"]
    change = None if not was else round(row["messages_in_per_s"] / was - 1, 3)
    return {**row, "messages_in_per_s_before": was, "change": change}


@dataclass(slots=True)
class Traffic:
    """Counts by topic, stretch and counter. Mutable while files are read."""

    cluster: str
    span: Span
    starts: Any  # of the stretches, ascending
    from_ms: int  # counts are between these two
    until_ms: int
    damaged: list[str]
    names: dict[str, int] = field(default_factory=dict)  # topic, without partition → place
    counts: Any = None  # [place, stretch, counter]

    @property
    def ends(self) -> Any:
        return np.append(self.starts[1:], self.span.until_ms)

    @property
    def covered_s(self) -> Any:
        """The covered seconds of each stretch."""
        covered = np.minimum(self.ends, self.until_ms) - np.maximum(self.starts, self.from_ms)
        return np.clip(covered, 0, None) / 1000

    def place(self, topic: str) -> int:
        """Return the row in which a log is counted, its topic's."""
        return self.names.setdefault(str(TopicName.parse(topic).base), len(self.names))

    def add(self, places: Any, begin_ms: Any, end_ms: Any, rises: Any) -> None:
        """Spread rises of `[row, counter]` over the time in which they happened."""
        missing = len(self.names) - len(self.counts)
        if missing > 0:
            empty = np.zeros((missing, *self.counts.shape[1:]))
            self.counts = np.concatenate([self.counts, empty])
        lengths = end_ms - begin_ms
        for at, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            share = np.clip(np.minimum(end_ms, end) - np.maximum(begin_ms, start), 0, None) / lengths
            inside = share > 0
            for counter in range(len(COUNTERS) if inside.any() else 0):
                weights = rises[inside, counter] * share[inside]
                self.counts[:, at, counter] += np.bincount(places[inside], weights, len(self.counts))

    def summary(self) -> dict[str, Any]:
        """Return totals, means per second and stretches of all topics, with None where nothing was sampled."""
        covered = self.covered_s
        stretches = []
        for at, start in enumerate(self.starts):
            known = covered[at] > 0
            stretches.append(
                {"from": format_time(int(start)), "covered_s": round(float(covered[at]), 1)}
                | {
                    name: round(float(self.counts[:, at, counter].sum())) if known else None
                    for counter, name in enumerate(COUNTERS)
                }
            )
        return {
            "topics": len(self.names),
            "covered_s": round(float(covered.sum()), 1),
            **_means(self.counts.sum(axis=(0, 1)), float(covered.sum())),
            "stretches": stretches,
            "damaged_files": self.damaged,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each topic, most messages first."""
        covered = self.covered_s
        known = covered > 0
        found = []
        for topic, place in self.names.items():
            counts = self.counts[place]
            rates = np.zeros(len(covered))
            rates[known] = counts[known, 0] / covered[known]
            busiest = int(rates.argmax())
            found.append(
                {
                    "topic": topic,
                    **_means(counts.sum(axis=0), float(covered.sum())),
                    "busiest_from": format_time(int(self.starts[busiest])) if rates.any() else None,
                    "busiest_messages_in_per_s": round(float(rates[busiest]), 3),
                }
            )
        return sorted(found, key=lambda row: (-row["messages_in"], -row["messages_out"], row["topic"]))


def _means(counts: Any, seconds: float) -> dict[str, Any]:
    totals = {name: round(float(count)) for name, count in zip(COUNTERS, counts, strict=True)}
    means = {
        f"{name}_per_s": round(float(count) / seconds, 3) if seconds else None
        for name, count in zip(COUNTERS, counts, strict=True)
    }
    return totals | means


def traffic_of(request: ReportRequest, span: Span) -> Traffic:
    """Count the messages through the topics in that time."""
    lead = Span(since_ms=max(0, span.since_ms - LEAD_MS), until_ms=span.until_ms)
    source = find_telemetry(
        request.store, request.cluster, "topics", start_ms=lead.since_ms, end_ms=lead.until_ms
    )
    if source.stored_bytes > _MOST_BYTES:
        raise InvalidArgument(
            f"{source.stored_bytes >> 20} MiB of telemetry are too much for one report. Shorten the time with since and until",
            field="since",
            value=request.since,
        )
    length = span.until_ms - span.since_ms
    step = next((one for one in _LENGTHS_MS if length <= MOST_STRETCHES * one), -(-length // MOST_STRETCHES))
    starts = np.arange(span.since_ms, span.until_ms, step, dtype=np.int64)
    found = Traffic(source.cluster, span, starts, span.until_ms, span.since_ms, [])
    found.counts = np.zeros((0, len(starts), len(COUNTERS)))
    files = _Files(source, lead, request.topic, found.damaged)
    for broker_id, keys in files.brokers().items():
        _count_broker(found, files, keys, files.began_ms(broker_id))
    found.from_ms = max(found.from_ms, span.since_ms)
    if found.until_ms <= found.from_ms:
        raise InvalidArgument(
            "no two samples of that time show traffic of topics: a topic is sampled every few minutes",
            field="since",
            value=request.since,
        )
    if request.topic is not None and not found.names:
        raise InvalidArgument(
            f"no topic {request.topic!r} was sampled in that time", field="topic", value=request.topic
        )
    return found


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of one file, of one broker, by log; each log's ascend by time."""

    rounds: Any  # times of the broker's samples, ascending, also of topics outside of the request
    logs: Any
    topics: list[str]
    times: Any
    lives: Any  # starts of the broker
    values: Any  # [row, counter]


@dataclass(frozen=True, slots=True)
class _Files:
    source: Telemetry
    span: Span
    topic: str | None
    damaged: list[str]

    def brokers(self) -> dict[str, list[str]]:
        """Return broker → keys of its files, oldest first."""
        by_broker: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for key in self.source.keys:
            file = TelemetryFile.parse(key)
            assert file is not None, "it was listed by its name"
            by_broker[file.broker_id].append((file.start_ms, key))
        return {broker_id: [key for _, key in sorted(keys)] for broker_id, keys in by_broker.items()}

    def began_ms(self, broker_id: str) -> int | None:
        """Return the start of the broker before its first sample in this time. None if it started earlier, or is unknown.

        Its topics are first sampled minutes after a start, and their messages until then count as well.
        """
        store = open_for_reading(self.source.store)
        table = table_named("brokers")
        times = {"start_ms": self.span.since_ms, "end_ms": self.span.until_ms}
        found = stored_files(store, self.source.cluster, table, **times)
        keys = [(file.start_ms, key) for key, file, _ in found if file.broker_id == broker_id]
        try:
            rows = (
                read_samples(store, min(keys)[1], table, columns=["taken_at", "uptime_s"]) if keys else None
            )
        except (CorruptObject, ObjectMissing) as error:
            self.damaged.append(error.message)
            return None
        if rows is None or not rows.num_rows:
            return None
        taken_ms = rows.column("taken_at").cast(pa.int64()).to_numpy()
        first = int(taken_ms.argmin())
        began_ms = int(taken_ms[first] - 1000 * rows.column("uptime_s").to_numpy()[first])
        return began_ms if began_ms >= self.span.since_ms else None

    def read(self, keys: list[str]) -> Iterator[_Samples]:
        store = open_for_reading(self.source.store)
        columns = ["taken_at", "incarnation", "topic", "topic_id", *COUNTERS]
        for key in keys:
            try:
                table = read_samples(store, key, table_named("topics"), columns=columns)
            except (CorruptObject, ObjectMissing) as error:
                self.damaged.append(error.message)
                continue
            times = table.column("taken_at").cast(pa.int64()).to_numpy()
            inside = (times >= self.span.since_ms) & (times < self.span.until_ms)
            rounds = np.unique(times[inside])
            names = table.column("topic").to_pylist()
            if self.topic is not None:
                asked = {name: topic_matches(name, self.topic) for name in set(names)}
                inside &= np.array([asked[name] for name in names], bool)
            logs = table.column("topic_id").to_numpy()
            order = np.lexsort((times, logs))
            order = order[inside[order]]
            values = np.stack([table.column(name).to_numpy() for name in COUNTERS], axis=1)
            lives = table.column("incarnation").fill_null(0).to_numpy()
            yield _Samples(
                rounds=rounds,
                logs=logs[order],
                topics=[names[row] for row in order],
                times=times[order],
                lives=lives[order],
                values=values[order],
            )


def _count_broker(found: Traffic, files: _Files, keys: list[str], began_ms: int | None) -> None:
    """Count one broker's files. The last sample of each log is carried over to the next file."""
    last: dict[int, tuple[int, int, Any]] = {}  # log → (time, life, values)
    last_round_ms = began_ms  # the broker's last round in the previous files, first its start
    for samples in files.read(keys):
        if not len(samples.rounds):
            continue
        first = np.ones(len(samples.logs), bool)
        first[1:] = samples.logs[1:] != samples.logs[:-1]
        before_ms = np.zeros(len(first), np.int64)
        before_ms[1:] = samples.times[:-1]
        lives = np.roll(samples.lives, 1)
        values = np.roll(samples.values, 1, axis=0)
        for row in np.flatnonzero(first):
            carried = last.get(int(samples.logs[row]))
            if carried is not None:
                before_ms[row], lives[row], values[row] = carried
                continue
            # New at this broker since its previous round. The rise before its first round has no known time.
            at = int(np.searchsorted(samples.rounds, samples.times[row]))
            earlier = samples.rounds[at - 1] if at else last_round_ms
            before_ms[row] = samples.times[row] if earlier is None else earlier
            values[row] = 0
        goes_on = (lives == samples.lives)[:, None] & (samples.values >= values)
        rises = np.where(goes_on, samples.values - values, samples.values)
        counted = samples.times > before_ms
        places = np.array([found.place(topic) for topic in samples.topics], np.int64)
        if counted.any():
            found.add(places[counted], before_ms[counted], samples.times[counted], rises[counted])
        for row in np.flatnonzero(np.append(first[1:], [True] * (len(first) > 0))):
            last[int(samples.logs[row])] = (samples.times[row], samples.lives[row], samples.values[row])
        found.from_ms = min(found.from_ms, int(samples.rounds[0]) if last_round_ms is None else last_round_ms)
        last_round_ms = int(samples.rounds[-1])
        found.until_ms = max(found.until_ms, last_round_ms)


def _plan(request: ReportRequest, span: Span) -> Callable[[], SpanResult]:
    def find() -> SpanResult:
        found = traffic_of(request, span)
        return SpanResult(
            cluster=found.cluster,
            engine="python",
            oldest_ms=found.from_ms,
            newest_ms=found.until_ms,
            summary=found.summary(),
            rows=found.rows(),
        )

    return find


def _beside(rows: list[dict[str, Any]], before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    were = {row["topic"]: row for row in before}
    return [compared(row, were.get(row["topic"])) for row in rows]


TRAFFIC: Final = Report(name="traffic", plan=_plan, beside=_beside)
#: with a row for each topic, most messages first
run_traffic: Final = partial(run_report, TRAFFIC)
