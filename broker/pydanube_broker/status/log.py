"""Logs: one event a line on stderr, `time level event key=value …` or the same as JSON.

The broker's modules log with the standard library: `logging.getLogger("pydanube.<area>")`, and
`log.info("journal_recovered", extra={"records": 12})`. The message is the event's fixed name, and every field is a
record attribute of its own. If the message is a sentence, the field `event` names the event. A record of neither kind
comes from another library. Its event is `log`, its text `message`.

Values written by others (topic names, reasons) may hold line ends. The text form quotes values that are not plain, so
that no value can forge a line.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import deque
from typing import Any, Final, TextIO

from pydanube_core.facts import LogLine
from pydanube_core.secrets import known_secrets, without_secrets
from pydanube_core.units import format_time

_EVENT: Final = re.compile("[a-z][a-z0-9_.]*")
# Attributes of every record. All others came from `extra`.
_STANDARD: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
    "pydanube_fields",
}
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


# Values of this process's environment that are secrets by their names. Fixed when it starts.
_known: Final = known_secrets(os.environ)


def record_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return `time`, `level`, `event`, then the record's own fields, and `message` if it differs from the event.

    Several handlers need the fields of each record, so they are made once and kept in it. The result is a copy.
    """
    kept: dict[str, Any] | None = record.__dict__.get("pydanube_fields")
    if kept is None:
        kept = record.__dict__["pydanube_fields"] = _made_fields(record)
    return kept.copy()


def _made_fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    message = record.getMessage()
    event = extra.pop("event", None)
    if event is None and record.name.startswith("pydanube") and _EVENT.fullmatch(message):
        event = message
    fields: dict[str, Any] = {
        "time": format_time(int(record.created * 1000)),
        "level": record.levelname.lower(),
        "event": event or "log",
    }
    if event is None:
        fields["logger"] = record.name
    if message and message != event:
        fields["message"] = message
    fields |= extra
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["error"] = f"{type(error).__name__}: {error}"
    return {
        key: without_secrets(value, _known) if isinstance(value, str) else value
        for key, value in fields.items()
    }


class EventFormatter(logging.Formatter):
    """Formats records as events.

    Args:
        as_json: one JSON object a line instead of text.
        tracebacks: append the stack of an exception (text) or put it under `stack` (JSON).
    """

    def __init__(self, *, as_json: bool, tracebacks: bool = True) -> None:
        super().__init__()
        self._as_json = as_json
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        fields = record_fields(record)
        stack = None
        if self._tracebacks and record.exc_info:
            stack = without_secrets(self.formatException(record.exc_info), _known)
        if self._as_json:
            if stack:
                fields["stack"] = stack
            return json.dumps(fields, ensure_ascii=False, default=str)
        head = f"{fields.pop('time')} {fields.pop('level')} {fields.pop('event')}"
        line = head + "".join(f" {key}={_text(value)}" for key, value in fields.items())
        return f"{line}\n{stack}" if stack else line


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain = text.isprintable() and not any(c in ' ="' for c in text) and text
    return text if plain or not isinstance(value, str) else json.dumps(text, ensure_ascii=False)


def configure_logging(*, level: str, format: str, stream: TextIO | None = None) -> None:
    """Send every record of the process to stderr in our form. Libraries only from `warning` up.

    Args:
        level: of our own loggers: debug, info, warning, error.
        format: text or json.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EventFormatter(as_json=format == "json"))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("pydanube").setLevel(_LEVELS[level])


LINES: Final = 2000
MAX_CHARS: Final = 2000  # of a line
LEVELS: Final = ("debug", "info", "warning", "error")


class LogRing(logging.Handler):
    """Keeps the last events for `brokers.logs`, bounded in number and length. Reading them needs no file and no shell."""

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
        """Return the last lines of a level or above, the oldest first."""
        wanted = LEVELS[LEVELS.index(level) :] if level in LEVELS else None
        found = [
            line
            for line in self._lines
            if (wanted is None or line.level in wanted) and (since_ms is None or line.time_ms >= since_ms)
        ]
        return found[-lines:]
