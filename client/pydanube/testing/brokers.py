"""The process that runs brokers for tests: started with the first of them, ended with this process."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import ClusterError, Internal

END_S: Final = 10.0  # each broker has two seconds to stop
#: -P: no file of the tests' folder is imported instead of a module of ours with its name
COMMAND: Final = (sys.executable, "-P", "-m", "pydanube_cli.memory_brokers")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBroker:
    """A broker that runs in the other process."""

    number: int
    url: str
    admin_url: str


class MemoryBrokers:
    """See the module. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(self, settings: Mapping[str, Any]) -> MemoryBroker:
        """Start a broker with these settings (`topics.auto_create` …) and wait until it is ready.

        Raises:
            MissingExtra: the extra `broker` is not installed.
            InvalidArgument: a setting is invalid.
        """
        with self._lock:
            process = self._process = self._process or self._begin()
            assert process.stdout is not None
            self._write(process, {"start": settings})
            line = process.stdout.readline()
        if not line:
            raise Internal(f"the process of brokers in memory has ended with {process.wait(END_S)}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterError.from_dict(answer["error"])
        return MemoryBroker(number=answer["broker"], url=answer["grpc"], admin_url=answer["admin"])

    def stop(self, broker: MemoryBroker) -> None:
        """Stop the broker without waiting for its end."""
        with self._lock:
            if self._process is not None:
                self._write(self._process, {"stop": broker.number})

    def close(self) -> None:
        """End the process with all its brokers."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()

    def _begin(self) -> subprocess.Popen[str]:
        atexit.register(self.close)
        # A session of its own: Ctrl-C is for the tests, which then close their clusters.
        return subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    @staticmethod
    def _write(process: subprocess.Popen[str], wish: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(wish) + "\n")
        process.stdin.flush()


BROKERS: Final = MemoryBrokers()
