"""Whose the store is: who may write and delete there, and which objects make up a topic that is older than they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tier.adopting import chain
from pydanube_broker.tier.collecting import Collector, covered
from pydanube_broker.tier.ownership import Known, StoreOwnership, judge
from pydanube_core.errors import Fenced
from pydanube_storage.catalog import CatalogEntry, ObjectCatalog
from pydanube_storage.objects import ObjectName, OwnerMark

from tests.core.batches import steady
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio


def mark(incarnation: int, life: str, place: str = "1") -> OwnerMark:
    return OwnerMark(
        incarnation=incarnation, life=life, place=place, broker_id="7", host="h", data_dir="/d", pid=1, since="",
    )  # fmt: skip


KNOWN = Known(incarnation=5, life="e")


@pytest.mark.parametrize(
    ("the_mark", "known", "more", "verdict"),
    [
        (None, None, {}, StoreOwnership.CLAIM),  # the first start, or the first with marks
        (mark(5, "e"), KNOWN, {}, StoreOwnership.CLAIM),  # the life before
        (mark(5, "e"), KNOWN, {"place": "2"}, StoreOwnership.OTHER),  # a copy
        (
            mark(5, "e"),
            KNOWN,
            {"place": "2", "inside": True},
            StoreOwnership.CLAIM,
        ),  # copied with its objects
        (mark(5, "e"), KNOWN, {"place": "2", "take_over": 5}, StoreOwnership.CLAIM),
        (mark(6, "f"), KNOWN, {}, StoreOwnership.NEWER),  # an older backup
        (mark(6, "f"), KNOWN, {"take_over": 5}, StoreOwnership.NEWER),  # what was true of 5 says nothing of 6
        (mark(6, "f"), KNOWN, {"take_over": 6}, StoreOwnership.ADOPT),
        (mark(6, "f"), KNOWN, {"inside": True}, StoreOwnership.ADOPT),
        (mark(5, "x"), KNOWN, {}, StoreOwnership.NEWER),  # two took the same number
        (
            mark(6, "f"),
            Known(incarnation=5, life="e", next_incarnation=6, next_life="f"),
            {},
            StoreOwnership.CLAIM,
        ),
        (mark(4, "d"), KNOWN, {}, StoreOwnership.CLAIM),  # the store is an older one
        (mark(1, "a"), None, {}, StoreOwnership.NEWER),  # this metadata never knew the store
        (None, KNOWN, {}, StoreOwnership.CLAIM),  # emptied, and nothing was there
        (None, KNOWN, {"objects_listed": True}, StoreOwnership.EMPTY),
        (None, KNOWN, {"objects_listed": True, "take_over": 0}, StoreOwnership.CLAIM),
    ],
)
async def test_the_mark_decides(
    the_mark: OwnerMark | None, known: Known | None, more: dict[str, Any], verdict: StoreOwnership
) -> None:
    facts = {"place": "1", "inside": False, "objects_listed": False, "take_over": None, **more}
    assert judge(the_mark, known, **facts) is verdict


def name(start: int, end: int, generation: int = 0) -> ObjectName:
    return ObjectName(start=start, end=end, epoch=1, generation=generation, random="0a")


def listed(*ends: int) -> list[tuple[int, int, str]]:
    return [(a, b, str(name(a, b))) for a, b in zip((0, *ends), ends, strict=False)]


@pytest.mark.parametrize(
    ("of_the_catalog", "others", "gone", "taken"),
    [
        ((10, 20), [], [], []),
        ((10, 20), [name(20, 30), name(30, 35)], [], [name(20, 30), name(30, 35)]),
        ((10, 20), [name(21, 30)], [], []),  # one between is missing: nothing can follow
        ((10, 20), [name(20, 30), name(20, 40, 1)], [], [name(20, 40, 1)]),
        ((10, 20), [name(0, 20, 1)], [], []),  # a merge that was not committed: its sources are there
        ((10, 20), [name(0, 20, 1)], [0, 1], [name(0, 20, 1)]),  # and one that was: they are gone
        ((10, 20), [name(0, 30, 1), name(30, 40)], [0, 1], [name(0, 30, 1), name(30, 40)]),
        ((10, 20), [name(10, 30, 1)], [], [name(10, 30, 1)]),
        ((), [name(0, 10)], [], [name(0, 10)]),
    ],
)
async def test_what_is_newer_than_the_catalog_is_taken_in(
    of_the_catalog: tuple[int, ...], others: list[ObjectName], gone: list[int], taken: list[ObjectName]
) -> None:
    entries = listed(*of_the_catalog)
    there = {text for i, (_, _, text) in enumerate(entries) if i not in gone} | {str(each) for each in others}
    assert chain(entries, there, entries[-1][1] if entries else 0) == taken


@steady
@given(
    cuts=st.sets(st.integers(1, 60), min_size=1, max_size=12),
    known=st.integers(0, 12),
    merges=st.lists(st.tuples(st.integers(0, 11), st.integers(2, 4)), max_size=4),
)
def test_every_object_of_a_lost_future_is_found_again(
    cuts: set[int], known: int, merges: list[tuple[int, int]]
) -> None:
    """The future flushes all of `cuts` and merges some; the catalog is from when it had `known` objects."""
    ends = sorted(cuts)
    future = [name(a, b) for a, b in zip((0, *ends), ends, strict=False)]
    then = [(each.start, each.end, str(each)) for each in future[:known]]
    for first, count in merges:
        run = future[first : first + count]
        if len(run) >= 2:
            merged = name(run[0].start, run[-1].end, 1 + max(each.generation for each in run))
            future[first : first + count] = [merged]
    there = {str(each) for each in future}
    taken = chain(then, there, then[-1][1] if then else 0)
    now = [(s, e) for s, e, text in then if text in there and not any(t.start <= s < t.end for t in taken)]
    now += [(each.start, each.end) for each in taken]
    assert sorted(now) == [(each.start, each.end) for each in future]


async def test_only_what_is_proven_to_be_of_no_use_is_collected_and_only_when_it_is_old_enough() -> None:
    life, former = "0a0a0a0a", "bbbbbbbb"
    async with MemoryStore() as metadata:
        catalog, clock = ObjectCatalog(metadata, wall_ms=lambda: 0), ManualClock()
        topic: Any = SimpleNamespace(topic_id=7, name="/default/t", assigned_epoch=9)
        await catalog.claim(7, epoch=9, folder="f", start_offset=0)
        for start in (0, 10):
            await catalog.append(
                7,
                CatalogEntry(
                    name=str(name(start, start + 10)), start=start, end=start + 10, messages=10, bytes=1,
                    min_append_time_ms=0, max_append_time_ms=0, epoch=1, generation=0, digest="",
                    footer_bytes=1, footer_crc=0, committed_at_ms=0,
                ),
                epoch=9,
            )  # fmt: skip
        ours = ObjectName(start=20, end=30, epoch=9, generation=0, random=f"{life}0000")
        merge = ObjectName(start=0, end=20, epoch=8, generation=1, random=f"{former}0000")
        newer = ObjectName(start=20, end=40, epoch=8, generation=0, random=f"{former}0001")
        half_newer = ObjectName(start=10, end=40, epoch=8, generation=1, random=f"{former}0002")
        there = [str(each) for each in (name(0, 10), name(10, 20), ours, merge, newer, half_newer)]

        async def call(asked: str, arguments: dict[str, Any]) -> Any:
            assert asked == "list"
            return {"objects": [{"key": f"f/{each}", "bytes": 1, "modified_ms": 0} for each in there]}, b""

        async def claim(topic: Any) -> None: ...

        hold = SimpleNamespace(life=life, continuous=True, check=lambda: None)
        flusher: Any = SimpleNamespace(in_flight={}, merging=set(), claim=claim)
        child: Any = SimpleNamespace(call=call)
        parts: Any = SimpleNamespace(catalog=catalog, child=child, folders={7: "f"}, hold=hold)
        collector = Collector(parts, flusher, clock=clock)

        async def found(grace_ms: int) -> set[str]:
            orphans = await collector.orphans(topic, grace_ms=grace_ms)
            return {fact["key"].removeprefix("f/") for fact in orphans}

        with anyio.fail_after(20):
            assert await found(300_000) == set()
            assert collector.young == {7}
            clock.advance(300_000)
            assert await found(300_000) == {str(ours), str(merge)}
            hold.continuous = False  # the objects are not this directory's past
            assert await found(300_000) == {str(ours)}
            there.remove(str(name(0, 10)))  # then the merge is the only one that has its offsets
            assert await found(0) == {str(ours)}


async def test_objects_under_way_and_those_of_a_later_owner_are_not_collected() -> None:
    """The merge and the flush are of this life, and their offsets are covered: only being under way protects them."""
    life = "0a0a0a0a"
    async with MemoryStore() as metadata:
        catalog, clock = ObjectCatalog(metadata, wall_ms=lambda: 0), ManualClock()
        topic: Any = SimpleNamespace(topic_id=7, name="/default/t", assigned_epoch=9)
        await catalog.claim(7, epoch=9, folder="f", start_offset=0)
        merged, flushed, later, same = (
            ObjectName(start=0, end=20, epoch=epoch, generation=generation, random=f"{life}{generation:04}")
            for epoch, generation in ((9, 1), (9, 2), (10, 3), (9, 4))
        )
        there = [str(each) for each in (merged, flushed, later, same)]

        async def call(asked: str, arguments: dict[str, Any]) -> Any:
            return {"objects": [{"key": f"f/{each}", "bytes": 1, "modified_ms": 0} for each in there]}, b""

        async def claim(topic: Any) -> None: ...

        hold = SimpleNamespace(life=life, continuous=True, check=lambda: None)
        flusher: Any = SimpleNamespace(in_flight={7: f"f/{flushed}"}, merging={f"f/{merged}"}, claim=claim)
        parts: Any = SimpleNamespace(
            catalog=catalog, child=SimpleNamespace(call=call), folders={7: "f"}, hold=hold
        )
        collector = Collector(parts, flusher, clock=clock)

        async def found() -> set[str]:
            return {fact["key"].removeprefix("f/") for fact in await collector.orphans(topic, grace_ms=0)}

        with anyio.fail_after(20):
            assert await found() == {str(same)}
            flusher.merging.clear()
            assert await found() == {str(same), str(merged)}
            flusher.in_flight.clear()
            assert await found() == {str(same), str(merged), str(flushed)}
            topic.assigned_epoch = 10
            assert await found() == {str(each) for each in (same, merged, flushed, later)}


async def test_a_broker_that_another_has_fenced_looks_for_nothing_to_collect() -> None:
    async def claim(topic: Any) -> None:
        raise Fenced("another broker has the topic")

    async def call(asked: str, arguments: dict[str, Any]) -> Any:
        raise AssertionError(f"{asked} was called")

    flusher: Any = SimpleNamespace(in_flight={}, merging=set(), claim=claim)
    parts: Any = SimpleNamespace(child=SimpleNamespace(call=call), folders={7: "f"})
    collector = Collector(parts, flusher, clock=ManualClock())
    topic: Any = SimpleNamespace(topic_id=7, name="/default/t", assigned_epoch=9)
    with pytest.raises(Fenced):
        await collector.orphans(topic, grace_ms=0)


def test_ranges_cover_what_lies_wholly_in_them() -> None:
    inside = covered([(0, 10), (10, 20), (30, 40)])
    assert [inside(*each) for each in ((0, 20), (5, 15), (30, 40), (15, 30), (10, 31), (40, 41), (25, 26))] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip
