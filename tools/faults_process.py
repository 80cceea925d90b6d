"""The test process of tools/faults.py: started once per room, it runs chosen tests in forks (tools/faults_server.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.faults_server import PIPES
from tools.gate import end_what_is_left


class TestProcess:
    """Tests that were collected once. Every run is in a fork. Single user."""

    __test__ = False  # pytest collects no class of this name

    def __init__(
        self,
        tree: Path,
        selected: Sequence[str],
        output: Path,
        *options: str,
        environment: Mapping[str, str],
        python: Path = Path(sys.executable),
    ) -> None:
        """Collect the tests of these folders and files.

        Args:
            python: runs them.
            environment: of the process. What its forks start has `run`'s in addition.
            output: gets what pytest and the tests print.
        """
        self.output = output
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        words = (
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "tools.faults_server",
            "-s",
            "-m",
            "not long",
        )
        with output.open("wb") as file:
            self._child = subprocess.Popen(
                (str(python), *words, "--tb=short", *options, *selected),
                cwd=tree,
                env={**environment, PIPES: f"{requests},{answers}"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(requests, answers),
                start_new_session=True,
            )
        os.close(requests)
        os.close(answers)
        self._from = os.fdopen(self._answers, "rb")
        self.tests: list[str] = self._next()["tests"]

    def run(
        self,
        tests: Sequence[str],
        report: Path,
        *,
        environment: Mapping[str, str],
        limit_s: float,
        fault: tuple[Path, int] | None = None,
        cover: Mapping[str, str] | None = None,
    ) -> str:
        """Run tests in a fork, in this order. Return `ended`, `time`, or `not replaced`. Processes that they started end.

        Args:
            report: gets a line per test.
            fault: the file that has a fault now, and the fault's line.
        """
        report.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="dm-", ignore_cleanup_errors=True) as scratch:
            request = {
                "tests": list(tests),
                "report": str(report),
                "environment": {**environment, "TMPDIR": scratch},
                "limit_s": limit_s,
                "fault": None if fault is None else {"path": str(fault[0]), "line": fault[1]},
                "cover": cover,
            }
            os.write(self._requests, json.dumps(request).encode() + b"\n")
            try:
                return str(self._next()["status"])
            finally:
                end_what_is_left()

    def _next(self) -> dict[str, Any]:
        line = self._from.readline()
        if not line:
            raise RuntimeError(f"the test process has ended; what it printed is in {self.output}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        os.close(self._requests)
        self._from.close()
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
