"""The last events of the process's log, kept for `brokers.logs`: no file and no shell is needed to read them."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from pydanube_core.facts import LogLine

from pydanube_broker.log import EventFormatter, record_fields

LINES: Final = 2000
MAX_CHARS: Final = 2000  # of a line
LEVELS: Final = ("debug", "info", "warning", "error")


class LogRing(logging.Handler):
    """A handler that keeps lines; bounded in number and length."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=LINES)
        self._formatter = EventFormatter(as_json=False, tracebacks=False)

    def emit(self, record: logging.LogRecord) -> None:
        fields = record_fields(record)
        self._lines.append(
            LogLine(
                time_ms=int(record.created * 1000),
                level=str(fields["level"]),
                event=str(fields["event"]),
                text=self._formatter.format(record)[:MAX_CHARS],
            )
        )

    def last(self, *, lines: int, level: str | None, since_ms: int | None) -> list[LogLine]:
        """The last lines of a level or above, the oldest first."""
        wanted = LEVELS[LEVELS.index(level) :] if level in LEVELS else None
        found = [
            line
            for line in self._lines
            if (wanted is None or line.level in wanted) and (since_ms is None or line.time_ms >= since_ms)
        ]
        return found[-lines:]
