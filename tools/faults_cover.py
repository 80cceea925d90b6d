"""A pytest plugin for tools/faults.py: which test runs which line, in its own process and in those it starts.

coverage.py is running by the time this is loaded (`sitecustomize.py` in the scratch copy starts it in every process). Each
test is a context of its own. Processes that it starts have the test's name in their environment, and record it.

The file PYDANUBE_MUTANTS_TESTS gets a line of JSON per test: {"test", "seconds", "ok"}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

CONTEXT = "PYDANUBE_MUTANTS_TEST"


class Contexts:
    """Switches coverage's context with the tests, and writes down how long each took."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
        self._bad: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        os.environ[CONTEXT] = item.nodeid
        if (measuring := coverage.Coverage.current()) is not None:
            measuring.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            del os.environ[CONTEXT]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._seconds[test] = self._seconds.get(test, 0.0) + report.duration
        if report.outcome != "passed":
            self._bad.add(test)
        if report.when == "teardown":
            line = {"test": test, "seconds": round(self._seconds[test], 3), "ok": test not in self._bad}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("PYDANUBE_MUTANTS_TESTS"):
        config.pluginmanager.register(Contexts(Path(path).absolute()), "pydanube-mutants-cover")
