"""Every test of the SDK runs on asyncio, under a deadline; here is also how a real broker is started."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydanube.testing import InMemoryCluster

from tests.support.broker_process import SMALL_JOURNAL
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture
from tests.support.warm_commands import ForkedProcess, start_danube

START_DEADLINE_S = 110  # a second on a quiet machine; below the limit of a test, whose set-up this may be


@pytest.fixture
def memory() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as cluster:
        yield cluster


@dataclass
class BrokerProcess:
    """A broker in a process of its own."""

    process: subprocess.Popen[bytes] | ForkedProcess
    folder: Path
    url: str = ""
    admin_url: str = ""

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


StartBroker = Callable[[Path, int], BrokerProcess]


@pytest.fixture(scope="session")
def start_broker() -> Iterator[StartBroker]:
    """Start a broker with its data in a folder, on a port (0: any), and wait until it is ready."""
    if importlib.util.find_spec("pydanube_broker") is None:  # pragma: no cover
        pytest.skip("NOT RUN over a real broker: install pydanube[broker]")
    started: list[BrokerProcess] = []

    def start(folder: Path, port: int) -> BrokerProcess:
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        words = [
            "up", "--data-dir", str(folder / "data"), "--ready-file", str(ready), "--grpc-port", str(port),
            "--admin-port", "0", "--metrics-port", "0", "--http-port", "0",
        ]  # fmt: skip
        environment = {**os.environ, **SMALL_JOURNAL}
        with (folder / "log").open("ab") as log:
            broker = BrokerProcess(start_danube(words, environment=environment, output=log), folder)
        started.append(broker)
        deadline = time.monotonic() + START_DEADLINE_S
        while not ready.exists() and broker.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if not ready.exists():
            pytest.fail(f"the broker is not ready:\n{broker.log()}")
        facts = json.loads(ready.read_text())
        broker.url, broker.admin_url = facts["grpc"], facts["admin"]
        return broker

    yield start
    for broker in started:
        broker.process.terminate()
    for broker in started:
        try:
            broker.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            broker.kill()
