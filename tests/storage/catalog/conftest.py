"""The catalog over each embedded metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import EmbeddedStore, MetadataStore

from tests.support.memory_store import MemoryStore


@pytest.fixture(params=["memory", "embedded"])
async def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    if request.param == "memory":
        async with MemoryStore() as store:
            yield store
    else:
        async with EmbeddedStore(tmp_path / "metadata.sqlite") as store:
            yield store


@pytest.fixture
def catalog(metadata: MetadataStore) -> ObjectCatalog:
    return ObjectCatalog(metadata, wall_ms=lambda: 1_000)
