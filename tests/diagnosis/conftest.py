"""Faults from outside against real brokers, and what their diagnosis says."""

from __future__ import annotations

from tests.support.broker_process import broker_process_fixture, broker_processes_fixture
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture

#: one broker for a whole module; its tests use topics of their own
broker = broker_process_fixture(scope="module", environment={"DANUBE_DIAGNOSIS__STUCK_AFTER": "1s"})
make_broker = broker_processes_fixture()
