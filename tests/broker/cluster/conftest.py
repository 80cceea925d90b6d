from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydanube_broker.cluster.topic_catalog import TopicCatalog

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_000)


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    async with MemoryStore(clock=clock) as opened:
        yield opened


@pytest.fixture
async def catalog(store: MemoryStore) -> TopicCatalog:
    made = TopicCatalog(store, wall_ms=lambda: 1_700_000_000_000)
    await made.load()
    return made
