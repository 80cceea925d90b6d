from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydanube_admin.core import AdminCore
from pydanube_admin.remote import OpsClient

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_subscription, add_topic, attached, emptied, parts_of, producing
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
async def shared(anyio_backend: str) -> AsyncIterator[Administered]:
    """One broker in memory for all tests that want one with something in it."""
    async with administered() as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared: Administered) -> AsyncIterator[Administered]:
    """Two topics, one of them in three partitions, with a subscription that is behind and one that is not."""
    await emptied(shared)
    await add_topic(shared, "/default/orders", messages=500, trimmed=100)
    await add_subscription(shared, "/default/orders", "billing", next_unacked=460)
    await add_subscription(shared, "/default/orders", "audit", next_unacked=500)
    await add_topic(shared, "/shop/clicks", partitions=3, messages=10)
    await add_subscription(shared, "/shop/clicks", "stats")
    _, *later = await parts_of(shared, "/shop/clicks")
    for index, part in enumerate(later, 1):
        await shared.broker.port.skip_messages(part, "stats", index)
    async with (
        attached(shared, "/default/orders", "billing", credit=12, acks=[(467, 472)]),
        attached(shared, "/shop/clicks", "stats"),
        producing(shared, "/shop/clicks"),
    ):
        yield shared


@pytest.fixture
def core(cluster: Administered) -> AdminCore:
    return cluster.core


@pytest.fixture
def admin_url(cluster: Administered) -> str:
    return cluster.url


@pytest.fixture
async def ops(admin_url: str) -> AsyncIterator[OpsClient]:
    async with OpsClient(admin_url, principal="tester@here", face="cli") as client:
        yield client
