"""Every test of the SDK runs on asyncio, under a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from pydanube_client.testing import InMemoryCluster


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
async def deadline(anyio_backend: str) -> AsyncIterator[None]:
    """No test waits longer than this, whatever it waits for."""
    with anyio.fail_after(30):
        yield


@pytest.fixture
def memory() -> InMemoryCluster:
    return InMemoryCluster()
