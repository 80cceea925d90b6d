from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_subscription, add_topic, attached, emptied
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
async def shared(anyio_backend: str) -> AsyncIterator[Administered]:
    """One broker in memory for all tests that want one with something in it."""
    async with administered() as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared: Administered) -> AsyncIterator[Administered]:
    """A topic that is being read too slowly, and one in two partitions."""
    await emptied(shared)
    await add_topic(shared, "/default/orders", messages=500)
    await add_subscription(shared, "/default/orders", "billing", next_unacked=460)
    await add_topic(shared, "/shop/clicks", partitions=2, messages=10)
    async with attached(shared, "/default/orders", "billing", credit=7):
        yield shared


@pytest.fixture
def admin_url(cluster: Administered) -> str:
    return cluster.url
