"""The work of the lag report: choose files, read them as samples by subscription, judge each. Without Spark.

Memory is bounded by one file and one subscription's samples, beside the packed samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
from pydanube_core.cursor_state import REPORTED
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_storage.objects import StoreOptions

from pydanube_spark.reports.lag.cold_ages import ColdAges
from pydanube_spark.reports.lag.history import Grid, History, LogFacts
from pydanube_spark.reports.lag.known_logs import log_facts
from pydanube_spark.reports.lag.packing import PACKED, packed_samples, unpacked
from pydanube_spark.reports.lag.rows import LagRow, rows_of_history
from pydanube_spark.reports.run import Span
from pydanube_spark.reports.source import Telemetry, find_telemetry

_KINDS: Final = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
_SUBJECT: Final = {
    "topic": pa.string(),
    "partition": pa.int64(),
    "log": pa.string(),  # the concrete topic, `topic` where it has no partitions
    "subscription": pa.string(),
    "type": pa.string(),
}


def _columns() -> Iterator[tuple[str, Any]]:
    for each in fields(LagRow):
        if each.name == "rises":
            yield from ((name, pa.int64()) for name in REPORTED)
        else:
            yield each.name, _KINDS[str(each.type).removesuffix(" | None")]


LAG_SCHEMA: Final = pa.schema(_SUBJECT | dict(_columns()))
#: status of a row for a damaged file, which `evidence` names
DAMAGED: Final = "DAMAGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRequest:
    """The request of a lag report. `topic` is a glob."""

    store: StoreOptions
    cluster: str | None
    span: Span
    topic: str | None = None
    exact_ages: bool = True  # read append times that telemetry lacks from the cold tier
    options: DiagnosisOptions = field(default_factory=DiagnosisOptions)

    def __post_init__(self) -> None:
        if self.span.since_ms >= self.span.until_ms:
            raise InvalidArgument(
                "the time to report is empty: --since lies before --until",
                field="since",
                value=self.span.since_ms,
            )

    @property
    def read_from_ms(self) -> int:
        """Two windows before the time, so that the first window is complete and earlier heads date old messages."""
        return self.span.since_ms - 2 * round(self.options.window_s * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWork:
    """A planned report with its files. It is sent to the process that does the work."""

    request: LagRequest
    telemetry: Telemetry
    grid: Grid
    logs: Mapping[int, LogFacts]
    packed: ClassVar = PACKED
    made: ClassVar = LAG_SCHEMA
    together: ClassVar[tuple[str, ...]] = ("topic", "partition", "subscription")

    @classmethod
    def plan(cls, request: LagRequest) -> Self:
        """Find the files, so that errors are raised before anything is started.

        Raises `InvalidArgument`, `StoreUnavailable` like `find_telemetry`.
        """
        span = request.span
        telemetry = find_telemetry(
            request.store, request.cluster, "cursors", start_ms=request.read_from_ms, end_ms=span.until_ms
        )
        return cls(
            request=request,
            telemetry=telemetry,
            grid=Grid.of(
                telemetry.interval_ms, thinned_ms=telemetry.thinned_ms, window_s=request.options.window_s
            ),
            logs=log_facts(request.store, telemetry.cluster, span, request.topic),
        )

    @property
    def stored_bytes(self) -> int:
        """Return the size of the files."""
        return self.telemetry.stored_bytes

    @property
    def files(self) -> Sequence[tuple[str, str]]:
        """Return (table, key) of each file."""
        return [("cursors", key) for key in self.telemetry.keys]

    def read(self, files: Iterable[tuple[str, str]]) -> Iterator[Any]:
        """Yield record batches `PACKED`: the samples of each file by subscription."""
        request = self.request
        until_ms = request.span.until_ms
        keys = (key for _, key in files)
        return packed_samples(request.store, keys, request.topic, request.read_from_ms, until_ms)

    def judge(self, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of the subscriptions of one name. There are several if it was deleted and recreated."""
        by_id: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        for part in parts:
            by_id.setdefault((part["topic_id"], part["subscription_id"]), []).append(part)
        newest_ms = max((part["last_ms"] or 0 for part in parts), default=0)
        return [
            row
            for own in by_id.values()
            for row in self._of_one(own, replaced=max(part["last_ms"] or 0 for part in own) < newest_ms)
        ]

    def _of_one(self, parts: Sequence[Mapping[str, Any]], *, replaced: bool) -> list[dict[str, Any]]:
        """Return the rows of one subscription, hours and whole, from its packed parts. Damaged files have separate rows.

        Args:
            replaced: whether another subscription of the same name has later samples.
        """
        first = parts[0]
        if first["topic"] is None:
            nothing = dict.fromkeys(LAG_SCHEMA.names)
            return [{**nothing, "status": DAMAGED, "evidence": part["damaged"]} for part in parts]
        request, telemetry, grid = self.request, self.telemetry, self.grid
        # Parts are sorted by their begin, and a later part may end earlier
        last = max(parts, key=lambda part: part["last_ms"])
        history = History(
            unpacked([part["samples"] for part in parts]),
            grid,
            self.logs.get(first["topic_id"]),
            last_round_ms=telemetry.last_round_ms.get(last["broker_id"], 0),
        )
        # Twice `hold_ms`, because a broker with late rounds also writes its full samples late.
        gone = replaced or telemetry.alive_ms.get(last["broker_id"], 0) > history.last_ms + 2 * grid.hold_ms
        ages = ColdAges(request.store, telemetry.cluster, first["topic"], first["topic_id"])
        rows = rows_of_history(
            history,
            request.span,
            grid,
            request.options,
            ages.append_time if request.exact_ages else None,
            end_ms=self._end_ms(),
            drawn=Span(
                since_ms=max(request.span.since_ms, telemetry.oldest_ms), until_ms=request.span.until_ms
            ),
            gone=gone,
        )
        log, partition = last["topic"], last["partition"]
        topic = log if partition is None else str(TopicName.parse(log).base)
        subject = {name: last.get(name) for name in _SUBJECT} | {"topic": topic, "log": log}
        return [{**subject, **row.columns()} for row in rows]

    def _end_ms(self) -> int:
        """Return the end of telemetry if it is clearly before the end of the time, else the latter."""
        span, newest_ms = self.request.span, self.telemetry.newest_ms
        if newest_ms + self.grid.hold_ms >= span.until_ms:
            return span.until_ms
        return max(newest_ms, span.since_ms + 1)
