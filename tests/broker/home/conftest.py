from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.delivery.conftest import broker, client, opened
from tests.support.etcd import EtcdMembers
from tests.support.one_loop import one_loop
from tests.support.several_brokers import SeveralBrokers, no_brokers

__all__ = ["broker", "client", "one_loop", "opened"]


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    """A cluster without brokers, which a test starts."""
    async with no_brokers(etcd, tmp_path) as cluster:
        yield cluster
