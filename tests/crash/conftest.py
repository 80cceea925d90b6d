"""Crash tests: real brokers, real signals. Waits are for events; deadlines are generous, the machine may be slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import broker_processes_fixture
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture
from tests.support.small_disk import small_disk as mounted

make_broker = broker_processes_fixture()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "64m") as disk:
        yield disk
