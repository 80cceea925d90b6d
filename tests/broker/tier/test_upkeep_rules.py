"""Which objects are merged, which go: pure rules, worked out by hand."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tier.upkeep import expired, neighbours
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.retention import Keep
from pydanube_storage.catalog import CatalogEntry
from pydanube_storage.catalog.catalog import MAX_CHANGED

from tests.core.batches import steady


def entries(*sizes: int) -> list[CatalogEntry]:
    return [
        CatalogEntry(
            name=str(i),
            start=10 * i,
            end=10 * i + 10,
            messages=10,
            bytes=size,
            min_append_time_ms=1000 * i,
            max_append_time_ms=1000 * i + 999,
            epoch=1,
            generation=0,
            digest="",
            footer_bytes=1,
            footer_crc=0,
            committed_at_ms=0,
        )
        for i, size in enumerate(sizes)
    ]


def names(found: list[CatalogEntry]) -> str:
    return "".join(entry.name for entry in found)


def merged(*sizes: int, at_least: int = 2) -> list[str]:
    return [names(run) for run in neighbours(entries(*sizes), object_bytes=100, at_least=at_least)]


def test_small_neighbours_are_merged_and_large_ones_stay() -> None:
    assert merged(10, 10, 10) == ["012"]
    assert merged(10, 60, 10, 10) == ["23"]
    assert merged(40, 40, 40, 40) == ["01", "23"]
    assert merged(60, 60) == []
    assert merged(10) == []
    assert merged() == []
    assert merged(10, 10, 10, at_least=4) == []


@steady
@given(sizes=st.lists(st.integers(1, 120), max_size=250))
def test_a_merge_fits_one_object_and_one_transaction(sizes: list[int]) -> None:
    for run in neighbours(entries(*sizes), object_bytes=100, at_least=2):
        assert 2 <= len(run) <= MAX_CHANGED
        assert sum(entry.bytes for entry in run) <= 100
        assert all(a.end == b.start for a, b in itertools.pairwise(run))


def gone(keep: Keep, *, slowest: int | None = None, now: int = 10_000) -> str:
    return names(expired(entries(10, 10, 10, 10), keep, total_bytes=40, now=now, slowest=slowest))


def test_retention_takes_the_oldest_whole_objects() -> None:
    assert gone(Keep()) == ""
    assert gone(Keep(bytes=40)) == ""
    assert gone(Keep(bytes=25)) == "0"
    assert gone(Keep(age_ms=8000)) == "01"
    assert gone(Keep(age_ms=8000, bytes=5)) == "012"


@steady
@given(sizes=st.lists(st.integers(1, 120), min_size=1, max_size=40), kept=st.integers(1, 2000))
def test_at_least_its_bytes_stay_and_what_can_go_beside_them_goes(sizes: list[int], kept: int) -> None:
    there = entries(*sizes)
    left = there[len(expired(there, Keep(bytes=kept), total_bytes=sum(sizes), now=0, slowest=None)) :]
    stays = sum(entry.bytes for entry in left)
    assert stays >= min(kept, sum(sizes))
    assert stays - left[0].bytes < kept


def test_retention_waits_for_the_slowest_cursor_unless_told_not_to() -> None:
    assert gone(Keep(bytes=1), slowest=25) == "01"
    assert gone(Keep(bytes=1), slowest=0) == ""
    assert gone(Keep(bytes=1, drop_unread=True), slowest=0) == "012"


def test_the_topic_decides_before_its_namespace_and_can_be_freed_from_it() -> None:
    namespace = {"retention_bytes": 9, "retention_age_s": 2}
    assert Keep.of(Limits.of({"retention_bytes": 5}, namespace)) == Keep(bytes=5, age_ms=2000)
    assert Keep.of(Limits.of({"retention_bytes": 0}, namespace)) == Keep(age_ms=2000)
    assert Keep.of(Limits.of({}, {"max_message_size": 3})).everything
    assert Keep.of(Limits.of({"retention_offset": 7, "drop_unread": 1})) == Keep(
        from_offset=7, drop_unread=True
    )


def test_what_lies_below_the_retention_offset_goes_in_whole_objects() -> None:
    assert gone(Keep(from_offset=25)) == "01"
    assert gone(Keep(from_offset=25), slowest=15) == "0"
