"""The processes of a benchmark: a broker of its own, workers, and the broker's cost while they work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import psutil
from pydanube_core.errors import ClusterError, DeadlineExceeded, Internal, Unavailable

START_S: Final = 60.0
STOP_S: Final = 15.0
SAMPLE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """A broker to measure.

    `pid` and `data_dir` are None if they are on another machine, `owned` if it is not ours to stop.
    """

    url: str
    admin_url: str
    pid: int | None
    data_dir: Path | None
    owned: OwnBroker | None

    @property
    def own(self) -> bool:
        return self.owned is not None


class OwnBroker:
    """A broker on free ports and a data directory below `home`, which can be stopped and started again.

    Args:
        face: the command that starts it, `broker` or `up`.
        sampled: it can sample its event loop, see `profiled`.
    """

    def __init__(self, home: Path, face: str = "broker", *, sampled: bool = False) -> None:
        self._home = home
        self._face = face
        self._module = ["pydanube_cli.main"]
        if sampled:
            self._module = ["pydanube_cli.bench.profiled", str(home / "samples.json")]
        self._process: subprocess.Popen[bytes] | None = None
        self._running: RunningBroker | None = None

    @property
    def running(self) -> RunningBroker:
        """Its addresses and process of the last start."""
        assert self._running is not None, "it was not started yet"
        return self._running

    def restart(self, environment: Mapping[str, str] | None = None) -> RunningBroker:
        """Stop it and start it again, as `start`."""
        self.stop()
        return self.start(environment)

    def start(self, environment: Mapping[str, str] | None = None) -> RunningBroker:
        """Start it and wait until it is ready.

        Args:
            environment: variables for it, beside those of this process.

        Raises:
            ClusterError: it did not start. The message contains its output.
        """
        assert self._process is None, "it runs already"
        ready, log = self._home / "ready.json", self._home / "log"
        ready.unlink(missing_ok=True)
        words = [self._face, "--data-dir", str(self._home / "data"), "--ready-file", str(ready), "--json"]
        ports = ("grpc", "admin", "metrics", *(("http",) if self._face == "up" else ()))
        words += [f"--{name}-port=0" for name in ports]
        with log.open("ab") as said:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", *self._module, *words, "--log-level", "warning"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for this process, which stops it in order
                env={**os.environ, **(environment or {})},
            )
        info = _wait_ready(process, ready, log)
        self._running = RunningBroker(
            url=info["grpc"],
            admin_url=info["admin"],
            pid=process.pid,
            data_dir=self._home / "data",
            owned=self,
        )
        return self._running

    @contextmanager
    def sampling(self, found: dict[str, Any]) -> Iterator[None]:
        """Let it sample its event loop within the block. `found` gets the samples.

        Raises:
            DeadlineExceeded: it did not write its samples.
        """
        assert self._process is not None, "it does not run"
        path = self._home / "samples.json"
        path.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        yield
        self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + STOP_S
        while not path.exists():
            if time.monotonic() > end:
                raise DeadlineExceeded(f"the broker wrote no samples within {STOP_S:g} s")
            time.sleep(0.02)
        found.update(json.loads(path.read_text()))

    def stop(self, *, kill: bool = False) -> None:
        """Stop it by SIGTERM. With `kill`, or after `STOP_S`, use SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def broker_of_our_own(
    parent: Path | None, face: str = "broker", *, sampled: bool = False
) -> Iterator[RunningBroker]:
    """Start a broker on free ports and a temporary data directory below `parent`. Clean up at the end.

    Raises:
        ClusterError: it did not start. The message contains its output.
    """
    # Not in /tmp by default, which may be memory: a sync there costs and shows nothing.
    home = Path(tempfile.mkdtemp(prefix="danube-bench-", dir=parent or Path.cwd()))
    broker = OwnBroker(home, face, sampled=sampled)
    try:
        yield broker.start()
    finally:
        broker.stop()
        shutil.rmtree(home, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> dict[str, Any]:
    end = time.monotonic() + START_S
    while not ready.exists():
        if process.poll() is not None:
            raise _start_error(log.read_text(errors="replace"))
        if time.monotonic() > end:
            raise DeadlineExceeded(f"the broker was not ready within {START_S:g} s: {_tail(log)}")
        time.sleep(0.02)
    found: dict[str, Any] = json.loads(ready.read_text())
    return found


def _start_error(said: str) -> ClusterError:
    """Return the error that the broker printed, as our own."""
    for line in reversed(said.splitlines()):
        with suppress(ValueError, KeyError, AttributeError):
            return ClusterError.from_dict(json.loads(line)["error"])
    return Internal(f"the broker did not start: {said[-2000:].strip() or 'it said nothing'}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:].strip()


@contextmanager
def broker_at(url: str, admin_url: str, *, timeout_s: float) -> Iterator[RunningBroker]:
    """Return a running broker. Pid and data directory are None if it is remote or does not answer."""
    from pydanube_admin.remote import call_sync

    pid: int | None = None
    data_dir: Path | None = None
    with suppress(ClusterError):
        status = call_sync(admin_url, "brokers.status", {}, timeout_s=timeout_s)
        here = "127.0.0.1" in url or "localhost" in url or "[::1]" in url
        if here and psutil.pid_exists(status["pid"]):
            pid = status["pid"]
            found = status.get("data_dir")
            data_dir = Path(found) if found and Path(found).is_dir() else None
    yield RunningBroker(url=url, admin_url=admin_url, pid=pid, data_dir=data_dir, owned=None)


class ServerCost:
    """Processor time and memory of a broker and its children, between entering and leaving.

    `rss_peak_bytes` is the largest sum seen, sampled each 100 ms.
    """

    def __init__(self, pid: int | None) -> None:
        self._process = None if pid is None else psutil.Process(pid)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = 0.0
        self.cpu_s: float | None = None
        self.rss_peak_bytes: int | None = None

    def __enter__(self) -> Self:
        if self._process is not None:
            self._before = self._cpu()
            self.rss_peak_bytes = 0
            self._thread = threading.Thread(target=self._sample, name="danube bench sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            with suppress(psutil.Error):
                self.cpu_s = self._cpu() - self._before

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        with suppress(psutil.Error):
            return [self._process, *self._process.children(recursive=True)]
        return []

    def _cpu(self) -> float:
        total = 0.0
        for process in self._family():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def rss_bytes(self) -> int:
        """Return the resident memory of all of them."""
        total = 0
        for process in self._family():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.rss_peak_bytes = max(self.rss_peak_bytes or 0, self.rss_bytes())


class Worker:
    """One worker process. `worker.py` describes its protocol."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.role = str(spec["role"])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pydanube_cli.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._tell(json.dumps(spec))

    def wait_ready(self) -> None:
        assert "ready" in self._hear()

    def go(self) -> None:
        self._tell("go")

    def stop(self) -> None:
        self._tell("stop")

    def result(self) -> dict[str, Any]:
        """Return the measurements.

        Raises:
            ClusterError: the worker's error.
        """
        found: dict[str, Any] = self._hear()["result"]
        return found

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its output has the reason
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"a worker ({self.role}) ended without a result. Its stderr is above")
        heard: dict[str, Any] = json.loads(line)
        if "error" in heard:
            raise ClusterError.from_dict(heard["error"])
        return heard


class Crew:
    """Worker processes that start together."""

    def __init__(self, specs: Sequence[dict[str, Any]]) -> None:
        self.workers = [Worker(spec) for spec in specs]

    def __enter__(self) -> Self:
        try:
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()

    def go(self) -> None:
        for worker in self.workers:
            worker.go()

    def results(self) -> list[dict[str, Any]]:
        return [worker.result() for worker in self.workers]
