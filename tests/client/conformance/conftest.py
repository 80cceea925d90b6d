"""The seam: each test of this folder runs over the in-memory cluster and over a real broker in its own process."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pydanube_client
import pytest
from pydanube_client import Client, Retry
from pydanube_client.testing import InMemoryCluster

_numbers = itertools.count(1)


class Connect(Protocol):
    def __call__(self, *, retry: Retry | None = None) -> Client: ...


@dataclass(frozen=True)
class Cluster:
    """What a conformance test gets. `topic()` gives a name that nobody has used."""

    connect: Connect

    def topic(self) -> str:
        return f"/default/conformance-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker")
    ready = folder / "ready.json"
    command = [
        sys.executable, "-m", "pydanube_cli.main", "up", "--data-dir", str(folder / "data"), "--ready-file", str(ready),
        "--grpc-port", "0", "--admin-port", "0", "--metrics-port", "0", "--http-port", "0",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(600):
                if ready.exists() or process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                pytest.fail(f"the broker is not ready after 30 s:\n{_log(folder)}")
            if process.poll() is not None:
                pytest.fail(f"the broker did not start:\n{_log(folder)}")
            yield json.loads(ready.read_text())["grpc"]
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _log(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-4000:]


@pytest.fixture(params=["memory", "broker"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "memory":
        return Cluster(InMemoryCluster().connect)
    url: str = request.getfixturevalue("broker_url")

    def connect(*, retry: Retry | None = None) -> Client:
        return pydanube_client.connect(url, retry=retry)

    return Cluster(connect)
