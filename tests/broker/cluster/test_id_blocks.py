"""Ids from blocks: never twice, above every revision, readable as JSON numbers."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.id_blocks import (
    BLOCK,
    MAX_NUMBER,
    IdBlocks,
    IdBlocksRecord,
    NewestIds,
    given_out,
    skip,
)
from pydanube_storage.metadata import CorruptMetadata, Put

from tests.support.memory_store import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]
LOWEST, END = 1 << 40, 1 << 53


async def record(store: MemoryStore) -> IdBlocksRecord:
    found = IdBlocksRecord.of(await store.get(keys.ID_BLOCKS))
    assert found is not None
    return found


async def test_ids_of_several_brokers_and_of_their_next_lives_differ(store: MemoryStore) -> None:
    found: list[int] = []

    async def take(ids: IdBlocks) -> None:
        found.extend(await ids.take(BLOCK // 2 + 1))

    async with anyio.create_task_group() as group:
        for ids in [IdBlocks(store) for _ in range(5)]:
            group.start_soon(take, ids)
            group.start_soon(take, ids)
    found += await IdBlocks(store).take(3)
    assert len(set(found)) == len(found) == 10 * (BLOCK // 2 + 1) + 3
    assert all(LOWEST <= each < END for each in found)
    assert len({each >> 40 for each in found}) == 1


async def test_a_block_takes_one_transaction(store: MemoryStore) -> None:
    ids = IdBlocks(store)
    first = await ids.next()
    before = store.statistics().transactions
    assert await ids.take(BLOCK - 1) == list(range(first + 1, first + BLOCK))
    assert store.statistics().transactions == before
    assert await ids.next() == first + BLOCK
    assert store.statistics().transactions == before + 1


async def test_record_that_cannot_be_read_gives_out_nothing(store: MemoryStore) -> None:
    await store.transact([Put(keys.ID_BLOCKS, b'{"version":1,"number":0,"next":0}')])
    with pytest.raises(CorruptMetadata):
        await IdBlocks(store).next()


async def test_start_does_not_depend_on_a_record_that_cannot_be_read(store: MemoryStore) -> None:
    newest = NewestIds.among(await IdBlocks(store).take(3))
    assert not newest.is_beyond(await given_out(store))
    assert NewestIds(leased=newest.leased + BLOCK).is_beyond(await given_out(store))
    await store.transact([Put(keys.ID_BLOCKS, b"damaged")])
    assert not newest.is_beyond(await given_out(store))


async def test_a_store_from_before_the_first_block_is_behind_every_id_from_one(store: MemoryStore) -> None:
    found = await given_out(store)
    assert found == NewestIds(revision=store.statistics().revision)
    for number in (1, 3, MAX_NUMBER):
        assert NewestIds(leased=number << 40).is_beyond(found)
    assert not NewestIds(revision=found.revision).is_beyond(found)
    assert NewestIds(revision=found.revision + 1).is_beyond(found)


@pytest.mark.parametrize("lost", [0, 1, BLOCK - 1, 5 * BLOCK])
async def test_after_a_restore_no_id_comes_again(store: MemoryStore, lost: int) -> None:
    ids = IdBlocks(store)
    await ids.next()
    backup = await record(store)
    given_out = await ids.take(BLOCK + lost)
    await store.transact([Put(keys.ID_BLOCKS, backup.to_json())])
    await skip(store, NewestIds.among([7, *given_out]))
    assert await IdBlocks(store).next() > max(given_out)
    before = await record(store)
    await skip(store, NewestIds.among(given_out), margin=10)
    assert (await record(store)).next == before.next + 10


async def test_backup_from_before_the_first_block_goes_on_with_the_number_that_is_known(
    store: MemoryStore,
) -> None:
    await skip(store, NewestIds(revision=5))
    assert await store.get(keys.ID_BLOCKS) is None
    await skip(store, NewestIds(leased=(3 << 40) + 4))
    assert await IdBlocks(store).next() == (3 << 40) + 5


async def test_ids_of_another_number_do_not_move_the_count(store: MemoryStore) -> None:
    await store.transact([Put(keys.ID_BLOCKS, IdBlocksRecord(number=2, next=0).to_json())])
    await skip(store, NewestIds(leased=(3 << 40) + 4))
    assert await IdBlocks(store).next() == 2 << 40


@given(number=st.integers(1, MAX_NUMBER), following=st.integers(0, (1 << 40) - 1))
def test_every_id_fits_a_json_number_and_is_no_revision(number: int, following: int) -> None:
    known = IdBlocksRecord(number=number, next=following)
    assert IdBlocksRecord.from_json(known.to_json(), key="k") == known
    assert LOWEST <= known.limit < END
    assert NewestIds.among([known.limit, 4]) == NewestIds(revision=4, leased=known.limit)
