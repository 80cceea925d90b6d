"""Calls that take minutes: no deadline unless one was asked for, and on a terminal a line that says how far it is.

The broker shows its long work in `brokers.status`; a thread asks for that while the call waits. The line is on stderr and
is gone when the answer comes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pydanube_core.errors import ClusterError

T = TypeVar("T")

NO_DEADLINE_S: Final = 7 * 86_400.0
_INTERVAL_S: Final = 0.5


def with_progress(work: Callable[[], T], status: Callable[[], Mapping[str, Any]], operation: str) -> T:
    """Run `work`; meanwhile show what the broker says of `operation`, if there is a terminal to show it on."""
    if not sys.stderr.isatty():
        return work()
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ended, status, operation), daemon=True)
    watcher.start()
    try:
        return work()
    finally:
        ended.set()
        watcher.join()


def _watch(ended: threading.Event, status: Callable[[], Mapping[str, Any]], operation: str) -> None:
    shown = 0
    while not ended.wait(_INTERVAL_S):
        try:
            line = progress_line(status(), operation)
        except ClusterError:
            continue  # the call itself says what is wrong
        if line:
            sys.stderr.write("\r" + line.ljust(shown))
            sys.stderr.flush()
            shown = len(line)
    if shown:
        sys.stderr.write("\r" + " " * shown + "\r")
        sys.stderr.flush()


def progress_line(status: Mapping[str, Any], operation: str) -> str:
    """`objects verify /default/logs: 12 of 340 objects, 3 s`; empty where the broker says nothing of it."""
    for work in status.get("tier", {}).get("work", ()):
        if work["operation"] == operation:
            of = "" if work["total"] is None else f" of {work['total']:,}"
            words = operation.replace(".", " ").replace("_", "-")
            return f"{words} {work['topic']}: {work['done']:,}{of} {work['unit']}, {work['running_s']:.0f} s"
    return ""
