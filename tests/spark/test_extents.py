"""Which objects are the topic, where no broker can be asked; and how they become tasks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydanube_storage.objects.names import ObjectName
from pydanube_storage.topics.extent import (
    ColdObject,
    Extent,
    cover_of,
    reached_by,
    slices_of,
    stored_bytes,
    tails_of,
    within,
)
from pydanube_storage.topics.located import locate
from pydanube_storage.topics.query import TopicQuery


def named(start: int, end: int, *, generation: int = 0, epoch: int = 1, random: str = "a") -> ObjectName:
    return ObjectName(start=start, end=end, epoch=epoch, generation=generation, random=random)


def listed(*names: ObjectName) -> list[tuple[str, ObjectName, int]]:
    return [(str(name), name, 100) for name in names]


def test_a_merged_object_counts_and_its_sources_do_not() -> None:
    merged = named(0, 20, generation=1)
    cover = cover_of(listed(named(0, 10), named(10, 20), merged, named(20, 30)))
    assert [each.key for each in cover] == [str(merged), str(named(20, 30))]
    assert all(each.whole for each in cover)


def test_an_orphan_that_reaches_into_the_next_object_gives_each_offset_once() -> None:
    cover = cover_of(listed(named(0, 15, epoch=2), named(10, 20, epoch=3)))
    assert [(each.start, each.end, each.whole) for each in cover] == [(0, 15, True), (15, 20, False)]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 2), st.integers(0, 3)), max_size=12
    )
)
def test_every_offset_of_a_listing_is_covered_exactly_once(drawn: list[tuple[int, int, int, int]]) -> None:
    names = [
        named(start, start + length, generation=generation, epoch=epoch, random=f"{number:x}")
        for number, (start, length, generation, epoch) in enumerate(drawn)
    ]
    cover = cover_of(listed(*names))
    covered = [offset for each in cover for offset in range(each.start, each.end)]
    assert covered == sorted({offset for name in names for offset in range(name.start, name.end)})


def extent(*sizes: int, end: int | None = None, start: int = 0) -> Extent:
    objects = tuple(
        ColdObject(key=str(number), start=10 * number, end=10 * number + 10, bytes=size)
        for number, size in enumerate(sizes)
    )
    return Extent(
        topic="/default/t",
        partition=None,
        start=start,
        end=10 * len(sizes) if end is None else end,
        objects=objects,
    )


def test_small_objects_share_a_task_and_a_large_one_is_cut() -> None:
    tasks = slices_of([extent(10, 10, 95, 10)], split_bytes=40)
    assert [[(each.object.key, each.part, each.parts) for each in task] for task in tasks] == [
        [("2", 0, 3)],
        [("2", 1, 3)],
        [("2", 2, 3)],
        [("0", 0, 1), ("1", 0, 1), ("3", 0, 1)],
    ]


def test_the_tail_begins_where_the_objects_end() -> None:
    (tail, rest) = tails_of([extent(1, 1, end=30)], messages=6)
    assert [(each.start, each.end) for each in (tail, rest)] == [(20, 26), (26, 30)]
    assert tails_of([within(extent(1, 1, end=30), 0, 15)], messages=6) == []


def test_a_range_beyond_the_end_is_empty() -> None:
    cut = within(extent(1, 1), 50, 70)
    assert (cut.start, cut.end, cut.objects) == (50, 50, ())
    assert slices_of([cut], split_bytes=10) == []


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4000)), max_size=5),
    st.integers(0, 30),
    st.integers(0, 40),
    st.floats(0, 1),
)
def test_a_share_of_the_bytes_reaches_as_far_as_they_go_and_one_message_at_least(
    sizes: list[tuple[int, int]], tail: int, start: int, share: float
) -> None:
    objects, at = [], 0
    for count, size in sizes:
        objects.append(ColdObject(key=f"{at}", start=at, end=at + count, bytes=size))
        at += count
    whole = Extent(topic="t", partition=None, start=0, end=at + tail, objects=tuple(objects))
    low = min(start, whole.end)
    reached = reached_by(whole, low, whole.end, share)
    assert min(low + 1, whole.end) <= reached <= whole.end
    wanted = share * stored_bytes(whole, low, whole.end)
    if reached > low + 1:
        assert stored_bytes(whole, low, reached) <= wanted * 1.001
    if reached < whole.end:
        assert stored_bytes(whole, low, reached + 1) > wanted * 0.999


class Listing:
    """A broker with a topic of 50 messages, whose objects are listed in pages; each listing has its own."""

    def __init__(self, *listings: list[list[tuple[int, int]]]) -> None:
        self.listings = [*listings]

    def ask(self, operation: str, arguments: Any, *, timeout_s: float = 10.0) -> Any:
        if operation == "brokers.status":
            return {"tier": {"enabled": True, "url": "/store", "cluster": "c"}}
        if operation == "topics.describe":
            whole = {"topic": "/default/t", "topic_id": "1", "start_offset": 0, "next_offset": 50}
            return {**whole, "parts": []}
        page = arguments.get("page", 0)
        pages = self.listings[0]
        if page + 1 == len(pages) and len(self.listings) > 1:
            del self.listings[0]
        items = [
            {
                "path": f"/store/{start}-{end}.parquet",
                "start_offset": start,
                "end_offset": end,
                "bytes": 1,
                "min_append_time": "2026-01-01T00:00:00Z",
                "max_append_time": "2026-01-01T00:00:00Z",
            }
            for start, end in pages[page]
        ]
        return {"items": items, "next_page": page + 1 if page + 1 < len(pages) else None}


TORN = [[(0, 10), (10, 20)], [(40, 50)]]  # the objects of 10 to 40 were merged between the pages


def test_a_listing_with_a_merge_between_its_pages_is_repeated() -> None:
    broker: Any = Listing(TORN, [[(0, 10), (10, 40)], [(40, 50)]])
    (extent,) = locate(TopicQuery(topics=("t",), broker=broker)).extents
    assert [(each.start, each.end) for each in extent.objects] == [(0, 10), (10, 40), (40, 50)]


def test_the_tail_begins_where_every_listing_has_a_gap() -> None:
    broker: Any = Listing(TORN)
    (extent,) = locate(TopicQuery(topics=("t",), broker=broker)).extents
    assert [(each.start, each.end) for each in extent.objects] == [(0, 10), (10, 20)]
    assert extent.cold_end == 20
