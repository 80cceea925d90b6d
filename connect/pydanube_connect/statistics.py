"""Counters of a connector since its start, for people, `/metrics` and health checks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

_RATE_WINDOW_S: Final = 60.0
log = logging.getLogger("pydanube.connect")


class State(StrEnum):
    """`starting` until the first connection, `failing` between a failed attempt and the next success."""

    STARTING = "starting"
    RUNNING = "running"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass(slots=True, kw_only=True)
class Statistics:
    """The counters of one connector since its start."""

    connector: str
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
    _rates: deque[tuple[float, int]] = field(default_factory=deque)

    def wrote(self, records: int) -> None:
        """Count a batch that is stored."""
        self.records += records
        self.batches += 1
        self.state = State.RUNNING
        now = time.monotonic()
        self._rates.append((now, records))
        while self._rates and self._rates[0][0] < now - _RATE_WINDOW_S:
            self._rates.popleft()

    def failed(self, reason: str) -> None:
        """Count and log a failed attempt."""
        self.retries += 1
        self.state = State.FAILING
        self.last_error = reason
        log.warning("connector_attempt_failed", extra={"connector": self.connector, "error": reason})

    def letters(self, records: int, reason: str) -> None:
        """Count and log records that became dead letters. `reason` is the first one's."""
        self.refused += records
        self.last_error = reason
        log.warning(
            "connector_refused", extra={"connector": self.connector, "records": records, "reason": reason}
        )

    @property
    def rate(self) -> float:
        """Records per second over the last minute."""
        now = time.monotonic()
        return sum(count for at, count in self._rates if at >= now - _RATE_WINDOW_S) / _RATE_WINDOW_S

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {
            "connector": self.connector, "kind": self.kind, "type": self.type, "state": str(self.state),
            "guarantee": self.guarantee, "records": self.records, "refused": self.refused,
            "repeated": self.repeated, "batches": self.batches, "retries": self.retries,
            "rate": round(self.rate, 3), "last_error": self.last_error, "position": dict(self.positions),
        }  # fmt: skip


_COUNTERS: Final[Mapping[str, str]] = {
    "records": "Records written or published.",
    "refused": "Records that could never be written.",
    "repeated": "Records that the other side had already.",
    "batches": "Batches stored.",
    "retries": "Failed attempts that were tried again.",
}


def exposition(connectors: Iterable[Statistics]) -> str:
    """Return the counters in the text format of Prometheus, version 0.0.4."""
    each = list(connectors)
    lines: list[str] = []
    for name, about in _COUNTERS.items():
        family = f"danube_connect_{name}_total"
        lines += [f"# HELP {family} {about}", f"# TYPE {family} counter"]
        lines += [f"{family}{{{_labels(one)}}} {getattr(one, name)}" for one in each]
    family = "danube_connect_running"
    lines += [f"# HELP {family} 1 while the last attempt succeeded.", f"# TYPE {family} gauge"]
    lines += [f"{family}{{{_labels(one)}}} {int(one.state is State.RUNNING)}" for one in each]
    return "\n".join(lines) + "\n"


def _labels(one: Statistics) -> str:  # a name has no character that needs escaping
    kind = one.type.replace("\\", "\\\\").replace('"', '\\"')
    return f'connector="{one.connector}",type="{kind}"'
