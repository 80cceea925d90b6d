from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydanube_admin import AdminCore, OpsClient
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
    """Two topics, one of them in three partitions, with a subscription that is behind and one that is not."""
    cluster = MemoryCluster()
    cluster.add_topic("/default/orders", start_offset=100, next_offset=500, bytes=4000)
    cluster.add_subscription(
        "/default/orders",
        "billing",
        next_unacked=460,
        acked_above=5,
        in_flight=7,
        consumers=1,
        lag_bytes=350,
        oldest_unread_append_ms=NOW_MS - 90_500,
    )
    cluster.add_subscription("/default/orders", "audit", next_unacked=500)
    cluster.add_topic("/shop/clicks", partitions=3, next_offset=10, bytes=100, producers=1)
    for index in range(3):
        cluster.add_subscription(f"/shop/clicks-part-{index}", "stats", next_unacked=index, consumers=1)
    return cluster


@pytest.fixture
def core(cluster: MemoryCluster) -> AdminCore:
    return AdminCore(cluster, now_ms=lambda: NOW_MS)


@pytest.fixture
async def admin_url(core: AdminCore) -> AsyncIterator[str]:
    async with serve_ops(core.serve_call) as url:
        yield url


@pytest.fixture
async def ops(admin_url: str) -> AsyncIterator[OpsClient]:
    async with OpsClient(admin_url, principal="tester@here", face="cli") as client:
        yield client
