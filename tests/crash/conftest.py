"""Crash tests: real brokers, real signals. Waits are for events; deadlines are generous, the machine may be slow."""

from __future__ import annotations

import pytest

from tests.support.broker_process import broker_processes_fixture

make_broker = broker_processes_fixture()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
