"""What a chain costs, and in what order its pieces count."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydanube_broker.chain import Group, Place, Safe, piece_key, pieces
from pydanube_broker.chain.piece import MOST_IN_FLIGHT, encode_piece
from pydanube_broker.chain.source import Stretch, read_group
from pydanube_broker.chain.writer import PIECES_TO_READ, ChainWriter
from pydanube_broker.journal.records import FILE_HEADER_BYTES
from pydanube_core.errors import Fenced, StoreUnavailable

from tests.broker.chain.simulation import CLUSTER, Folder, SimStore, VirtualLoop

pytestmark = pytest.mark.timeout(60)


class Store(SimStore):
    """Answers after `takes_s`, without faults; counts."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.takes_s = 0.05
        self.asked: list[float] = []
        self.under_way = self.most = 0
        self.refuses: set[int] = set()

    async def create(self, key: str, data: bytes) -> bool:
        number = int(key.rpartition("/")[2])
        self.asked.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self.takes_s)
        self.under_way -= 1
        if number in self.refuses:
            raise StoreUnavailable("away")
        return self.objects.setdefault(key, data) is data

    async def read(self, key: str, most_bytes: int | None = None) -> bytes | None:
        return self.objects.get(key)


class Desk:
    """A journal's folder and its chain."""

    def __init__(self, *, pieces_to_read: int = PIECES_TO_READ) -> None:
        self.store = Store()
        self.folder = Folder(1)
        self.from_number = 1
        self.folder.begin(0, [])
        self.stored_lsns: list[int] = []
        self.errors: list[Fenced] = []
        self.count = 0
        self.writer = ChainWriter(
            self.store, self.folder, self, cluster=CLUSTER, journal=1, term=1, place=Place(), sent_lsn=0,
            linger_s=0.1, keep_from=self.keep_from, pieces_to_read=pieces_to_read,
        )  # fmt: skip

    async def keep_from(self, number: int) -> None:
        self.from_number = number

    def stored(self, lsn: int) -> None:
        self.stored_lsns.append(lsn)

    def fenced(self, error: Fenced) -> None:
        self.errors.append(error)

    def write(self) -> int:
        self.count += 1
        end = self.folder.append(self.count, list(range(1, self.count)))
        self.writer.written(end)
        return end


def in_virtual_time(body: Callable[[Desk], Awaitable[Any]], **given: Any) -> Desk:
    async def main() -> Desk:
        desk = Desk(**given)
        task = asyncio.get_running_loop().create_task(desk.writer.run())
        await body(desk)
        if desk.errors:
            await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return desk

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_nothing_is_sent_while_nothing_is_written() -> None:
    async def body(desk: Desk) -> None:
        await asyncio.sleep(1)
        before = len(desk.store.asked)
        await asyncio.sleep(3600)
        assert len(desk.store.asked) == before == 1  # the head with which the folder began

    in_virtual_time(body)


def test_a_lone_record_is_stored_after_the_linger_and_one_answer() -> None:
    async def body(desk: Desk) -> None:
        await asyncio.sleep(10)
        end = desk.write()
        await asyncio.sleep(0.14)
        assert desk.writer.stored_lsn < end
        await asyncio.sleep(0.02)
        assert desk.writer.stored_lsn == end
        assert desk.writer.statistics().behind_bytes == 0

    in_virtual_time(body)


def test_a_steady_load_costs_ten_pieces_a_second() -> None:
    async def body(desk: Desk) -> None:
        for _ in range(300):
            desk.write()
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert 25 <= len(desk.store.asked) <= 32
        assert desk.stored_lsns == sorted(desk.stored_lsns)
        values = [item async for _, items in pieces(desk.store, CLUSTER, 1, 1) for item in items]
        assert values[-1] == Safe(lsn=0)
        assert max(item.end for item in values if isinstance(item, Group)) == desk.folder.written_lsn

    in_virtual_time(body)


def test_a_reader_of_many_small_pieces_begins_at_one_that_repeats_them() -> None:
    async def body(desk: Desk) -> None:
        for _ in range(200):
            desk.write()
            await asyncio.sleep(0.15)
        await asyncio.sleep(1)
        sent = desk.writer.statistics().pieces
        assert sent >= 190
        assert sent - desk.from_number <= 20 + MOST_IN_FLIGHT
        assert len(desk.store.objects) <= 2 * 20, "older pieces are deleted"
        groups = [
            item
            async for _, items in pieces(desk.store, CLUSTER, 1, desk.from_number)
            for item in items
            if isinstance(item, Group)
        ]
        again = Folder(1)
        for group in groups:
            again.overlay(group)
        assert again.segments == desk.folder.segments
        assert desk.stored_lsns == sorted(desk.stored_lsns)

    in_virtual_time(body, pieces_to_read=20)


def test_four_pieces_are_on_their_way_and_the_rest_waits_in_the_files() -> None:
    async def body(desk: Desk) -> None:
        desk.store.takes_s = 30
        for _ in range(200):
            desk.write()
            await asyncio.sleep(0.1)
        assert desk.store.most == MOST_IN_FLIGHT == len(desk.store.asked)
        assert desk.writer.statistics().behind_s > 15
        await asyncio.sleep(60)
        assert desk.writer.stored_lsn == desk.folder.written_lsn
        assert len(desk.store.asked) == MOST_IN_FLIGHT + 1  # one piece had room for all that waited

    in_virtual_time(body)


def test_a_piece_counts_when_all_before_it_are_stored() -> None:
    async def body(desk: Desk) -> None:
        await asyncio.sleep(1)
        first = desk.writer.stored_lsn
        desk.store.refuses = {2}
        for _ in range(3):
            desk.write()
            await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        assert desk.writer.stored_lsn == first
        assert desk.writer.statistics().last_error == "away"
        desk.store.refuses = set()
        await asyncio.sleep(2)
        assert desk.writer.stored_lsn == desk.folder.written_lsn
        assert desk.writer.statistics().last_error is None

    in_virtual_time(body)


def test_a_name_that_another_process_took_ends_the_chain_and_is_reported_once() -> None:
    async def body(desk: Desk) -> None:
        await asyncio.sleep(1)
        stored = desk.writer.stored_lsn
        _, foreign = encode_piece(Place(number=2), [], journal=1, term=2, random=bytes(16))
        desk.store.objects[piece_key(CLUSTER, 1, 2)] = foreign
        for _ in range(5):
            desk.write()
            await asyncio.sleep(0.2)
        assert [error.code for error in desk.errors] == ["FENCED"]
        assert desk.writer.stored_lsn == stored
        sent = len(desk.store.asked)
        desk.write()
        await asyncio.sleep(10)
        assert len(desk.store.asked) == sent

    in_virtual_time(body)


def test_a_piece_is_cut_between_records() -> None:
    folder = Folder(1)
    folder.begin(0, [])
    ends = [folder.append(value, list(range(1, value))) for value in range(1, 20)]
    stretch = folder.next_stretch(0)
    assert stretch is not None
    whole = read_group(folder, stretch, 1 << 20)
    assert whole.end == ends[-1]
    for most in range(1, len(whole.records), 7):
        group = read_group(folder, stretch, most)
        assert group.end in {*ends, FILE_HEADER_BYTES + 48}
        assert len(group.records) <= max(most, 56)
    assert stretch == Stretch(base=0, segment_bytes=stretch.segment_bytes, start=64, end=ends[-1])
