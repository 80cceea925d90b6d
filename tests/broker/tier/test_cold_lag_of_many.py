"""How far ten thousand cursors are behind is asked again and again: the catalog is not, while their topics stand still."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tier import cold_lag
from pydanube_broker.tier.cold_lag import KEPT_S, ColdLag, ColdPart
from pydanube_broker.topics.topic import now_ms
from pydanube_core.errors import MetadataUnavailable
from pydanube_storage.catalog import CatalogEntry, ObjectCatalog
from pydanube_storage.catalog.catalog import Committed

from tests.core.batches import steady
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
EPOCH = 1


class Counting(ObjectCatalog):
    looked_up = 0

    async def head(self, topic_id: int) -> Committed | None:
        self.looked_up += 1
        return await super().head(topic_id)


async def add_object(catalog: ObjectCatalog, topic_id: int, start: int, *, size: int) -> None:
    entry = CatalogEntry(
        name=f"{start}.parquet", start=start, end=start + 100, messages=100, bytes=size,
        min_append_time_ms=1000 + start, max_append_time_ms=1099 + start, epoch=EPOCH, generation=0, digest="",
        footer_bytes=1, footer_crc=0, committed_at_ms=0,
    )  # fmt: skip
    await catalog.append(topic_id, entry, epoch=EPOCH)


def a_topic(number: int, tiered_offset: int) -> Any:
    state = SimpleNamespace(tiered_offset=tiered_offset)
    return SimpleNamespace(topic_id=number, start_offset=0, state=state)


async def test_cursors_that_stand_still_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryStore() as store:
        catalog = Counting(store, wall_ms=lambda: 0)
        topics = [a_topic(number, 100) for number in range(1, 6)]
        for topic in topics:
            await catalog.claim(topic.topic_id, epoch=EPOCH, folder="f", start_offset=0)
            await add_object(catalog, topic.topic_id, 0, size=500)
        catalog.looked_up = 0
        lag = ColdLag(catalog, SimpleNamespace(), lambda _topic, _entry: {}, {})  # type: ignore[arg-type]
        for _ in range(3):
            for topic in topics:
                assert await lag.part(topic, 0) == ColdPart(offset=0, bytes=500, append_time_ms=1000)
        assert catalog.looked_up == len(topics)

        await add_object(catalog, 1, 100, size=300)
        topics[0].state.tiered_offset = 200
        catalog.looked_up = 0
        assert await lag.part(topics[0], 0) == ColdPart(offset=0, bytes=800, append_time_ms=1000)
        assert catalog.looked_up == 1, "its topic went on"

        monkeypatch.setattr(cold_lag, "KEPT_S", -1.0)
        await lag.part(topics[0], 100)
        await lag.part(topics[0], 100)
        assert catalog.looked_up == 3, "objects are merged without any news of it"


class Away(Counting):
    away = False

    async def head(self, topic_id: int) -> Committed | None:
        found = await super().head(topic_id)
        if self.away:
            raise MetadataUnavailable("etcd does not answer")
        return found


async def test_without_the_metadata_store_the_last_figure_or_an_estimate_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryStore() as store:
        catalog = Away(store, wall_ms=lambda: 0)
        topic = a_topic(1, 100)
        await catalog.claim(1, epoch=EPOCH, folder="f", start_offset=0)
        await add_object(catalog, 1, 0, size=500)
        lag = ColdLag(catalog, SimpleNamespace(), lambda _topic, _entry: {}, {1: 500})  # type: ignore[arg-type]
        monkeypatch.setattr(cold_lag, "KEPT_S", -1.0)
        seen = await lag.part(topic, 0)
        catalog.looked_up, catalog.away = 0, True
        assert await lag.part(topic, 0) == seen, "the last figure"
        assert await lag.part(topic, 40) == ColdPart(offset=40, bytes=300, append_time_ms=None)
        assert await lag.part(topic, 100) is None
        assert catalog.looked_up == 1, "each look-up would wait for etcd"
        catalog.away = False
        monkeypatch.setattr(lag, "_away_until", 0.0)
        assert await lag.part(topic, 0) == seen
        assert catalog.looked_up == 2


class Objects:
    """The child: each object has a message each 10 s from `since_ms` on; a look-up brings all times from its offset on."""

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.asked: list[int] = []

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        assert name == "when"
        offset, entry = arguments["offset"], arguments["entry"]
        self.asked.append(offset)
        places = sorted({*range(offset, entry.end, 20), entry.end - 1})
        return {"points": [[at, self.since_ms + 10_000 * at] for at in places]}, b""


async def test_a_cursor_that_moves_is_looked_up_ahead_and_its_age_is_known_at_each_offset() -> None:
    async with MemoryStore() as store:
        catalog = ObjectCatalog(store, wall_ms=lambda: 0)
        topic = a_topic(1, 300)
        await catalog.claim(1, epoch=EPOCH, folder="f", start_offset=0)
        for start in (0, 100, 200):
            await add_object(catalog, 1, start, size=500)
        since_ms = (
            now_ms() - 30 * 24 * 3_600_000
        )  # 200 s between two points are less than a hundredth of a month
        child = Objects(since_ms)
        lag = ColdLag(catalog, child, lambda _topic, entry: {"entry": entry}, {})  # type: ignore[arg-type]
        await lag.follow(topic, 7, 10)
        assert child.asked == [], "it may stand still"
        await lag.follow(topic, 7, 70)
        assert child.asked == [70, 100], "60 since the look before: twice as many ahead, into the next object"
        assert [lag.known_time_ms(1, offset) for offset in (70, 85, 99, 100, 133)] == [
            since_ms + 10_000 * offset for offset in (70, 85, 99, 100, 133)
        ]
        assert lag.known_time_ms(1, 69) is None
        assert lag.known_time_ms(1, 200) is None
        await lag.follow(topic, 7, 75)
        assert child.asked == [70, 100], "it is known"

        young = Objects(now_ms() - 3_000_000)  # 200 s are too much to guess within
        near = ColdLag(catalog, young, lambda _topic, entry: {"entry": entry}, {})  # type: ignore[arg-type]
        await near.follow(topic, 7, 0)
        await near.follow(topic, 7, 1)
        assert near.known_time_ms(1, 1) == young.since_ms + 10_000
        assert near.known_time_ms(1, 11) is None


async def test_a_figure_is_kept_for_thirty_seconds_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    async with MemoryStore() as store:
        catalog, topic = Counting(store, wall_ms=lambda: 0), a_topic(1, 100)
        await catalog.claim(1, epoch=EPOCH, folder="f", start_offset=0)
        await add_object(catalog, 1, 0, size=500)
        lag = ColdLag(catalog, SimpleNamespace(), lambda _topic, _entry: {}, {})  # type: ignore[arg-type]
        await lag.part(topic, 0)
        before = catalog.looked_up
        for later_s, looked_up in ((KEPT_S, 0), (0.1, 1), (KEPT_S, 1), (0.1, 2)):
            now_s += later_s
            await lag.part(topic, 0)
            assert catalog.looked_up - before == looked_up


async def test_many_cursors_in_one_object_leave_what_is_known_of_another() -> None:
    async with MemoryStore() as store:
        catalog, topic = ObjectCatalog(store, wall_ms=lambda: 0), a_topic(1, 200)
        await catalog.claim(1, epoch=EPOCH, folder="f", start_offset=0)
        for start in (0, 100):
            await add_object(catalog, 1, start, size=500)
        child = Objects(now_ms() - 30 * 24 * 3_600_000)
        lag = ColdLag(catalog, child, lambda _topic, entry: {"entry": entry}, {})  # type: ignore[arg-type]
        await lag.part(topic, 150)
        for offset in range(90, 50, -1):
            await lag.part(topic, offset)
        assert lag.known_time_ms(1, 170) == child.since_ms + 1_700_000


@steady
@given(
    moves=st.lists(st.integers(0, 320), min_size=1, max_size=25),
    young=st.booleans(),
)
def test_the_age_of_any_offset_is_right_or_unknown_however_cursors_move(
    moves: list[int], young: bool
) -> None:
    async def main() -> None:
        async with MemoryStore() as store:
            catalog = ObjectCatalog(store, wall_ms=lambda: 0)
            topic = a_topic(1, 300)
            await catalog.claim(1, epoch=EPOCH, folder="f", start_offset=0)
            for start in (0, 100, 200):
                await add_object(catalog, 1, start, size=500)
            child = Objects(now_ms() - (3_000_000 if young else 30 * 24 * 3_600_000))
            lag = ColdLag(catalog, child, lambda _topic, entry: {"entry": entry}, {})  # type: ignore[arg-type]
            for offset in moves:
                await lag.follow(topic, 7, offset)
            for offset in range(300):
                assert lag.known_time_ms(1, offset) in (None, child.since_ms + 10_000 * offset)

    anyio.run(main)
