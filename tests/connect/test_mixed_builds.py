"""Connectors in a cluster whose brokers are replaced: those of c6007d03 know neither connectors nor their workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connect.targets import HttpTarget
from tests.connect.test_workers import arrived, definition, items, publish, start
from tests.e2e.test_upgrade_of_metadata import Cluster, cluster, old_build
from tests.support.waiting import wait_until

__all__ = ["cluster", "old_build"]
pytestmark = pytest.mark.timeout(580)


@pytest.fixture
def workers() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_connector_runs_while_brokers_of_an_older_build_are_replaced(
    cluster: Cluster, workers: contextlib.ExitStack, tmp_path: Path
) -> None:
    """An older broker refuses what it does not know, and leaves the records of it as they are."""
    cluster.replace(1)
    new, old = cluster.brokers[1], cluster.brokers[2]
    with HttpTarget() as target:
        publish(old, "/default/orders", range(20))
        new.ask("connectors.create", connector="hook", definition=definition(target, "/default/orders"))
        start(workers, new, tmp_path, "w1")
        wait_until(lambda: arrived(target, range(20)), 120)
        refused = old.rpc("connectors.list", limit=10)["error"]
        assert "connectors.list" in str(refused)
        for n in (2, 3):
            cluster.replace(n)
            publish(cluster.brokers[n], "/default/orders", range(n * 20, n * 20 + 20))
            wait_until(lambda n=n: arrived(target, range(n * 20, n * 20 + 20)), 120)
        for broker in cluster.brokers.values():
            assert items(broker)["hook"]["state"] == "running"
        assert not [log for log in (b.log() for b in cluster.brokers.values()) if "Traceback" in log]
