"""`danube cluster local` as a process: etcd and three brokers, each a process of its own."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from tests.support.broker_process import SMALL_JOURNAL, client_environment, danube_command

START_S: Final = 180.0


class Local:
    """The command, started once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "cluster"
        self._process: subprocess.Popen[bytes] | None = None
        self.brokers: dict[int, dict[str, Any]] = {}

    def start(self) -> None:
        ready = self._folder / "ready.json"
        for attempt in range(5):
            ready.unlink(missing_ok=True)
            offset = random.SystemRandom().randrange(3000, 14_000)  # 50051 and its neighbours stay ports
            with (self._folder / "log").open("wb") as log:  # of this start, also where a port was taken
                process = self._process = subprocess.Popen(
                    [*self._words(), "--port-offset", str(offset), "--ready-file", str(ready), "--json"],
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=client_environment(SMALL_JOURNAL),
                )
            until = time.monotonic() + START_S
            while not ready.exists() and process.poll() is None:
                assert time.monotonic() < until, self.log()
                time.sleep(0.05)
            if ready.exists():
                break
            assert "PORT_IN_USE" in self.log(), self.log()
            assert attempt < 4, self.log()
        said = json.loads(ready.read_text())
        assert said["event"] == "ready"
        assert said["etcd"]
        assert said["tier"] == str(self._data / "objects")
        self.brokers = {each["n"]: each for each in said["brokers"]}

    def _words(self) -> list[str]:
        return [*danube_command(), "cluster", "local", "--data-dir", str(self._data)]

    def steer(self, *words: str) -> Any:
        """From another terminal."""
        done = subprocess.run(
            [*self._words(), *words, "--json"], capture_output=True, text=True, env=client_environment()
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def interrupt(self) -> int:
        """Ctrl-C."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(120)

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(120)
