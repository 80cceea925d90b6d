"""Counters of a connector since its start, for people, `/metrics` and health checks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

_WINDOW_S: Final = 60.0
log = logging.getLogger("pydanube.connect")


class State(StrEnum):
    """`starting` until the first connection, `failing` between a failed attempt and the next success."""

    STARTING = "starting"
    RUNNING = "running"
    FAILING = "failing"
    STOPPED = "stopped"


class _Window:
    """The sum of what was added in the last minute."""

    def __init__(self) -> None:
        self._added: deque[tuple[float, float]] = deque()

    def add(self, amount: float) -> None:
        self._added.append((time.monotonic(), amount))
        self.sum()

    def sum(self) -> float:
        least = time.monotonic() - _WINDOW_S
        while self._added and self._added[0][0] < least:
            self._added.popleft()
        return sum(amount for _, amount in self._added)


@dataclass(slots=True, kw_only=True)
class Statistics:
    """The counters of one connector since its start."""

    connector: str
    part: int | None = None  # of a sink whose partitions several workers share
    kind: str  # source, sink
    type: str
    guarantee: str
    state: State = State.STARTING
    records: int = 0  # written to the other system, or published
    refused: int = 0  # records that could never be written
    repeated: int = 0  # records that the other side already had
    batches: int = 0
    retries: int = 0
    last_error: str | None = None
    since: float = field(default_factory=time.time)
    positions: dict[str, str] = field(default_factory=dict)  # by place or shard
    lag_messages: int | None = None  # of a declared sink
    held_bytes: int | None = None  # that the other system keeps until a source has read them
    last_record_ms: int | None = None
    _written: _Window = field(default_factory=_Window)
    _letters: _Window = field(default_factory=_Window)
    _busy: _Window = field(default_factory=_Window)

    def wrote(self, records: int) -> None:
        """Count a batch that is stored, with its records that were not counted yet."""
        self.wrote_some(records)
        self.batches += 1
        self.state = State.RUNNING

    def wrote_some(self, records: int) -> None:
        """Count stored records of a batch that is not wholly stored yet."""
        self.records += records
        if records:
            self._written.add(records)
            self.last_record_ms = time.time_ns() // 1_000_000

    def waited(self, seconds: float) -> None:
        """Count time in which a sink waited for its target."""
        self._busy.add(seconds)

    def failed(self, reason: str) -> None:
        """Count and log a failed attempt."""
        self.retries += 1
        self.state = State.FAILING
        self.last_error = reason
        log.warning("connector_attempt_failed", extra={"connector": self.connector, "error": reason})

    def letters(self, records: int, reason: str) -> None:
        """Count and log records that became dead letters. `reason` is the first one's."""
        self.refused += records
        self._letters.add(records)
        self.last_error = reason
        log.warning(
            "connector_refused", extra={"connector": self.connector, "records": records, "reason": reason}
        )

    @property
    def rate(self) -> float:
        """Records per second over the last minute."""
        return self._written.sum() / _WINDOW_S

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {
            "connector": self.connector, "kind": self.kind, "type": self.type, "state": str(self.state),
            "guarantee": self.guarantee, "records": self.records, "refused": self.refused,
            "repeated": self.repeated, "batches": self.batches, "retries": self.retries,
            "rate": round(self.rate, 3), "last_error": self.last_error, "position": dict(self.positions),
            "refused_per_min": int(self._letters.sum()), "busy": round(min(1.0, self._busy.sum() / _WINDOW_S), 3),
            "last_record_ms": self.last_record_ms, "held_bytes": self.held_bytes,
        }  # fmt: skip


#: what a worker counts, by the end of the metric's name
COUNTERS: Final[Mapping[str, str]] = {
    "records": "Records written or published.",
    "refused": "Records that could never be written.",
    "repeated": "Records that the other side had already.",
    "batches": "Batches stored.",
    "retries": "Failed attempts that were tried again.",
}


GAUGES: Final[Sequence[tuple[str, str, Callable[[Statistics], float | None]]]] = (
    ("danube_connect_running", "1 while the last attempt succeeded.", lambda one: int(one.state is State.RUNNING)),
    ("danube_connect_lag_messages", "Messages that a declared sink has not written.", lambda one: one.lag_messages),
    ("danube_connect_busy_ratio", "Part of the last minute in which a sink waited for its target.",
     lambda one: one.to_dict()["busy"] if one.kind == "sink" else None),
    ("danube_connect_held_bytes", "Bytes that the other system keeps until they are read.", lambda one: one.held_bytes),
    ("danube_connect_last_record_seconds", "When the last record was stored, Unix time.",
     lambda one: None if one.last_record_ms is None else one.last_record_ms / 1_000),
)  # fmt: skip


def exposition(connectors: Iterable[Statistics]) -> str:
    """Return the counters in the text format of Prometheus, version 0.0.4."""
    each = list(connectors)
    lines: list[str] = []
    for name, about in COUNTERS.items():
        family = f"danube_connect_{name}_total"
        lines += [f"# HELP {family} {about}", f"# TYPE {family} counter"]
        lines += [f"{family}{{{_labels(one)}}} {getattr(one, name)}" for one in each]
    for family, about, value in GAUGES:
        found = [(one, value(one)) for one in each]
        lines += [f"# HELP {family} {about}", f"# TYPE {family} gauge"]
        lines += [f"{family}{{{_labels(one)}}} {number}" for one, number in found if number is not None]
    return "\n".join(lines) + "\n"


def _labels(one: Statistics) -> str:  # a name has no character that needs escaping
    kind = one.type.replace("\\", "\\\\").replace('"', '\\"')
    part = "" if one.part is None else f',part="{one.part}"'
    return f'connector="{one.connector}",type="{kind}"{part}'
