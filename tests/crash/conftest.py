"""Crash tests: real brokers, real signals. Waits are for events; deadlines are generous, the machine may be slow."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import broker_processes_fixture

make_broker = broker_processes_fixture()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share a loop: grpcio has one poller, and hands late events of a closed loop to the next one's test."""
    yield  # noqa: PT022  # as a generator it keeps the loop until the session ends


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"NOT RUN: this machine refuses to mount a tmpfs: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
