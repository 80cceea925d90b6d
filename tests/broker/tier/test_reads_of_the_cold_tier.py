"""Readers of the cold tier get every message once and in order, and load each part of an object once."""

from __future__ import annotations

from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.journal import CachedBatch
from pydanube_broker.tier.cold_reads import ColdReads
from pydanube_broker.tier.messages import pack_batches, unpack_batches
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.errors import CorruptObject
from pydanube_storage.objects import LocalStore

from tests.core.batches import steady

END = 120  # of the tier: the journal has the rest


@dataclass
class Objects:
    """Objects of 40 messages as catalog and child. A call returns two batches of `batch` messages, with their odd offsets."""

    batch: int = 5
    damaged: set[int] = field(default_factory=set)
    merged: bool = False
    asked: list[tuple[str, int]] = field(default_factory=list)

    def bounds(self, offset: int) -> tuple[int, int]:
        return (0, 80) if self.merged and offset < 80 else (offset // 40 * 40, offset // 40 * 40 + 40)

    async def find(self, topic_id: int, offset: int) -> Any:
        start, end = self.bounds(offset)
        name = f"{start}-{end}"
        return SimpleNamespace(
            start=start, end=end, name=name, bytes=1, footer_bytes=1, footer_crc=0, epoch=1
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        assert name == "read"
        offset, key = arguments["offset"], arguments["key"]
        self.asked.append((key, offset))
        if offset in self.damaged:
            raise CorruptObject(f"{key} is damaged", cause="test")
        end = min(offset + 2 * self.batch, int(key.rpartition("-")[2]))
        cuts = [*range(offset, end, self.batch), end]
        batches = [(s, e, e - s, 1, b"x" * (e - s)) for s, e in pairwise(cuts)]
        return {"end": end}, memoryview(pack_batches(batches))


class Journal:
    """Has the messages from `END` on, one batch each."""

    cache = SimpleNamespace(read=lambda *_: None)

    def holds(self, topic_id: int, offset: int) -> bool:
        return offset >= END

    def read(self, topic_id: int, offset: int, end: int, max_bytes: int) -> list[CachedBatch]:
        return [CachedBatch(at, at + 1, 1, 1, 1, (b"x",)) for at in range(offset, end)]


async def _outcome(work: Coroutine[Any, Any, None]) -> None:
    await work


class Bench:
    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.begun: list[Coroutine[Any, Any, None]] = []
        journal: Any = Journal()
        of_catalog: Any = objects
        self.reads = ColdReads(journal, of_catalog, of_catalog, {7: "f"}, self.begun.append)
        self.topic: Any = SimpleNamespace(
            topic_id=7, name="/default/t", start_offset=0, state=SimpleNamespace(tiered_offset=END)
        )
        self.said: list[Any] = []

    def loaded(self) -> None:
        """Carry out what was begun."""
        while self.begun:
            anyio.run(_outcome, self.begun.pop(0))

    def fill(self, offset: int, end: int) -> None:
        threads: Any = None  # the journal is not read by threads here
        self.reads.fill(self.topic, offset, end, 1, threads, self.said.append)

    def next(self, offset: int, end: int, max_bytes: int) -> Sequence[CachedBatch]:
        while (found := self.reads.read(self.topic, offset, end, max_bytes)) is None:
            self.fill(offset, end)
            self.loaded()
            assert self.said[-1] == (), self.said
        return found


@steady
@given(
    batch=st.integers(1, 25),
    bounds=st.tuples(st.integers(0, END + 10), st.integers(0, END + 10)).map(sorted),
    limit=st.integers(1, 60),
)
def test_a_reader_gets_every_message_of_its_range_once_and_loads_nothing_twice(
    batch: int, bounds: list[int], limit: int
) -> None:
    start, end = bounds
    bench = Bench(Objects(batch=batch))
    at, seen = start, list[int]()
    while at < end:
        found = bench.next(at, end, limit)
        assert found, "it gets on"
        cold = [each for each in found if each.base < END]
        assert len(cold) <= 1 or sum(each.stored_bytes for each in cold) <= limit
        for each in found:
            assert each.base < end
            seen += range(max(at, each.base), each.end)
            at = each.end
    assert [offset for offset in seen if offset < end] == list(range(start, end))
    bench.loaded()  # read ahead
    places = [offset for _, offset in bench.objects.asked]
    assert len(places) == len(set(places))
    assert all(offset < END for offset in places), "the journal has the rest"


def test_two_readers_who_miss_the_same_part_wait_for_one_load() -> None:
    bench = Bench(Objects())
    bench.fill(0, 5)
    bench.fill(0, 5)
    assert len(bench.begun) == 1
    bench.loaded()
    assert bench.said == [(), ()]
    assert [offset for _, offset in bench.objects.asked] == [0]


def test_what_could_not_be_read_ahead_is_not_tried_again_until_a_reader_needs_it() -> None:
    bench = Bench(Objects(damaged={10}))
    for _ in range(3):
        bench.next(0, 10, 100)
        bench.loaded()
    assert [offset for _, offset in bench.objects.asked] == [0, 10]
    assert bench.reads.errors == 1
    bench.objects.damaged.clear()
    assert [each.base for each in bench.next(10, 20, 100)] == [10, 15]
    assert [offset for _, offset in bench.objects.asked] == [0, 10, 10]
    bench.loaded()


def test_what_is_loaded_or_under_way_is_not_read_ahead_again() -> None:
    bench = Bench(Objects())
    bench.next(0, 10, 100)
    bench.next(0, 10, 100)
    assert len(bench.begun) == 1, "the next part is under way"
    bench.loaded()
    bench.next(0, 10, 100)
    assert bench.begun == [], "the next part is there"


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_after_a_merge_is_noted_the_merged_object_is_read(is_forgotten: bool) -> None:
    bench = Bench(Objects())
    bench.next(0, 10, 100)
    bench.loaded()
    bench.objects.merged = True
    if is_forgotten:
        bench.reads.forget(7)
    bench.objects.asked.clear()
    bench.next(20, 30, 100)
    assert bench.objects.asked == [("f/0-80" if is_forgotten else "f/0-40", 20)]
    bench.loaded()


@pytest.mark.parametrize("limit", [1, 5_000, 9_000, 1 << 20])
def test_a_page_of_an_object_has_one_batch_and_then_as_many_as_fit(tmp_path: Path, limit: int) -> None:
    pytest.importorskip("pyarrow")
    from pydanube_broker.tier.work import TierWork

    data, places = b"", array("Q")
    for base in range(0, 160, 10):
        batch = broker_part(
            base_offset=base, last_offset=base + 9, epoch=1, append_time_ms=1_767_225_600_000 + base
        )
        batch += encode_batch([bytes([base]) * (1 + base)] * 10)
        places.append(len(data) << 32 | len(batch))
        data += batch
    segment = tmp_path / "segment"
    segment.write_bytes(data)
    work = TierWork(LocalStore(tmp_path / "objects"))
    key = f"f/{0:020}-{160:020}-1-0-0a.parquet"
    meta = {"cluster": "c", "topic": "/default/t", "topic_id": 7, "start": 0, "end": 160}
    facts, _ = work.flush({"key": key, "meta": meta, "segments": [[str(segment), 16]]}, places.tobytes())
    place = {
        "key": key,
        "epoch": 1,
        **{name: facts[name] for name in ("bytes", "footer_bytes", "footer_crc")},
    }

    def page(offset: int, max_bytes: int) -> tuple[int, list[tuple[int, int]]]:
        said, blob = work.read(place | {"offset": offset, "max_bytes": max_bytes}, b"")
        assert said["start"] == offset
        return said["end"], [(each.base, each.stored_bytes) for each in unpack_batches(memoryview(blob))]

    _, whole = page(0, 1 << 30)
    assert [base for base, _ in whole] == list(range(0, 160, 10))
    sizes = dict(whole)
    at = 0
    while at < 160:
        end, found = page(at, limit)
        assert [base for base, _ in found] == list(range(at, end, 10))
        taken = sum(size for _, size in found)
        assert len(found) == 1 or taken <= limit
        assert end == 160 or taken + sizes[end] > limit, "the next one fits, too"
        assert page(at + 3, limit) == (end, found), "a batch counts as a whole"
        at = end
    assert page(160, limit) == (160, [])
