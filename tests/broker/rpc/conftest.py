"""One loop for all tests here, uvloop's, as brokers have it; those of tests/broker/official run on asyncio's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: Any) -> AsyncIterator[None]:
    """grpcio has one poller, and hands late events of a closed loop to the next one's test."""
    yield  # noqa: PT022  # as a generator it keeps the loop until the session ends
