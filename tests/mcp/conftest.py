from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydanube_admin import AdminCore
from pydanube_admin.testing import NOW_MS, MemoryCluster, serve_ops


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share a loop: grpcio has one poller, and hands late events of a closed loop to the next one's test."""
    yield  # noqa: PT022  # as a generator it keeps the loop until the session ends


@pytest.fixture
def cluster() -> MemoryCluster:
    """A topic that is being read too slowly, and one in two partitions."""
    cluster = MemoryCluster()
    cluster.add_topic("/default/orders", next_offset=500, bytes=4000)
    cluster.add_subscription(
        "/default/orders",
        "billing",
        next_unacked=460,
        in_flight=7,
        consumers=1,
        lag_bytes=400,
        oldest_unread_append_ms=NOW_MS - 90_500,
    )
    cluster.add_topic("/shop/clicks", partitions=2, next_offset=10, bytes=100)
    return cluster


@pytest.fixture
async def admin_url(cluster: MemoryCluster) -> AsyncIterator[str]:
    async with serve_ops(AdminCore(cluster, now_ms=lambda: NOW_MS).serve_call) as url:
        yield url
