"""Segments that were given up: the journal keeps nothing of them, neither while it runs nor after a start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.broker.journal.ledger import Desk
from tests.broker.journal.test_checkpoints import fill

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def within(thing: Any, where: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield each key and element of the containers that the journal's own objects hold, with the path to it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        yield from ((where, key) for key in thing)
        for key, value in thing.items():
            yield from within(value, f"{where}[{key!r}]", seen)
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from ((where, each) for each in thing)
        for each in thing:
            yield from within(each, where, seen)
    elif type(thing).__module__.startswith("pydanube_broker.journal"):
        names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
        for name in names:
            value = getattr(thing, name, None)
            yield from within(value, f"{where}.{name}", seen)


def left_of(desk: Desk, bases: set[int]) -> list[str]:
    """Where the journal still has the start of one of these segments."""
    found = within(desk.journal, "journal", {id(desk.ledger), id(desk.journal.recovered)})
    return [where for where, each in found if type(each) is int and each in bases]


async def bases_given_up(desk: Desk) -> set[int]:
    """Fill segments and give up all but the last. The result is where the others began."""
    with anyio.fail_after(30):
        await fill(desk, 5)
        await desk.rested()
        before = {base for base, _, _ in desk.journal.sealed()}
        assert left_of(desk, before), "what is live is known"
        desk.trim(1, desk.truth.next(1))
        assert await desk.durable()
        desk.journal.collect(lambda topic: None)
        return before - {base for base, _, _ in desk.journal.sealed()} - {0}


async def test_a_journal_keeps_nothing_of_segments_that_it_gave_up(fast_path: Path) -> None:
    desk = Desk(fast_path / "j", cache_bytes=1)
    await desk.start()
    for _ in range(2):
        gone = await bases_given_up(desk)
        assert len(gone) >= 3
        assert left_of(desk, gone) == []
    await desk.journal.close()


async def test_a_start_keeps_nothing_of_segments_that_its_head_names_and_that_are_gone(
    fast_path: Path,
) -> None:
    """A head names the segments of its time. The oldest were given up since."""
    desk = Desk(fast_path / "j", cache_bytes=1)
    await desk.start()
    gone = await bases_given_up(desk)
    await desk.journal.close()
    again = Desk(fast_path / "j", desk.truth, cache_bytes=1)
    again.journal.recover()
    assert left_of(again, gone) == []
    await again.journal.begin()
    again.check()
    await again.journal.close()
