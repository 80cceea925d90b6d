"""Crash tests: real brokers, real signals. Waits are for events; deadlines are generous, the machine may be slow."""

from __future__ import annotations

from collections.abc import AsyncIterator

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
