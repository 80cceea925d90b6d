"""Connectors run against a broker in memory, in a process of its own, and real servers on the other side."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pydanube.testing import InMemoryCluster

from tests.connect.targets import HttpTarget


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No DANUBE_ variable of the environment that the tests run in."""
    for name in list(os.environ):
        if name.startswith("DANUBE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def memory() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def target() -> Iterator[HttpTarget]:
    with HttpTarget() as found:
        yield found
