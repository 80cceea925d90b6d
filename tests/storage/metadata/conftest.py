"""Every adapter of the metadata store, under one suite: a test that takes `store` runs on each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from pydanube_storage.metadata import EmbeddedStore, ManualClock, MemoryStore, MetadataStore

OpenStore = Callable[..., AbstractAsyncContextManager[MetadataStore]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_000)


@pytest.fixture(params=["memory", "embedded"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> OpenStore:
    """Open the adapter's store; embedded: the same file at each call."""

    def open_memory(*, history_revisions: int = 1000) -> AbstractAsyncContextManager[MetadataStore]:
        return MemoryStore(clock=clock, history_revisions=history_revisions)

    def open_embedded(*, history_revisions: int = 1000) -> AbstractAsyncContextManager[MetadataStore]:
        return EmbeddedStore(tmp_path / "metadata.sqlite", clock=clock, history_revisions=history_revisions)

    return {"memory": open_memory, "embedded": open_embedded}[request.param]


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[MetadataStore]:
    async with open_store() as opened:
        yield opened
