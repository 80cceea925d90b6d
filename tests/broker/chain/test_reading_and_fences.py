"""Where a chain ends, what belongs to it, and that a fence leaves a predecessor no name that counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_broker.chain import (
    ChainObjects,
    Drop,
    Item,
    Place,
    Safe,
    Start,
    chain_end,
    check_end,
    fence,
    fenced_end,
    piece_key,
    pieces,
)  # fmt: skip
from pydanube_broker.chain.piece import MOST_IN_FLIGHT, chain_folder, encode_piece
from pydanube_broker.chain.probe import check_create_only
from pydanube_core.errors import CorruptObject, Fenced, StoreUnsuitable
from pydanube_storage.objects import LocalStore

from tests.broker.chain.records_of import CLUSTER, JOURNAL, send

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "objects")


@pytest.fixture
def store(objects: LocalStore) -> ChainObjects:
    return ChainObjects(objects)


async def items_of(store: ChainObjects, until: int | None = None, from_number: int = 1) -> list[Item]:
    return [
        item
        async for _, items in pieces(store, CLUSTER, JOURNAL, from_number, until)
        for item in items
        if not isinstance(item, Start)
    ]


async def write(store: ChainObjects, count: int, place: Place | None = None, term: int = 1) -> Place:
    place = place or Place()
    for _ in range(count):
        place = await send(store, place, [Safe(lsn=place.number)], term=term)
    return place


async def test_an_empty_chain_ends_at_its_first_number(store: ChainObjects) -> None:
    assert await chain_end(store, CLUSTER, JOURNAL, 1) == Place()
    assert await items_of(store) == []
    assert await fence(store, CLUSTER, JOURNAL, 1, term=1) == 1


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
async def test_a_chain_of_any_length_is_read_to_its_end(store: ChainObjects, count: int) -> None:
    place = await write(store, count)
    assert await chain_end(store, CLUSTER, JOURNAL, 1) == place
    assert await items_of(store) == [Safe(lsn=number) for number in range(1, count + 1)]


async def test_nothing_that_a_fenced_predecessor_sends_counts(store: ChainObjects) -> None:
    place = await write(store, 3)
    on_their_way = []  # as many as a writer may have without an answer
    for _ in range(MOST_IN_FLIGHT):
        header, data = encode_piece(place, [Drop(base=1)], journal=JOURNAL, term=1, random=bytes(16))
        on_their_way.append((place.number, data))
        place = place.after(header)
    late_number, late = on_their_way.pop()
    number, data = on_their_way.pop()
    assert await store.create(
        piece_key(CLUSTER, JOURNAL, number), data
    )  # the third of four, before the fence

    at, end = await fenced_end(store, CLUSTER, JOURNAL, 1, term=2)
    assert at == 4
    for number, data in [*on_their_way, (late_number, late)]:
        assert not await store.create(piece_key(CLUSTER, JOURNAL, number), data)
    end = await send(store, end, [Safe(lsn=9)], term=2)
    assert await chain_end(store, CLUSTER, JOURNAL, 1) == end
    assert await items_of(store) == [Safe(lsn=1), Safe(lsn=2), Safe(lsn=3), Safe(lsn=9)]
    assert await items_of(store, until=at) == [Safe(lsn=1), Safe(lsn=2), Safe(lsn=3)]


async def test_a_process_fences_its_own_earlier_start_under_the_same_term(store: ChainObjects) -> None:
    place = await write(store, 2)
    at, end = await fenced_end(store, CLUSTER, JOURNAL, 1, term=1)
    assert at == 3
    _, late = encode_piece(place, [Drop(base=1)], journal=JOURNAL, term=1, random=bytes(16))
    assert not await store.create(piece_key(CLUSTER, JOURNAL, place.number), late)
    assert await chain_end(store, CLUSTER, JOURNAL, 1) == end


async def test_of_two_successors_the_higher_term_has_the_chain(store: ChainObjects) -> None:
    await write(store, 2)
    assert await fence(store, CLUSTER, JOURNAL, 1, term=2) == 3
    assert await fence(store, CLUSTER, JOURNAL, 1, term=3) == 3 + MOST_IN_FLIGHT
    with pytest.raises(Fenced, match="term 3"):
        await fence(store, CLUSTER, JOURNAL, 1, term=2)
    assert await items_of(store) == [Safe(lsn=1), Safe(lsn=2)]


class Hurried(ChainObjects):
    """A store in which the predecessor's next piece arrives right before the first piece of the fence."""

    def __init__(self, objects: LocalStore, place: Place) -> None:
        super().__init__(objects)
        self.place = place

    async def create(self, key: str, data: bytes) -> bool:
        if (place := self.place) is not None:
            self.place = None  # type: ignore[assignment]
            await write(ChainObjects(self._store), 1, place)
        return await super().create(key, data)


