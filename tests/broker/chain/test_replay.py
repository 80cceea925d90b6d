"""A folder that was rebuilt from a chain is one that recovery reads: all that was promised is there, wherever the chain ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pydanube_broker.chain import ChainObjects, Drop, Group, Item, Place, Safe, fenced_end, replay
from pydanube_broker.chain.folder import ChainFile, restore_lost
from pydanube_broker.journal.records import FILE_HEADER_BYTES
from pydanube_core.errors import CorruptObject
from pydanube_storage.objects import LocalStore

from tests.broker.chain.records_of import CLUSTER, JOURNAL, groups_of, send
from tests.broker.journal.ledger import SEGMENT_BYTES, Desk, Truth

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def life(folder: Path, truth: Truth | None = None, *, segments: int = 3, padding: int = 0) -> Desk:
    """A journal that was written to, over some segments, and closed."""
    desk = Desk(folder, truth, padding=padding)
    await desk.start()
    end = desk.journal.next_lsn + segments * SEGMENT_BYTES
    while desk.journal.next_lsn < end:
        await desk.rested()
        desk.append(desk.journal.next_lsn % 3, size=1500)
        desk.move_cursor(1, 7, desk.truth.next(1))
        assert await desk.durable()
    await desk.journal.close()
    return desk


async def chain_of(folder: Path, objects: Path, *, each: int = 4) -> tuple[ChainObjects, Place]:
    store, place = ChainObjects(LocalStore(objects)), Place()
    for group in groups_of(folder, each=each):
        place = await send(store, place, [group])
    return store, place


@pytest.mark.parametrize("padding", [0, 5 * SEGMENT_BYTES])
async def test_the_folder_of_a_chain_holds_what_the_journal_held(fast_path: Path, padding: int) -> None:
    desk = await life(fast_path / "one", padding=padding)
    desk = await life(fast_path / "one", desk.truth, padding=padding)  # segments behind a gap of unused ones
    store, place = await chain_of(fast_path / "one", fast_path / "objects")
    found = await replay(store, CLUSTER, JOURNAL, 1, place.number, fast_path / "two")
    assert found.pieces == place.number - 1
    again = Desk(fast_path / "two", desk.truth)
    await again.start()
    assert again.ledger.cursors == desk.ledger.cursors
    await again.journal.close()


async def test_a_chain_that_ends_anywhere_gives_a_folder_that_starts(fast_path: Path) -> None:
    """Also right behind the mark that announces a segment, of which the chain has nothing then."""
    desk = await life(fast_path / "one", segments=2)
    store, place = await chain_of(fast_path / "one", fast_path / "objects", each=1)
    assert place.number > 20
    for until in range(2, place.number + 1):
        truth = desk.truth.copy()
        if until < place.number:
            truth.promised.clear()
            truth.cursors_promised.clear()
        await replay(store, CLUSTER, JOURNAL, 1, until, fast_path / "two")
        again = Desk(fast_path / "two", truth)
        await again.start()
        await again.journal.close()
        shutil.rmtree(fast_path / "two")


async def test_dropped_segments_are_left_out_and_so_are_those_without_a_beginning(fast_path: Path) -> None:
    desk = await life(fast_path / "one", segments=4)
    groups = [group for group in groups_of(fast_path / "one", each=2) if isinstance(group, Group)]
    bases = sorted({group.base for group in groups})
    store, place = ChainObjects(LocalStore(fast_path / "objects")), Place()
    from_number = 0
    for group in groups:
        if group.lsn == bases[2] + FILE_HEADER_BYTES:
            from_number = place.number
        place = await send(store, place, [group])
    place = await send(store, place, [Drop(base=bases[2]), Safe(lsn=desk.journal.durable_lsn)])
    for first in (1, from_number, from_number - 1):
        found = await replay(store, CLUSTER, JOURNAL, first, place.number, fast_path / "two")
        assert sorted(path.stem for path in (fast_path / "two").glob("*.journal")) == [
            f"{base:020d}" for base in bases[2:]
        ]
        assert found.safe_lsn == found.stored_lsn == desk.journal.durable_lsn


async def test_an_interrupted_replay_is_repeated(fast_path: Path) -> None:
    desk = await life(fast_path / "one")
    store, place = await chain_of(fast_path / "one", fast_path / "objects")
    await replay(store, CLUSTER, JOURNAL, 1, place.number // 2, fast_path / "two")
    await replay(store, CLUSTER, JOURNAL, 1, place.number, fast_path / "two")
    again = Desk(fast_path / "two", desk.truth)
    await again.start()
    await again.journal.close()


async def test_a_chain_with_a_hole_in_its_records_is_refused(fast_path: Path) -> None:
    await life(fast_path / "one")
    store, place = ChainObjects(LocalStore(fast_path / "objects")), Place()
    groups: list[Item] = [*groups_of(fast_path / "one", each=1)]
    for item in (groups[0], groups[2]):
        place = await send(store, place, [item])
    with pytest.raises(CorruptObject, match="none between"):
        await replay(store, CLUSTER, JOURNAL, 1, place.number, fast_path / "two")


async def test_records_that_a_disk_has_lost_come_back_from_the_chain(fast_path: Path) -> None:
    """A stored topic does not wait for the disk: after a power cut the chain may have more."""
    folder = fast_path / "one"
    desk = await life(folder, segments=2)
    store, place = ChainObjects(LocalStore(fast_path / "objects")), Place()
    groups = [group for group in groups_of(folder, each=3) if isinstance(group, Group)]
    safe = groups[len(groups) // 2].lsn
    for group in groups:
        place = await send(store, place, [group, Safe(lsn=min(safe, group.end))])
    _, place = await fenced_end(store, CLUSTER, JOURNAL, 1, 1)
    for group in groups:
        if group.lsn >= safe:
            path = folder / f"{group.base:020d}.journal"
            with path.open("r+b") as file:
                file.seek(group.lsn - group.base)
                file.write(bytes(len(group.records)))
    file = ChainFile(cluster=CLUSTER, journal=JOURNAL)
    assert await restore_lost(store, file, place, folder) == sum(
        len(group.records) for group in groups if group.lsn >= safe
    )
    assert await restore_lost(store, file, place, folder) == 0
    again = Desk(folder, desk.truth)
    await again.start()
    await again.journal.close()
