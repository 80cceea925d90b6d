"""The brokers and commands that tests fork are as those that a user starts, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.test_up_and_stop_live import READY_FIELDS
from tests.support import warm_commands
from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.waiting import wait_until
from tests.support.warm_commands import ForkedProcess, WarmServer, server_for

pytestmark = pytest.mark.skipif(
    not warm_commands.can_fork(),
    reason="NOT RUN: this system has no handles of processes, so nothing is forked",
)


@pytest.mark.parametrize(
    "warm", [True, False], ids=["forked start on a directory", "cold start on a directory"]
)
def test_lives_and_ends_are_the_same(tmp_path: Path, warm: bool) -> None:
    with BrokerProcess(tmp_path, warm=warm) as broker:
        assert isinstance(broker.process, ForkedProcess) == warm
        assert (tuple(broker.info), os.getsid(broker.pid)) == (READY_FIELDS, broker.pid)
        assert broker.helpers()
        broker.publish("t", [b"x"])
        broker.kill()
        assert broker.exit_code == -signal.SIGKILL
        broker.start()
        assert broker.ask("topics.describe", topic="t")["next_offset"] == 1
        assert broker.stop() == 0
        broker.check_log()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", ""),
        ("PYTHONPATH", "/nowhere"),
        ("MALLOC_ARENA_MAX", "1"),
        ("AWS_SECRET_ACCESS_KEY", "s" * 40),
    ],
)
def test_what_imports_or_the_loader_read_makes_a_cold_start(tmp_path: Path, name: str, value: str) -> None:
    broker = BrokerProcess(tmp_path, environment={name: value})
    broker.begin()
    try:
        assert isinstance(broker.process, subprocess.Popen)
    finally:
        broker.kill()


def test_variables_of_danube_are_given_to_a_forked_one() -> None:
    environment = client_environment({"DANUBE_X": "1", "PYDANUBE_TEST_X": "1"})
    assert server_for(environment) is not None
    assert server_for({**environment, "PATH": "/nowhere"}) is None
    del environment["PATH"]
    assert server_for(environment) is None


def test_a_benchmark_starts_cold() -> None:
    """Only tests/conftest.py turns forking on."""
    words = "import os; from tests.support import broker_process, warm_commands as w; print(w.server_for(os.environ))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_what_a_dead_server_forked_can_still_be_ended() -> None:
    server = WarmServer()
    process = start(server)
    server.process.kill()
    server.process.wait()
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == -signal.SIGKILL
    server.close()


def test_a_server_that_ends_takes_along_what_it_forked() -> None:
    server = WarmServer()
    process = start(server)
    server.close()
    assert process.wait(60) == -signal.SIGKILL
    assert (
        not Path(f"/proc/{process.pid}/cmdline").exists()
        or not Path(f"/proc/{process.pid}/cmdline").read_bytes()
    )


def test_a_caller_that_ends_early_does_not_end_the_server() -> None:
    server = WarmServer()
    for said in (b"", b"\0\0\1\0", b"\0\0\1\0{"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(server.address)
            caller.sendall(said)
    done = server.run(["--version"], environment=client_environment(), stdin=b"", timeout_s=60)
    assert (done.returncode, done.stdout[:7]) == (0, b"danube ")
    done = server.run(["topics", "nonsense"], environment=client_environment(), stdin=b"", timeout_s=60)
    assert done.returncode == 2
    server.close()


def test_two_threads_may_wait_for_one_process() -> None:
    server = WarmServer()
    process = start(server)
    codes: list[int | None] = []
    waiting = threading.Thread(target=lambda: codes.append(process.wait(60)))
    waiting.start()
    assert process.poll() is None
    process.kill()
    wait_until(lambda: process.poll() is not None)
    waiting.join()
    assert codes == [process.returncode] == [-signal.SIGKILL]
    server.close()


def start(server: WarmServer) -> ForkedProcess:
    """Start a command that goes on until it is ended."""
    with open(os.devnull, "r+b") as nothing:
        file = nothing.fileno()
        words = ["up", "--memory", *(f"--{name}-port=0" for name in ("grpc", "admin", "metrics", "http"))]
        return server.start(words, environment=client_environment(), stdin=file, stdout=file, stderr=file)
