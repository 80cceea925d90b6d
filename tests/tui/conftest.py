from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_subscription, add_topic, emptied
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
async def shared(anyio_backend: str) -> AsyncIterator[Administered]:
    """One broker in memory for all tests that want one with something in it."""
    async with administered(**{"telemetry.enabled": False, "tier.flush_age": "24h"}) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared: Administered) -> Administered:
    """A topic with a subscription that is behind, one in three partitions, and one with a name like markup."""
    await emptied(shared)
    await add_topic(shared, "/default/orders", messages=50)
    await add_subscription(shared, "/default/orders", "billing", next_unacked=10)
    await add_topic(shared, "/shop/clicks", partitions=3, messages=4)
    await add_subscription(shared, "/shop/clicks", "stats")
    return shared
