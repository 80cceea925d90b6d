"""Entries and heads: found by offset and time, changed by one owner only, within what etcd would take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydanube_core.errors import Conflict, StoreUnavailable
from pydanube_storage.catalog import CatalogEntry, CatalogFenced, ObjectCatalog
from pydanube_storage.catalog.catalog import MAX_CHANGED, entry_key, head_key
from pydanube_storage.catalog.records import Retired
from pydanube_storage.metadata import MetadataStore, Put

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
TOPIC = 7


def entry(start: int, end: int, *, name: str = "", generation: int = 0) -> CatalogEntry:
    return CatalogEntry(
        name=name or f"{start}-{end}-{generation}",
        start=start,
        end=end,
        messages=end - start,
        bytes=100,
        min_append_time_ms=start * 10,
        max_append_time_ms=end * 10 - 1,
        epoch=1,
        generation=generation,
        digest="00",
        footer_bytes=10,
        footer_crc=1,
        committed_at_ms=5,
    )


async def filled(catalog: ObjectCatalog, *ends: int) -> list[CatalogEntry]:
    await catalog.claim(TOPIC, epoch=1, folder="c/topics/default/t/7", start_offset=0)
    made, start = [], 0
    for end in ends:
        made.append(entry(start, end))
        await catalog.append(TOPIC, made[-1], epoch=1)
        start = end
    return made


async def names(catalog: ObjectCatalog) -> list[str]:
    return [each.name async for each in catalog.entries(TOPIC)]


async def test_the_object_that_holds_an_offset_is_found(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(20):
        made = await filled(catalog, 10, 20, 35)
        assert [await catalog.find(TOPIC, x) for x in (0, 9, 10, 34, 35)] == [
            made[0], made[0], made[1], made[2], None,
        ]  # fmt: skip
        assert [e async for e in catalog.entries(TOPIC, start=10, end=20)] == [made[1]]
        assert [e async for e in catalog.entries(TOPIC, start=9, end=21)] == made
        assert await catalog.find(TOPIC + 1, 0) is None


async def test_the_object_of_a_time_is_found(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(20):
        made = await filled(catalog, 10, 20, 35)
        assert [await catalog.find_time(TOPIC, t) for t in (0, 99, 100, 150, 349, 350)] == [
            made[0], made[0], made[1], made[1], made[2], None,
        ]  # fmt: skip


async def test_an_object_follows_the_last_or_is_refused(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(20):
        await filled(catalog, 10)
        for start, end in ((9, 20), (11, 20), (0, 20)):
            with pytest.raises(Conflict):
                await catalog.append(TOPIC, entry(start, end), epoch=1)
        held = await catalog.append(TOPIC, entry(10, 20), epoch=1, subscriptions={"s": 4})
        assert (held.head.tiered_offset, held.head.objects, held.head.bytes) == (20, 2, 200)
        assert held.head.subscriptions == {"s": 4}
        again = await catalog.append(TOPIC, entry(10, 20), epoch=1)  # its answer was lost
        assert again.head.objects == 2


async def test_a_former_owner_changes_nothing(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(20):
        made = await filled(catalog, 10, 20)
        await catalog.claim(TOPIC, epoch=2, folder="ignored", start_offset=0)
        held = await catalog.head(TOPIC)
        assert held is not None
        assert (held.head.epoch, held.head.tiered_offset, held.head.folder) == (2, 20, "c/topics/default/t/7")
        merged = entry(0, 20, generation=1)
        for change in (
            catalog.append(TOPIC, entry(20, 30), epoch=1),
            catalog.replace(TOPIC, made, merged, epoch=1),
            catalog.drop(TOPIC, made[:1], start_offset=10, epoch=1),
            catalog.claim(TOPIC, epoch=1, folder="", start_offset=0),
        ):
            with pytest.raises(CatalogFenced):
                await change
        assert await names(catalog) == [each.name for each in made]


async def test_compaction_is_one_change_and_its_sources_retire(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(20):
        made = await filled(catalog, 10, 20, 30, 40)
        merged = entry(10, 30, generation=1)
        held = await catalog.replace(TOPIC, made[1:3], merged, epoch=1)
        assert await names(catalog) == [made[0].name, merged.name, made[3].name]
        assert held.head.objects == 3
        (group,) = await catalog.resting(TOPIC)
        assert group.names == (made[1].name, made[2].name)
        with pytest.raises(Conflict):
            await catalog.replace(TOPIC, made[2:4], entry(20, 40, generation=1), epoch=1)
        await catalog.forget_resting(TOPIC, group, [made[1].name], epoch=1)
        (group,) = await catalog.resting(TOPIC)
        assert group.names == (made[2].name,)
        await catalog.forget_resting(TOPIC, group, group.names, epoch=1)
        assert await catalog.resting(TOPIC) == []


async def test_any_number_of_objects_may_rest_and_no_merge_is_refused_for_it(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(60):
        made = await filled(catalog, *range(10, 10 * 600 + 10, 10))
        for first in range(0, 600, 50):
            run = made[first : first + 50]
            held = await catalog.replace(TOPIC, run, entry(run[0].start, run[-1].end, generation=1), epoch=1)
        assert held.head.objects == 12
        assert sum(len(group.names) for group in await catalog.resting(TOPIC)) == 600
        await catalog.forget_topic(TOPIC)
        assert await catalog.resting(TOPIC) == []


async def test_objects_that_rest_in_an_old_head_are_found_and_forgotten(metadata: MetadataStore) -> None:
    with anyio.fail_after(20):
        catalog = ObjectCatalog(metadata, wall_ms=lambda: 5)
        held = await catalog.claim(TOPIC, epoch=1, folder="f", start_offset=0)
        old = replace(held.head, retired=(Retired(name="a", at_ms=1), Retired(name="b", at_ms=2)))
        await metadata.transact([Put(head_key(TOPIC), old.to_json())])
        (group,) = await catalog.resting(TOPIC)
        assert (group.names, group.since.boot) == (("a", "b"), "")
        await catalog.forget_resting(TOPIC, group, ["a"], epoch=1)
        (group,) = await catalog.resting(TOPIC)
        assert group.names == ("b",)


class Slow(MemoryStore):
    """Others come in between a look and the change that was decided on it."""

    async def get(self, key: str) -> Any:
        found = await super().get(key)
        await anyio.lowlevel.checkpoint()
        return found


async def test_an_owner_flushes_merges_and_drops_side_by_side() -> None:
    with anyio.fail_after(60):
        async with Slow() as store:
            catalog = ObjectCatalog(store, wall_ms=lambda: 5)
            made = await filled(catalog, *range(10, 410, 10))

            async def flush() -> None:
                for start in range(400, 600, 10):
                    await catalog.append(TOPIC, entry(start, start + 10), epoch=1)

            async def merge() -> None:
                for first in range(20, 40, 4):
                    run = made[first : first + 4]
                    await catalog.replace(TOPIC, run, entry(run[0].start, run[-1].end, generation=1), epoch=1)

            async def drop() -> None:
                for gone in made[:10]:
                    await catalog.drop(TOPIC, [gone], start_offset=gone.end, epoch=1)

            async with anyio.create_task_group() as group:
                for part in (flush, merge, drop):
                    group.start_soon(part)
            held = await catalog.head(TOPIC)
            assert held is not None
            listed = [each async for each in catalog.entries(TOPIC)]
            assert [(a.end, a.start) for a in listed[:-1]] == [
                (b.start, a.start) for a, b in pairwise(listed)
            ]
            assert (held.head.start_offset, held.head.tiered_offset) == (100, 600)
            assert held.head.objects == len(listed) == 10 + 5 + 20


async def test_retention_moves_the_start(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(20):
        made = await filled(catalog, 10, 20, 30)
        held = await catalog.drop(TOPIC, made[:2], start_offset=20, epoch=1)
        assert (held.head.start_offset, held.head.objects) == (20, 1)
        assert await names(catalog) == [made[2].name]


async def test_the_largest_change_fits_a_transaction(catalog: ObjectCatalog) -> None:
    with anyio.fail_after(60):
        made = await filled(catalog, *range(10, 10 * MAX_CHANGED + 10, 10))
        many = [{"producer": i, "name": "x" * 200} for i in range(2_000)]
        tables: dict[str, Any] = {f"subscription-{i}": i for i in range(5_000)}
        last = made[-1].end
        held = await catalog.append(
            TOPIC, entry(last, last + 10), epoch=1, producers=many, subscriptions=tables, schemas=tables
        )
        assert held.head.producers[-1] == many[-1]
        merged = entry(0, last, generation=1)
        await catalog.replace(TOPIC, made, merged, epoch=1)
        assert (await catalog.find(TOPIC, 5)) == merged


class LostAnswers(MemoryStore):
    """Does what it is told and does not say so."""

    lose = False

    async def transact(self, writes: Sequence[Any], *, guards: Sequence[Any] = ()) -> Any:
        revision = await super().transact(writes, guards=guards)
        if self.lose:
            self.lose = False
            raise StoreUnavailable("no answer", outcome="unknown")
        return revision


async def test_a_change_whose_answer_was_lost_is_settled() -> None:
    with anyio.fail_after(20):
        async with LostAnswers() as store:
            catalog = ObjectCatalog(store, wall_ms=lambda: 1)
            await filled(catalog, 10)
            store.lose = True
            held = await catalog.append(TOPIC, entry(10, 20), epoch=1)
            assert held.head.tiered_offset == 20
            assert held == await catalog.head(TOPIC)


async def test_a_reader_finds_its_object_among_100_000_at_once(metadata: MetadataStore) -> None:
    with anyio.fail_after(100):
        catalog = ObjectCatalog(metadata, wall_ms=lambda: 1)
        await catalog.claim(TOPIC, epoch=1, folder="f", start_offset=0)
        step = 98
        for first in range(0, 100_000, step):
            writes = [
                Put(entry_key(TOPIC, 10 * i + 10), entry(10 * i, 10 * i + 10).to_json())
                for i in range(first, min(first + step, 100_000))
            ]
            await metadata.transact(writes)
        times = []
        for offset in (0, 345_678, 999_999, 500_000, 1):
            began = time.perf_counter()
            found = await catalog.find(TOPIC, offset)
            times.append(time.perf_counter() - began)
            assert found is not None
            assert found.start <= offset < found.end
        assert min(times) < 0.05, times
