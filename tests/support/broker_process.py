"""A real broker in a process of its own: start, stop, SIGKILL, SIGSTOP, start again on the same data and ports.

    from tests.support.broker_process import BrokerProcess, broker_process_fixture

    broker = broker_process_fixture()           # a fixture: a started broker with all ports, for one test
    brokers = broker_processes_fixture()        # a fixture: makes brokers that are gone when the test ends

    def test_x(tmp_path):
        with BrokerProcess(tmp_path) as broker:           # starts, and leaves nothing behind
            broker.command("produce", "t", "-m", "x")
            broker.kill()                                 # SIGKILL, waits for the end of its helpers too
            broker.start()                                # same data, same ports
            assert broker.stop() == 0                     # SIGTERM

Ready is an event: the broker's ready line on its stdout, or the end of that pipe when it dies. Ports are chosen once
for each BrokerProcess, below the range from which the kernel takes ports for outgoing connections, so that nobody is
given the port of a broker that is down for a moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from tests.support.default_ports import ADDRESSES
from tests.support.waiting import pause
from tests.support.warm_commands import MARK, ForkedProcess, server_for

__all__ = [
    "SMALL_JOURNAL",
    "SMALL_SEGMENT_BYTES",
    "WITHOUT_TELEMETRY",
    "BrokerDied",
    "BrokerProcess",
    "broker_process_fixture",
    "broker_processes_fixture",
    "client_environment",
    "danube_command",
    "free_ports",
    "refusal",
    "run_danube",
]

START_DEADLINE_S: Final = 120.0  # generous: the machine may be busy with something else
STOP_DEADLINE_S: Final = 60.0
_PORT_RANGE: Final = (10_240, 32_000)  # below net.ipv4.ip_local_port_range, above the well-known ones
_PORT_FLAGS: Final = ("--grpc-port", "--admin-port", "--metrics-port", "--http-port")
# A start writes two files of the journal full of zeros. These take the largest message there may be by default.
SMALL_SEGMENT_BYTES: Final = 4 << 20
#: the same for a broker in a process of its own
SMALL_JOURNAL: Final = {
    "DANUBE_TEST_SMALL_SEGMENTS": "1",
    "DANUBE_JOURNAL__SEGMENT_BYTES": str(SMALL_SEGMENT_BYTES),
}
#: settings of a broker in memory whose telemetry no test reads: with it the broker starts a process for its tier
WITHOUT_TELEMETRY: Final = {"telemetry.enabled": False}


class BrokerDied(AssertionError):
    """The broker ended before it was ready. `.exit_code`, `.log`."""

    def __init__(self, exit_code: int, log: str) -> None:
        super().__init__(
            f"the broker ended with {exit_code} before it was ready; its log ends with:\n{log[-6000:]}"
        )
        self.exit_code = exit_code
        self.log = log


def free_ports(count: int) -> tuple[int, ...]:
    """Return that many ports on which nothing listens."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.SystemRandom().randrange(*_PORT_RANGE)))
            except OSError:
                candidate.close()
            else:
                held.append(candidate)
        return tuple(each.getsockname()[1] for each in held)
    finally:
        for each in held:
            each.close()


def refusal(done: subprocess.CompletedProcess[bytes], exit_code: int, code: str) -> dict[str, Any]:
    """Return the error object that a command with `--json` ended with: alone on stderr, nothing on stdout, no stack trace."""
    text = done.stderr.decode()
    assert (done.returncode, done.stdout) == (exit_code, b""), (done.stdout[-2000:], text[-2000:])
    assert "Traceback" not in text
    error: dict[str, Any] = json.loads(text.splitlines()[-1])["error"]
    assert error["code"] == code, error
    assert set(error) >= {"code", "message", "retryable", "details", "next"}
    return error


def danube_command() -> list[str]:
    """The `danube` command of this environment."""
    return [str(Path(sys.executable).with_name("danube"))]


def client_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without settings of danube, with an address where nothing listens, and with `extra`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")}
    return {**clean, **ADDRESSES, "NO_COLOR": "1", "TERM": "dumb", **(extra or {})}


def run_danube(
    *words: str, environment: Mapping[str, str] | None = None, stdin: bytes = b"", timeout_s: float = 120.0
) -> subprocess.CompletedProcess[bytes]:
    """Run `danube WORDS` to its end, forked where that can be. `environment`: else `client_environment()`."""
    environment = client_environment() if environment is None else environment
    if (server := server_for(environment)) is not None:
        return server.run(words, environment=environment, stdin=stdin, timeout_s=timeout_s)
    return subprocess.run(
        [*danube_command(), *words],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        env=environment,
    )


