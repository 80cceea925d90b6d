"""A fixture for the conftest of a folder whose tests share one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: Any) -> AsyncIterator[None]:
    """Keep one loop for all tests of the session: grpcio has one poller, and hands late events of a closed loop to the next."""
    yield  # noqa: PT022  # as a generator it keeps the loop until the session ends
