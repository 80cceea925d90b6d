"""Power cuts at any instant, with any part of the unsynced sectors on the disk (docs/research/behaviours.md#row-1 to 3)."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydanube_core.errors import DiskFull, Overloaded

from tests.broker.journal.ledger import Desk, Truth
from tests.broker.journal.powercut import RecordingDisk, Remains, SlowSyncer

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
Script = Callable[[Desk, SlowSyncer], Awaitable[None]]


class Life:
    """One run of a script on a recording disk, and the truth at each of its events."""

    def __init__(self, folder: Path, truth: Truth, *, padding: int = 0) -> None:
        self.disk = RecordingDisk(folder)
        self.syncer = SlowSyncer(self.disk)
        self.desk = Desk(folder, truth, disk=self.disk, syncer=self.syncer, padding=padding)
        self.desk.on_promise = self._note
        self._truths = [(0, truth.copy())]

    def _note(self) -> None:
        self._truths.append((len(self.disk.events), self.desk.truth.copy()))

    def truth_at(self, instant: int) -> Truth:
        """What was promised by then, and all that may be found: what was appended at any time."""
        promised = next(truth for at, truth in reversed(self._truths) if at <= instant)
        truth = self.desk.truth.copy()
        truth.promised = dict(promised.promised)
        truth.cursors_promised = dict(promised.cursors_promised)
        return truth

    async def run(self, script: Script) -> None:
        try:
            await self.desk.start()
            self._note()
            self.syncer.by_itself = False
            await script(self.desk, self.syncer)
        finally:
            self.desk.journal.abandon()


async def settle(turns: int = 3) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


LARGE = 20_000  # padding of a head that has to go into a file of its own


async def recovered(folder: Path, truth: Truth, starts: int = 2, *, padding: int = 0) -> None:
    """A start after the cut holds the promise, and so does the next one."""
    for _ in range(starts):
        desk = Desk(folder, truth, padding=padding)
        try:
            await desk.start()
        finally:
            desk.journal.abandon()


async def busy_script(desk: Desk, syncer: SlowSyncer) -> None:
    """Three topics, batches below a sector and above a page, a roll within a group, cursors, a trim, a deletion."""
    for step in range(14):
        for topic in (1, 2, 3):
            if (step + topic) % 3:
                desk.append(topic, size=(90, 700, 5200)[(step + topic) % 3], count=1 + step % 4)
        await settle()
        desk.move_cursor(1, 5, desk.truth.next(1))
        if step == 8:
            desk.trim(1, desk.truth.promised.get(1, 0))
            desk.trim(2, desk.truth.promised.get(2, 0))
            desk.trim(3, desk.truth.promised.get(3, 0))
        await settle()
        if step % 3 != 1:
            syncer.finish()
            await settle()
        if step == 11:
            desk.journal.collect(lambda topic: desk.ledger.starts.get(topic, 0))
    assert desk.waiting, "the run ends in the middle of a group"


async def long_tail_script(desk: Desk, syncer: SlowSyncer) -> None:
    """A group of more segments than stand ready at a start; its sync has not returned."""
    desk.append(1, size=100)
    await settle()
    syncer.finish()
    await settle()
    for step in range(15):
        desk.append(1 + step % 2, size=4800)
        desk.move_cursor(1, 5, desk.truth.next(1))
        await settle()
    assert desk.journal.waiting_bytes > 4 * 16384


async def acknowledged_tail_script(desk: Desk, syncer: SlowSyncer) -> None:
    """The same with the sync returned: all of it is promised, and no record behind it says so."""
    await long_tail_script(desk, syncer)
    syncer.finish()  # of what came first; the next one is asked for at once
    syncer.finish()
    assert not desk.waiting


async def only_head_script(desk: Desk, syncer: SlowSyncer) -> None:
    """Everything but the newest segment is given up before anything but a completed sync proves its head."""
    syncer.by_itself = True
    while desk.journal.statistics().next_lsn < 3 * 16384 + 200:
        desk.append(1, size=3000)
        desk.trim(1, desk.truth.next(1) - 3)  # in the group of the batch: nothing in it knows of its sync
        await settle(6)
    desk.journal.collect(lambda topic: desk.ledger.starts.get(topic, 0))
    # A head in a file of its own is not written for every segment.
    assert desk.journal.statistics().segments == (1 if desk.ledger.padding < LARGE else 2)


@pytest.mark.parametrize("padding", [0, LARGE])
def test_every_instant_of_a_run_keeps_what_was_acknowledged(fast_path: Path, padding: int) -> None:
    """At each instant: nothing of the unsynced, all of it, and any part of it."""

    async def scenario() -> None:
        with anyio.fail_after(100):
            life = Life(fast_path / "run", Truth(), padding=padding)
            await life.run(busy_script)
            assert life.desk.journal.statistics().next_lsn > 3 * 16384
            chance = random.Random(1)
            for instant in range(len(life.disk.events) + 1):
                choices: list[Callable[[int], int]] = [lambda n: 0, lambda n: n]
                choices.append(lambda n: chance.randint(0, n))
                for choose in choices:
                    folder = fast_path / "cut"
                    Remains(life.disk, instant).write_to(
                        folder, choose, sector_bytes=chance.choice((512, 4096))
                    )
                    await recovered(folder, life.truth_at(instant), 1 + instant % 2, padding=padding)
                    shutil.rmtree(folder)

    anyio.run(scenario)


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_row_2_every_single_sector_of_the_last_group_may_be_missing(
    fast_path: Path, sector_bytes: int
) -> None:
    async def scenario() -> None:
        with anyio.fail_after(100):
            life = Life(fast_path / "run", Truth())
            await life.run(busy_script)
            instant = len(life.disk.events)
            sectors = Remains(life.disk, instant).open_choices(sector_bytes)
            assert sectors > 3
            for missing in range(sectors):
                for others in (0, 1):
                    asked = iter(range(sectors))
                    folder = fast_path / "cut"
                    Remains(life.disk, instant).write_to(
                        folder,
                        lambda n, asked=asked, missing=missing, others=others: (
                            n if (next(asked) == missing) == bool(others) else 0
                        ),
                        sector_bytes=sector_bytes,
                    )
                    await recovered(folder, life.truth_at(instant), 1 + instant % 2)
                    shutil.rmtree(folder)

    anyio.run(scenario)


async def cut_while_it_starts(
    root: Path, first: Life, instant: int, seed: int, lost: str = "", *, padding: int = 0
) -> None:
    """Cut once, then at each write, sync, rename and removal of the start that follows."""
    chance = random.Random(seed)
    folder, cut = root / "cut", root / "cut again"
    # What the page cache shows after a SIGKILL is all there; the disk may hold less.
    choose = (lambda n: n) if seed == 0 else (lambda n: chance.randint(0, n))
    Remains(first.disk, instant).write_to(folder, choose, lost=lost)
    second = Life(folder, first.truth_at(instant), padding=padding)

    async def nothing(desk: Desk, syncer: SlowSyncer) -> None:
        """Only the start."""

    await second.run(nothing)
    for again in range(len(second.disk.events) + 1):
        for choose in (lambda n: n, lambda n: chance.randint(0, n)):
            Remains(second.disk, again).write_to(cut, choose)
            await recovered(cut, second.truth_at(again), padding=padding)
            shutil.rmtree(cut)
    shutil.rmtree(folder)


@pytest.mark.parametrize("script", [busy_script, acknowledged_tail_script, only_head_script])
@pytest.mark.parametrize("padding", [0, LARGE])
def test_a_cut_during_a_start_loses_nothing(fast_path: Path, script: Script, padding: int) -> None:
    async def scenario() -> None:
        with anyio.fail_after(100):
            first = Life(fast_path / "run", Truth(), padding=padding)
            await first.run(script)
            last = len(first.disk.events)
            await cut_while_it_starts(fast_path, first, last, 0, padding=padding)
            if script is busy_script:
                await cut_while_it_starts(fast_path, first, last * 2 // 3, 2, padding=padding)

    anyio.run(scenario)


def test_no_start_begins_in_a_segment_that_an_end_mark_announces(fast_path: Path) -> None:
    """A second recovery would follow the mark into the new head and meet the tail twice."""

    async def scenario() -> None:
        with anyio.fail_after(100):
            first = Life(fast_path / "run", Truth())
            await first.run(long_tail_script)
            announced = f"{first.desk.journal.next_lsn // 16384 * 16384:020d}.journal"
            await cut_while_it_starts(fast_path, first, len(first.disk.events), 0, lost=announced)

    anyio.run(scenario)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_cut_during_any_start_loses_nothing(fast_path: Path) -> None:
    async def scenario() -> None:
        for script in (busy_script, long_tail_script, acknowledged_tail_script, only_head_script):
            first = Life(fast_path / script.__name__, Truth())
            await first.run(script)
            for instant in range(len(first.disk.events), 0, -3):
                with anyio.fail_after(100):
                    padding = LARGE * (instant % 2)
                    await cut_while_it_starts(fast_path, first, instant, instant, padding=padding)

    anyio.run(scenario)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.integers(1, 3), st.sampled_from([1, 60, 400, 1500, 6000]), st.integers(1, 5)
        ),
        st.tuples(st.just("cursor"), st.integers(1, 3)),
        st.tuples(st.just("trim"), st.integers(1, 3)),
        st.sampled_from([("turn",), ("sync",), ("collect",)]),
    ),
    max_size=40,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), lives=st.integers(1, 4), padding=st.sampled_from([0, 600, 3000, LARGE]))
def test_any_history_of_cuts_and_restarts_keeps_what_was_acknowledged(
    data: st.DataObject, lives: int, padding: int
) -> None:
    async def scenario(root: Path) -> None:
        truth, folder = Truth(), root / "0"
        for number in range(lives):
            steps = data.draw(STEPS)

            async def script(
                desk: Desk, syncer: SlowSyncer, steps: list[tuple[object, ...]] = steps, seed: int = number
            ) -> None:
                for step in steps:
                    match step:
                        case ("append", int(topic), int(size), int(count)):
                            try:
                                desk.append(topic, size=size, count=count, seed=seed)
                            except (Overloaded, DiskFull):
                                await settle()
                        case ("cursor", int(topic)):
                            desk.move_cursor(topic, 1, desk.truth.next(topic))
                        case ("trim", int(topic)):
                            desk.trim(topic, desk.truth.promised.get(topic, 0))
                        case ("turn",):
                            await settle()
                        case ("sync",):
                            syncer.finish()
                        case ("collect",):
                            desk.journal.collect(lambda topic: desk.ledger.starts.get(topic, 0))

            life = Life(folder, truth, padding=padding)
            await life.run(script)
            instant = data.draw(st.integers(0, len(life.disk.events)), label="instant")
            folder = root / str(number + 1)
            chance = data.draw(st.randoms(use_true_random=False), label="sectors")
            Remains(life.disk, instant).write_to(
                folder,
                lambda n, chance=chance: chance.choice((0, n, chance.randint(0, n))),
                sector_bytes=data.draw(st.sampled_from([512, 4096])),
            )
            truth = life.truth_at(instant)
        await recovered(folder, truth)

    async def timed() -> None:
        with (
            anyio.fail_after(60),
            tempfile.TemporaryDirectory(dir=MEMORY) as name,
        ):
            await scenario(Path(name))

    anyio.run(timed)
