"""Long-running work under way, and its progress.

The caller that begins the work names the unit that it counts. `brokers.status` shows it, so that a command can show
progress and an operator can see why a call has not returned. Single user: the loop.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Work:
    """One piece of work under way. `total` is None if it is not available."""

    operation: str
    topic: str
    unit: str  # of `done`: objects, messages
    started_ms: int
    total: int | None = None
    done: int = 0


class LongWork:
    """The pieces of work of one broker."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._running: dict[int, Work] = {}

    @contextlib.contextmanager
    def begun(self, operation: str, topic: str, *, unit: str, now_ms: int) -> Iterator[Work]:
        """Context during which the work is shown."""
        number = next(self._numbers)
        work = self._running[number] = Work(operation, topic, unit, now_ms)
        try:
            yield work
        finally:
            del self._running[number]

    def status(self, now_ms: int) -> list[dict[str, Any]]:
        """Return {operation, topic, unit, done, total, running_s} of each, the oldest first."""
        return [
            {
                "operation": work.operation,
                "topic": work.topic,
                "unit": work.unit,
                "done": work.done,
                "total": work.total,
                "running_s": round((now_ms - work.started_ms) / 1000, 1),
            }
            for work in self._running.values()
        ]
