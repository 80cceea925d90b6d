"""What no object holds is a hole only where retention took it; anything else is a loss, and said to whoever reads."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube_broker.tier.cold_reads import ColdReads
from pydanube_core.errors import ClusterError, ObjectMissing


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
    begun: list[Coroutine[Any, Any, None]] = []
    said: list[Any] = []
    journal: Any = SimpleNamespace(holds=lambda topic_id, offset: False)
    catalog: Any = Catalog(catalog_starts)
    nothing: Any = None  # neither the tier's process nor the loop's turns are needed
    reads = ColdReads(journal, catalog, nothing, {}, begun.append)
    topic: Any = SimpleNamespace(
        topic_id=7, name="/default/t", start_offset=topic_starts, state=SimpleNamespace(tiered_offset=400)
    )
    reads.fill(topic, offset, offset + 1, 1, nothing, said.append)
    (fetching,) = begun
    anyio.run(lambda: fetching)
    (result,) = said
    if isinstance(result, ClusterError):
        raise result
    found = reads.cache.find(7, offset)
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
