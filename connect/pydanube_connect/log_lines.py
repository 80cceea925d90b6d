"""The log lines of connectors: on stderr, and the newest of each connector for the cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TextIO

from pydanube_core.connectors import LOG_LINES

from pydanube_connect.file import Declared

MOST_CHARS: Final = 500  # of a line. Three bounds together: connectors, lines, characters
#: the connector whose run logs. Tasks and threads that the run starts have it too
_running: ContextVar[Declared | None] = ContextVar("running_connector", default=None)


@contextmanager
def logs_as(declared: Declared) -> Iterator[None]:
    """Attribute what the block logs to a connector, also what its libraries log."""
    token = _running.set(declared)
    try:
        yield
    finally:
        _running.reset(token)


class LogLines(logging.Handler):
    """Writes every line to a stream, without secrets, and keeps the newest lines of each connector until `take`."""

    def __init__(self, format: Callable[[logging.LogRecord], str], stream: TextIO) -> None:
        super().__init__()
        self._format = format
        self._stream = stream
        self._lines: dict[str, deque[dict[str, Any]]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        declared = _running.get()
        text = self._format(record)
        if declared is not None:
            text = declared.references.clean(text)
        self._stream.write(text + "\n")
        self._stream.flush()
        name = getattr(record, "connector", None) or (declared.name if declared is not None else None)
        if name is not None:
            line = {
                "time_ms": int(record.created * 1_000),
                "level": record.levelname.lower(),
                "text": text[:MOST_CHARS],
            }
            self._lines.setdefault(name, deque(maxlen=LOG_LINES)).append(line)

    def take(self) -> dict[str, list[dict[str, Any]]]:
        """Return the lines of each connector since the last call, the oldest first."""
        assert self.lock is not None
        with self.lock:
            found, self._lines = self._lines, {}
        return {name: list(lines) for name, lines in found.items()}
