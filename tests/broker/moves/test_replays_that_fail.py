"""A replay of a lost broker's chain that the disk ends is an error of its topics, and of nothing else."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.cluster.move_record import ChainRange
from pydanube_broker.journal import Journal
from pydanube_broker.moves import inheritance
from pydanube_broker.moves.inheritance import Inheritances
from pydanube_broker.worker_threads import WorkerThreads
from pydanube_core.errors import CorruptObject, DiskFull

pytestmark = pytest.mark.anyio


async def test_a_replay_that_finds_no_room_at_its_end_does_not_end_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`begin` runs among the tasks of the broker."""

    async def replayed(*given: Any, **named: Any) -> Any:
        return SimpleNamespace(pieces=0, stored_lsn=0)

    def no_room(self: Journal, begins: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inheritance, "replay", replayed)
    monkeypatch.setattr(Journal, "recover", no_room)
    chain = ChainRange(journal=1, from_piece=0, until=1, above_epoch=0)
    found = Inheritances(cast(Any, None), "c", tmp_path, WorkerThreads())
    with pytest.raises(DiskFull):
        async with found.of(chain):
            pass
    await found.begin(chain)


async def test_topics_that_wait_for_a_damaged_chain_replay_it_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays: list[int] = []

    async def damaged(store: Any, cluster: str, journal: int, *given: Any, **named: Any) -> Any:
        replays.append(journal)
        raise CorruptObject(f"a piece of {journal} is damaged")

    now_s = 1000.0
    monkeypatch.setattr(inheritance, "replay", damaged)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    found = Inheritances(cast(Any, None), "c", tmp_path, WorkerThreads())

    async def read(journal: int) -> None:
        with pytest.raises(CorruptObject, match=f"a piece of {journal}"):
            async with found.of(ChainRange(journal=journal, from_piece=1, until=9, above_epoch=0)):
                pass

    for _ in range(3):
        await read(1)
    await read(2)
    assert replays == [1, 2]
    now_s += inheritance.FAILED_S
    await read(1)
    assert replays == [1, 2, 1]
