"""Scenarios of the official clients against a real broker, each side in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.conformance.official.locked import locked  # noqa: F401  # a fixture
from tests.support.broker_process import BrokerProcess
from tests.support.official_client import official_client_environment

SCRIPT: Final = Path(__file__).with_name("scenarios.py")
DEADLINE_S: Final = 100.0
_topics = itertools.count()


class Scenario:
    """One running scenario; leaving the block waits for its `ok`."""

    def __init__(
        self,
        name: str,
        url: str,
        topic: str,
        *arguments: str,
        program: Sequence[str] | None = None,
        deadline_s: float = DEADLINE_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `program` is run with the name, URL and topic, or the Python client's scenarios."""
        command = program or [sys.executable, "-W", "error", "-X", "dev", str(SCRIPT)]
        self._deadline_s = deadline_s
        self._until = time.monotonic() + deadline_s
        self._process = subprocess.Popen(
            [*command, name, url, topic, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=official_client_environment(environment)
            if program is None
            else {**os.environ, **(environment or {})},
            bufsize=0,
        )
        self._output = b""

    def wait_for(self, word: str) -> None:
        """Wait until the scenario says the word."""
        line = f"{word}\n".encode()
        assert self._process.stdout is not None
        while line not in self._output:
            left_s = self._until - time.monotonic()
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, left_s))
            chunk = self._process.stdout.read(65_536) if readable else b""
            if not chunk:
                self.close()
                why = "ended" if readable else f"still runs after {self._deadline_s:g} s"
                pytest.fail(f"the scenario {why} without {word!r}:\n{self._output[-6000:].decode()}")
            self._output += chunk

    @staticmethod
    def sleep(seconds: float) -> None:
        """Let the client's own timers run: nothing announces that its health checks have ended."""
        time.sleep(seconds)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._process.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                self._output += self._process.stdout.read() or b""
            self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait_for("ok")
                assert self._process.wait(30) == 0, self._output.decode()
        finally:
            self.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the scenarios that leave it alive."""
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"), environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB"}
    ) as process:
        yield process
        process.check_log()


@pytest.fixture
def topic() -> str:
    return f"/default/t{next(_topics)}"
