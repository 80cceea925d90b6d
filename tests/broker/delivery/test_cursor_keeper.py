"""Cursors are written in turns: many that are dear to write do not keep the loop from others in one go."""

from __future__ import annotations

import asyncio
import time

import pytest
from pydanube_broker.delivery import engine as delivery
from pydanube_broker.delivery.engine import CursorKeeper
from pydanube_broker.slices import SLICE_S
from pydanube_core.errors import DiskFull, Unavailable

pytestmark = pytest.mark.anyio


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._next.cancel()


class Cursor:
    """One whose record takes a whole slice to make."""

    may_be_written = True

    def __init__(self, turns: Turns, *, fails: int = 0) -> None:
        self.dirty = False
        self.written = asyncio.Event()
        self.at: list[int] = []
        self._turns = turns
        self._fails = fails

    def write_cursor(self) -> None:
        self.at.append(self._turns.number)
        until = time.perf_counter() + SLICE_S
        while time.perf_counter() < until:
            pass
        if len(self.at) <= self._fails:
            raise DiskFull("no room", retry_after_ms=1)
        self.written.set()


class Refused(Cursor):
    may_be_written = False

    def write_cursor(self) -> None:
        self.at.append(0)
        raise Unavailable("another broker has taken its place", retry_after_ms=1)


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    monkeypatch.setattr(delivery, "FLUSH_S", 0.001)
    return Turns()


async def test_each_dear_cursor_has_a_turn_of_its_own(turns: Turns) -> None:
    keeper, cursors = CursorKeeper(), [Cursor(turns) for _ in range(8)]
    for cursor in cursors:
        keeper.note(cursor)
    for cursor in cursors:
        await cursor.written.wait()
    turns.stop()
    written_at = [cursor.at for cursor in cursors]
    assert all(len(at) == 1 for at in written_at)
    assert len({at[0] for at in written_at}) == 8, "two in one turn keep others waiting for both"
    assert not any(cursor.dirty for cursor in cursors)


async def test_one_that_finds_no_room_waits_for_the_next_flush_behind_the_others(turns: Turns) -> None:
    keeper, refused, other = CursorKeeper(), Cursor(turns, fails=2), Cursor(turns)
    for cursor in (refused, other):
        keeper.note(cursor)
    await refused.written.wait()
    turns.stop()
    assert len(refused.at) == 3
    assert other.at == [other.at[0]]
    assert refused.at[0] < other.at[0] < refused.at[1]


async def test_one_whose_journal_takes_nothing_until_the_restart_is_not_tried_again(turns: Turns) -> None:
    """A broker whose place another one has taken refuses with `Unavailable`, which was tried each time."""
    keeper, refused, other = CursorKeeper(), Refused(turns), Cursor(turns, fails=2)
    for cursor in (refused, other):
        keeper.note(cursor)
    await other.written.wait()
    turns.stop()
    assert (len(refused.at), refused.dirty) == (1, True)


async def test_a_flush_writes_all_at_once_also_in_the_middle_of_another(turns: Turns) -> None:
    keeper, cursors = CursorKeeper(), [Cursor(turns) for _ in range(4)]
    for cursor in cursors:
        keeper.note(cursor)
    await cursors[0].written.wait()
    keeper.flush()
    turns.stop()
    assert all(cursor.written.is_set() and len(cursor.at) == 1 for cursor in cursors)
    keeper.close()
