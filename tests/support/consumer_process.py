"""A consumer in a process of its own, and what it has printed so far.

with ConsumerProcess(broker.url, "t", "s", type="failover", name="a") as consumer:
    consumer.wait_for(10)            # ten messages, or the deadline fails the test
    consumer.kill()                  # SIGKILL; `pause` and `resume` are SIGSTOP and SIGCONT
    consumer.messages                # all that it printed, also after its end
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.broker_process import client_environment
from tests.support.waiting import pause

__all__ = ["ConsumerProcess"]

PROGRAM: Final = Path(__file__).with_name("consumer_program.py")
DEADLINE_S: Final = 90.0


class ConsumerProcess:
    """See the module. Entering starts it and waits until it is attached; leaving kills it."""

    def __init__(
        self,
        url: str,
        topic: str,
        subscription: str,
        *,
        type: str = "exclusive",
        name: str | None = None,
        credit: int = 10_000,
        pause_ms: float = 0,
        hold: bool = False,
        key_filters: tuple[str, ...] = (),
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self.active: bool | None = None
        self._changed = threading.Condition()
        self._ended = False
        arguments = [url, topic, subscription, "--type", type, "--credit", str(credit)]
        arguments += ["--pause-ms", str(pause_ms), *(["--hold"] if hold else [])]
        arguments += ["--name", name] if name else []
        for pattern in key_filters:
            arguments += ["--key-filter", pattern]
        self._arguments = arguments
        self._process: subprocess.Popen[str]
        self._reader: threading.Thread

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *self._arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=client_environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait(lambda: self.active is not None, "be attached")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reader.join(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # killed while it wrote: not told
            facts = json.loads(line)
            with self._changed:
                if facts.get("event") == "ready":
                    self.active = facts["active"]
                else:
                    self.messages.append(facts)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait(self, condition: Any, what: str) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: condition() or self._ended, DEADLINE_S)
            assert done, (
                f"the consumer did not {what} within {DEADLINE_S} s; it has {len(self.messages)} messages"
            )
            assert condition(), f"the consumer ended before it could {what}: exit {self._process.poll()}"

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """The first messages, once there are that many."""
        self._wait(lambda: len(self.messages) >= count, f"get {count} messages")
        return self.messages[:count]

    def wait_until(self, condition: Any) -> None:
        """Wait until `condition(messages)` holds."""
        self._wait(lambda: condition(self.messages), "get the messages")

    @property
    def payloads(self) -> list[str]:
        return [message["payload"] for message in self.messages]

    def kill(self) -> None:
        """SIGKILL, and wait until all it had printed is read."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)

    def pause(self) -> None:
        """Stop the process by SIGSTOP: it stays connected and is silent."""
        pause(self._process)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
