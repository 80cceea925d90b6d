"""A pytest plugin for tools/gate.py: what became of each test, a line of JSON at a time, as it happens.

JUnit's XML is written when pytest ends; a run that dies or hangs leaves none, and CI could not say which test it was.
The file is named by PYDANUBE_GATE_REPORT. Its lines, `test` always a node id:

    {"selected": [test, …]}                         once, after collection
    {"test", "outcome": passed|failed|skipped, "why"}   `why`: the last line of the error, null when passed
    {"broken": path, "why"}                         a file that could not be collected
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

LAST_LINE_CHARS: Final = 400


def last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return in one line where a test failed and what its error says."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        place = os.path.relpath(crash.path) if os.path.isabs(crash.path) else crash.path
        text = f"{place}:{crash.lineno}: {' '.join(str(crash.message).split())}"
    elif isinstance(report.longrepr, tuple):  # skipped: (path, line, reason)
        text = str(report.longrepr[2])
    else:
        lines = [line.strip() for line in report.longreprtext.splitlines() if line.strip()]
        text = lines[-1] if lines else "no error text"
    return text if len(text) <= LAST_LINE_CHARS else f"{text[:LAST_LINE_CHARS]} …"


class Recorder:
    """Write a line as soon as a test is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._skipped: dict[str, str] = {}
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(selected=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(broken=report.nodeid, why=last_line(report))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        if report.failed:
            if test not in self._failed:  # its first error is the cause, a broken teardown the consequence
                self._failed.add(test)
                self._write(test=test, outcome="failed", why=f"({report.when}) {last_line(report)}")
        elif report.skipped:
            self._skipped[test] = last_line(report)
        if report.when == "teardown" and test not in self._failed:
            skipped = self._skipped.get(test)
            self._write(test=test, outcome="passed" if skipped is None else "skipped", why=skipped)

    def _write(self, **line: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("PYDANUBE_GATE_REPORT"):
        # Absolute: a test may change the directory.
        config.pluginmanager.register(Recorder(Path(path).absolute()), "pydanube-gate-report")
