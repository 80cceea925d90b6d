"""Faults from outside against real brokers, and what their diagnosis says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.broker_process import broker_process_fixture, broker_processes_fixture

#: one broker for a whole module; its tests use topics of their own
broker = broker_process_fixture(scope="module", environment={"DANUBE_DIAGNOSIS__STUCK_AFTER": "1s"})
make_broker = broker_processes_fixture()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share a loop: grpcio has one poller, and hands late events of a closed loop to the next one's test."""
    yield  # noqa: PT022  # as a generator it keeps the loop until the session ends
