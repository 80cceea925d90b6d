"""What no object holds is a hole only where retention took it; anything else is a loss, and said to whoever reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube_broker.tier.cold_cache import ColdCache
from pydanube_broker.tier.cold_reads import ColdReads
from pydanube_core.errors import ObjectMissing


class Catalog:
    """Objects of [100, 200) and [300, 400): what lies between them is in none."""

    def __init__(self, start_offset: int) -> None:
        self._start = start_offset

    async def find(self, topic_id: int, offset: int) -> Any:
        for start, end in ((100, 200), (300, 400)):
            if offset < end:
                return SimpleNamespace(start=start, end=end, name="x")
        return None

    async def head(self, topic_id: int) -> Any:
        return SimpleNamespace(head=SimpleNamespace(start_offset=self._start))


def load(offset: int, *, topic_starts: int, catalog_starts: int) -> tuple[int, int]:
    """The hole that is noted for what begins at `offset`."""
    cache = ColdCache(1 << 20)
    reads = ColdReads.__new__(ColdReads)
    reads.cache = cache
    reads._missing = None
    reads._catalog = Catalog(catalog_starts)  # type: ignore[assignment]
    reads._entries = {}  # type: ignore[assignment]
    reads._entry = lambda topic_id, offset: reads._catalog.find(topic_id, offset)  # type: ignore[method-assign]
    topic: Any = SimpleNamespace(
        topic_id=7, name="/default/t", start_offset=topic_starts, state=SimpleNamespace(tiered_offset=400)
    )
    anyio.run(reads._load, topic, offset)
    found = cache.find(7, offset)
    assert found is not None
    assert found.batches == []
    return found.start, found.end


def test_a_gap_that_retention_did_not_make_is_an_error_that_names_it() -> None:
    for offset in (200, 250):
        with pytest.raises(ObjectMissing) as caught:
            load(offset, topic_starts=100, catalog_starts=100)
        assert (caught.value.details["offset"], caught.value.details["end"]) == (offset, 300)


def test_what_retention_took_is_a_hole() -> None:
    assert load(50, topic_starts=100, catalog_starts=100) == (50, 100)
    assert load(200, topic_starts=100, catalog_starts=300) == (200, 300)
    assert load(200, topic_starts=300, catalog_starts=100) == (200, 300)
