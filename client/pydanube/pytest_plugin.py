"""Fixtures of pytest: a broker in memory for one test, and workers beside it. Loaded by pytest where pydanube is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pydanube.testing import InMemoryCluster


@pytest.fixture
def danube_cluster() -> Iterator[InMemoryCluster]:
    """Return a cluster for this test alone, a `pydanube.testing.InMemoryCluster`."""
    # Here: pytest loads this module also for tests that want no broker
    from pydanube.testing import InMemoryCluster

    with InMemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def danube_running() -> Callable[..., AbstractAsyncContextManager[None]]:
    """Return `pydanube.testing.running`: `async with danube_running(client.run(…))`."""
    from pydanube.testing import running

    return running
