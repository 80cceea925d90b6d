"""The fixture `danube_cluster` of pytest: a broker in memory for one test. Loaded by pytest where pydanube is installed."""

from __future__ import annotations

from collections.abc import Iterator
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
