"""What no object holds is a hole only where retention took it; anything else is a loss, and said to whoever reads."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube_broker.tier.cold_reads import ColdReads
from pydanube_broker.tier.messages import pack_batches
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


class MergedCatalog:
    """Two objects until `merge`, then one."""

    def __init__(self) -> None:
        self._bounds = {"first": (100, 200), "second": (200, 300)}

    def merge(self) -> None:
        self._bounds = {"merged": (100, 300)}

    async def find(self, topic_id: int, offset: int) -> Any:
        for name, (start, end) in self._bounds.items():
            if start <= offset < end:
                return SimpleNamespace(
                    start=start, end=end, name=name, bytes=1, footer_bytes=1, footer_crc=0, epoch=1
                )
        return None


def test_a_reader_of_an_object_that_was_merged_meanwhile_goes_on_in_the_merged_one() -> None:
    catalog, keys = MergedCatalog(), list[str]()

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        keys.append(arguments["key"])
        if arguments["key"] == "f/second":
            catalog.merge()
            raise ObjectMissing("f/second is gone")
        offset = arguments["offset"]
        return {"end": offset + 50}, memoryview(pack_batches([(offset, offset + 50, 50, 1, b"x")]))

    begun: list[Coroutine[Any, Any, None]] = []
    said: list[Any] = []
    bad: list[int] = []
    journal: Any = SimpleNamespace(holds=lambda topic_id, offset: False)
    child: Any = SimpleNamespace(call=call)
    of_catalog: Any = catalog
    reads = ColdReads(journal, of_catalog, child, {7: "f"}, begun.append)
    reads.on_bad = lambda topic_id, offset: bad.append(offset)
    topic: Any = SimpleNamespace(
        topic_id=7, name="/default/t", start_offset=100, state=SimpleNamespace(tiered_offset=300)
    )
    threads: Any = None
    for offset in (100, 200):
        reads.fill(topic, offset, offset + 1, 1, threads, said.append)
        anyio.run(begun.pop)
    assert said == [(), ()]
    assert keys == ["f/first", "f/second", "f/merged"]
    assert bad == [], "no object is missing"
    found = reads.cache.find(7, 200)
    assert found is not None
    assert (found.start, found.end) == (200, 250)