class BrokerProcess:
    """One broker over its lives.

    Args:
        folder: for the log; and for the data, unless `data_dir` or `memory`.
        arguments: more flags for the command.
        environment: more variables, e.g. `{"DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB"}`.
        face: `up`, or `broker` (8765 stays closed).
        within: what goes in front of the command, such as `ip netns exec NAME`; it has to become the command.
        program: another `danube` than that of this environment.
        warm: within tests, fork it from a process that has done the imports (see `warm_commands`). It starts cold all the
            same with `within`, `program`, a secret, or a variable in `environment` that is not danube's, such as LD_PRELOAD
            or PYTHONPATH. False for a test of the start itself: its imports, threads, time or memory.
    """

    def __init__(
        self,
        folder: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        memory: bool = False,
        face: str = "up",
        within: Sequence[str] = (),
        program: str | None = None,
        warm: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir or folder / "data"
        self.log_file = folder / "broker.log"
        self.ready_file = folder / "ready.json"
        self.info: dict[str, Any] = {}
        self.lives = 0
        self.exit_code: int | None = None
        self._memory = memory
        self._arguments = list(arguments)
        self._mark = uuid.uuid4().hex
        self._environment = client_environment({**SMALL_JOURNAL, **(environment or {}), MARK: self._mark})
        self._face = face
        self._within = list(within)
        self._program = danube_command() if program is None else [program]
        self._warm = warm and not within and program is None
        self.ports: tuple[int, ...] | None = None
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._stopped = False

    # -- where it is -----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker was not started"
        return self.process.pid

    @property
    def url(self) -> str:
        return str(self.info["grpc"])

    @property
    def admin(self) -> str:
        return str(self.info["admin"])

    @property
    def metrics(self) -> str:
        return str(self.info["metrics"])

    @property
    def http(self) -> str:
        return str(self.info["http"])

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    # -- its life --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the process and return at once; `wait_ready` waits for it."""
        assert not self.running, "it is running already"
        if self.ports is None:
            self.ports = free_ports(4)
        where = ["--memory"] if self._memory else ["--data-dir", str(self.data_dir)]
        ports = [
            word for flag, port in zip(_PORT_FLAGS, self.ports, strict=True) for word in (flag, str(port))
        ]
        self.ready_file.unlink(missing_ok=True)
        self._stopped = False
        self.exit_code = None
        words = [self._face, *where, *ports, "--ready-file", str(self.ready_file), "--json", *self._arguments]
        with self.log_file.open("ab") as log, open(os.devnull, "rb") as nothing:
            log.write(f"--- life {self.lives + 1}\n".encode())
            log.flush()
            if self._warm and (server := server_for(self._environment)) is not None:
                self.process = server.start(
                    words,
                    environment=self._environment,
                    stdin=nothing.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=log.fileno(),
                    new_session=True,
                )
            else:
                self.process = subprocess.Popen(
                    [*self._within, *self._program, *words],
                    stdin=nothing,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
        self.lives += 1

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> dict[str, Any]:
        """Wait for the ready line; returns what it says.

        Raises:
            BrokerDied: it ended instead.
        """
        process = self.process
        assert process is not None
        assert process.stdout is not None
        until = time.monotonic() + deadline_s
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise AssertionError(
                    f"the broker was not ready after {deadline_s:g} s; log:\n{self.log()[-6000:]}"
                )
            chunk = os.read(process.stdout.fileno(), 65_536)
            if not chunk:
                raise BrokerDied(self.wait(), self.log())
            line += chunk
        self.info = json.loads(line)
        assert self.info["pid"] == process.pid
        return self.info

    def start(self, deadline_s: float = START_DEADLINE_S) -> dict[str, Any]:
        """Start on the same data and the same ports as before; returns what the ready line says.

        Raises:
            BrokerDied: it ended instead of becoming ready.
        """
        for attempt in range(5):
            self.begin()
            try:
                return self.wait_ready(deadline_s)
            except BrokerDied as died:
                if self.lives > 1 or "PORT_IN_USE" not in died.log or attempt == 4:
                    raise
                self.ports, self.lives = None, 0  # somebody was quicker: take others, nobody knows these yet
        raise AssertionError("not reached")

    def kill(self) -> None:
        """SIGKILL, and wait until it and all that it started are gone."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def terminate(self) -> None:
        """Send SIGTERM; `wait` waits for the end."""
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stop the process for now, by SIGSTOP."""
        assert self.process is not None
        pause(self.process)
        self._stopped = True

    def resume(self) -> None:
        """Let the process go on, by SIGCONT."""
        self.signal(signal.SIGCONT)
        self._stopped = False

    def wait(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Wait for the end of the process and its helpers; returns the exit code (minus the signal)."""
        process = self.process
        assert process is not None
        try:
            self.exit_code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the broker still runs after {deadline_s:g} s; log:\n{self.log()[-6000:]}"
            ) from None
        if process.stdout is not None:
            process.stdout.close()
        self._helpers_gone(deadline_s)
        return self.exit_code

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM, wait; returns the exit code."""
        self.terminate()
        return self.wait(deadline_s)

    def helpers(self) -> list[int]:
        """Process ids of what this broker started and is still there, its own not counted (Linux)."""
        wanted = f"{MARK}={self._mark}".encode()
        name = f"{self._mark[:15]}\n"  # of a forked one
        found = []
        own = self.process.pid if self.process is not None else 0
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(entry.name) != own and (
                    wanted in (entry / "environ").read_bytes().split(b"\0")
                    or (entry / "comm").read_text() == name
                ):
                    found.append(int(entry.name))
        return sorted(found)

    def helper_running(self, program: str = "sync_program.py") -> list[int]:
        """Helpers whose command line holds `program`, in the order of their start."""
        found = []
        for pid in self.helpers():
            with contextlib.suppress(OSError):
                if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _helpers_gone(self, deadline_s: float) -> None:
        """Wait until the helpers have ended, as they do when the broker is gone; one that stays is a defect."""
        until = time.monotonic() + deadline_s
        for pid in self.helpers():
            with contextlib.suppress(ProcessLookupError, OSError):
                handle = os.pidfd_open(pid)
                try:
                    gone, _, _ = select.select([handle], [], [], max(0.0, until - time.monotonic()))
                finally:
                    os.close(handle)
                if not gone:
                    os.kill(pid, signal.SIGKILL)
                    raise AssertionError(f"helper process {pid} outlived its broker")

    def close(self) -> None:
        """Leave nothing behind, whatever state it is in. Never raises for a broker that was killed already."""
        process = self.process
        if process is None:
            return
        if process.poll() is None:
            if self._stopped:
                self.resume()
            process.terminate()
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._helpers_gone(STOP_DEADLINE_S)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what it says ----------------------------------------------------------------------------------------

    def log(self) -> str:
        """Everything it wrote to stderr, over all its lives."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_text(errors="replace")
        return ""

    def check_log(self, *, allow: Sequence[str] = ()) -> None:
        """No traceback and no error event, except those whose line holds one of `allow`."""
        text = self.log()
        assert "Traceback (most recent call last)" not in text, text[-8000:]
        bad = [
            line
            for line in text.splitlines()
            if line.split(" ")[1:2] == ["error"] and not any(word in line for word in allow)
        ]
        assert not bad, "\n".join(bad)

    def status(self) -> dict[str, Any]:
        """Return the answer of `GET /status`."""
        import urllib.request

        with urllib.request.urlopen(f"{self.metrics}/status", timeout=60) as response:
            result: dict[str, Any] = json.load(response)
            return result

    def rss_bytes(self) -> int:
        """Resident memory of the broker process (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    # -- commands against it ---------------------------------------------------------------------------------

    def client_arguments(self) -> list[str]:
        return ["--broker", self.url, "--admin", self.admin]

    def command(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        check: bool = True,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `danube ARGUMENTS` against this broker; `check`: it must exit 0."""
        done = run_danube(*arguments, *self.client_arguments(), stdin=stdin or b"", timeout_s=timeout_s)
        if check and done.returncode != 0:
            raise AssertionError(
                f"danube {' '.join(arguments)} exited with {done.returncode}\n"
                f"stdout: {done.stdout[-3000:].decode(errors='replace')}\n"
                f"stderr: {done.stderr[-3000:].decode(errors='replace')}"
            )
        return done

    def json_command(self, *arguments: str, stdin: bytes | None = None) -> Any:
        """`danube ARGUMENTS --json`, its output parsed."""
        return json.loads(self.command(*arguments, "--json", stdin=stdin).stdout)

    def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        """Publish through the SDK and return when all is stored: cheaper than the command. The topic is made if need be."""
        from pydanube.sync import connect

        with connect(self.url) as client, client.producer(topic, dispatch_strategy=None) as producer:
            producer.send_many(payloads)

    def rpc(self, method: str, **params: Any) -> dict[str, Any]:
        """Call an operation over JSON-RPC and return its result: cheaper than the command, for tests that are not about the command."""
        import httpx

        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        with httpx.Client(trust_env=False, timeout=90) as client:
            answer: dict[str, Any] = client.post(f"{self.http}/rpc", json=body).json()
        return answer

    def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        """Call an operation over the admin port. Raises its error, as `OpsClient.call`."""
        from pydanube_admin.remote import call_sync

        return call_sync(self.admin, operation, arguments, principal="ann", timeout_s=60)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of an operation over JSON-RPC; what asks for a plan is planned and applied."""
        answer = self.rpc(method, **params)
        error = answer.get("error", {}).get("data", {})
        if error.get("code") == "PLAN_REQUIRED":
            answer = self.rpc(method, **params, plan_token=error["details"]["plan"]["plan_token"])
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found


Make = Callable[..., BrokerProcess]


def broker_process_fixture(scope: Any = "function", **options: Any) -> Any:
    """A fixture that is a started broker. Assign it to a module-level name: that is the fixture's name."""

    @pytest.fixture(scope=scope)
    def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
        with BrokerProcess(tmp_path_factory.mktemp("broker"), **options) as process:
            yield process

    return broker


def broker_processes_fixture() -> Any:
    """A fixture that makes brokers (not started): `make(arguments=…, environment=…)`; all are closed at the end."""

    @pytest.fixture
    def make_broker(tmp_path: Path) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:
            count = 0

            def make(**options: Any) -> BrokerProcess:
                nonlocal count
                count += 1
                process = BrokerProcess(options.pop("folder", tmp_path / f"broker-{count}"), **options)
                stack.callback(process.close)
                return process

            yield make

    return make_broker