async def test_a_piece_that_was_faster_than_the_fence_belongs_to_the_chain(objects: LocalStore) -> None:
    place = await write(ChainObjects(objects), 2)
    at = await fence(Hurried(objects, place), CLUSTER, JOURNAL, 1, term=2)
    assert at == 4
    assert await items_of(ChainObjects(objects), until=at) == [Safe(lsn=1), Safe(lsn=2), Safe(lsn=3)]


async def test_reading_begins_at_the_recorded_number_and_not_at_the_lowest_name(store: ChainObjects) -> None:
    place = await write(store, 5)
    await store.delete(piece_key(CLUSTER, JOURNAL, 1))
    await store.delete(piece_key(CLUSTER, JOURNAL, 3))  # what is deleted goes in any order
    assert await chain_end(store, CLUSTER, JOURNAL, 4) == place
    assert await items_of(store, from_number=4) == [Safe(lsn=4), Safe(lsn=5)]


async def test_a_chain_without_its_recorded_first_piece_is_damaged(store: ChainObjects) -> None:
    await write(store, 3)
    await store.delete(piece_key(CLUSTER, JOURNAL, 2))
    for call in (
        lambda: chain_end(store, CLUSTER, JOURNAL, 2),
        lambda: items_of(store, from_number=2),
        lambda: fence(store, CLUSTER, JOURNAL, 2, term=2),
        lambda: items_of(store, until=4),
    ):
        with pytest.raises(CorruptObject, match="piece 2 of the chain of journal 77 is missing"):
            await call()


async def test_files_of_others_in_the_folder_of_a_chain_are_no_pieces(
    objects: LocalStore, store: ChainObjects
) -> None:
    await write(store, 3)
    folder = chain_folder(CLUSTER, JOURNAL)
    for name in ("2.bak", "9", ".DS_Store", ".nfs000000001", f"old/{9:020d}", "README"):
        objects.put(f"{folder}/{name}", b"x")
    await check_end(store, CLUSTER, JOURNAL, 1)
    for number in range(1, 4):
        await store.delete(piece_key(CLUSTER, JOURNAL, number))
    with pytest.raises(CorruptObject, match="piece 1 of the chain of journal 77 is missing"):
        await check_end(store, CLUSTER, JOURNAL, 1)
    await check_end(store, CLUSTER, JOURNAL, 1, may_be_new=True)


@pytest.mark.parametrize("may_be_new", [True, False])
async def test_a_hole_with_more_pieces_behind_it_than_were_in_flight_is_damage(
    store: ChainObjects, may_be_new: bool
) -> None:
    await write(store, 5 + MOST_IN_FLIGHT)
    await store.delete(piece_key(CLUSTER, JOURNAL, 5))
    with pytest.raises(CorruptObject, match="piece 5 of the chain of journal 77 is missing"):
        await check_end(store, CLUSTER, JOURNAL, 1, may_be_new=may_be_new)
    await store.delete(piece_key(CLUSTER, JOURNAL, 5 + MOST_IN_FLIGHT))
    await check_end(store, CLUSTER, JOURNAL, 1, may_be_new=may_be_new)
    with pytest.raises(CorruptObject, match="piece 9 of"):
        await check_end(store, CLUSTER, JOURNAL, 9, may_be_new=may_be_new)


class Replacing(ChainObjects):
    """A store that does not know the condition."""

    async def create(self, key: str, data: bytes) -> bool:
        await self.delete(key)
        return await super().create(key, data)


async def test_a_store_without_create_only_names_is_found_out(objects: LocalStore) -> None:
    await check_create_only(ChainObjects(objects), CLUSTER, "here")
    with pytest.raises(StoreUnsuitable, match="replaces an object"):
        await check_create_only(Replacing(objects), CLUSTER, "here")
    assert list(objects.list("")) == []
