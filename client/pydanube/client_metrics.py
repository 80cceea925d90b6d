"""Counters of a client, as Prometheus reads them: text, without a dependency.

Series are by topic and subscription. Counts of closed producers and consumers stay, for up to `MOST_SERIES` topics.
Further ones are summed under an empty topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pydanube.statistics import (
        ClientStatistics,
        ConsumerStatistics,
        HandlerStatistics,
        ProducerStatistics,
    )

MOST_SERIES: Final = 1000
_GAUGES: Final = {
    "waiting_messages", "waiting_bytes", "blocked_senders", "buffered_messages", "credit_messages", "credit_bytes",
    "running_workers",
}  # fmt: skip

#: role, topic, subscription
Labels = tuple[str, str, str]
Statistics: TypeAlias = "ProducerStatistics | ConsumerStatistics | HandlerStatistics"


class ClosedCounts:
    """The summed counters of closed producers and consumers."""

    def __init__(self) -> None:
        self._counts: dict[Labels, Counter[str]] = {}

    def add(self, labels: Labels, statistics: Statistics) -> None:
        """Add the counters of a producer or consumer that has closed."""
        if labels not in self._counts and len(self._counts) >= MOST_SERIES:
            labels = (labels[0], "", "")
        self._counts.setdefault(labels, Counter()).update(_counters(statistics))

    def items(self) -> Iterable[tuple[Labels, Mapping[str, int]]]:
        return self._counts.items()


def _counters(statistics: Statistics) -> dict[str, int]:
    return {name: number for name, number in _numbers(statistics).items() if name not in _GAUGES}


def _numbers(statistics: Statistics) -> dict[str, int]:
    return {name: value for name, value in asdict(statistics).items() if isinstance(value, int)}


def exposition(
    client: ClientStatistics, open_ones: Iterable[tuple[Labels, Statistics]], closed: ClosedCounts
) -> str:
    """Return counters in the text format of Prometheus, version 0.0.4."""
    sums: dict[Labels, Counter[str]] = {}
    for labels, statistics in open_ones:
        sums.setdefault(labels, Counter()).update(_numbers(statistics))
    for labels, counts in closed.items():
        sums.setdefault(labels, Counter()).update(counts)
    families: dict[str, list[str]] = {}
    for name in ("connections", "producers", "consumers"):
        families[f"danube_client_{name}"] = [f"danube_client_{name} {getattr(client, name)}"]
    families["danube_client_reconnects_total"] = [f"danube_client_reconnects_total {client.reconnects}"]
    for labels, counts in sorted(sums.items()):
        role, topic, subscription = labels
        shown: dict[str, Any] = {"topic": topic} | ({"subscription": subscription} if subscription else {})
        text = ",".join(f'{key}="{_escaped(value)}"' for key, value in shown.items())
        for name, number in counts.items():
            family = f"danube_client_{role}_{name}" + ("" if name in _GAUGES else "_total")
            families.setdefault(family, []).append(f"{family}{{{text}}} {number}")
    lines: list[str] = []
    for family, rows in sorted(families.items()):
        lines += [f"# TYPE {family} {'counter' if family.endswith('_total') else 'gauge'}", *rows]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
