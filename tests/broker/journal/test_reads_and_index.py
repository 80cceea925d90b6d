"""Reads against what was appended, through the cache, the index of the active segment and the sidecars of old ones."""

from __future__ import annotations

import random
from array import array
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.journal.index import Run, SegmentIndex, load_sidecar, write_sidecar
from pydanube_core.batch import BROKER_PART_BYTES
from pydanube_core.errors import Overloaded

from tests.broker.journal.faulty import FaultyDisk
from tests.broker.journal.ledger import Desk
from tests.core.batches import steady

pytestmark = pytest.mark.anyio


async def fill(desk: Desk, *, steps: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(steps):
        while True:
            try:
                desk.append(
                    chance.choice((1, 1, 1, 2, 3)),
                    size=chance.choice((1, 30, 400, 6000)),
                    count=chance.choice((1, 2, 40)),
                    seed=seed,
                )
                break
            except Overloaded:
                await anyio.lowlevel.checkpoint()
    assert await desk.durable()


@pytest.fixture(params=["cached", "from files", "after a restart", "after a restart without sidecars"])
async def full(request: pytest.FixtureRequest, fast_path: Path) -> AsyncIterator[Desk]:
    """A journal of several segments in each of the states that a read may meet."""
    desk = Desk(fast_path / "j", cache_bytes=1 << 24 if request.param == "cached" else 1)
    await desk.start()
    await fill(desk, steps=60, seed=1)
    assert desk.journal.statistics().segments > 3
    if request.param.startswith("after"):
        desk.journal.abandon()
        if "without" in request.param:
            for path in desk.journal.folder.glob("*.index"):
                path.unlink()
        desk = Desk(fast_path / "j", desk.truth, cache_bytes=1)
        await desk.start()
        await fill(desk, steps=6, seed=2)
    yield desk
    await desk.journal.close()


async def test_every_read_gives_exactly_the_batches_from_the_right_one_on(full: Desk) -> None:
    journal = full.journal
    for topic, batches in full.truth.batches.items():
        last = batches[-1].end
        for offset in range(last + 2):
            for end, max_bytes in (
                (last, 1),
                (last, 3000),
                (last, 1 << 20),
                (offset + 1, 500),
                (last // 2, 9000),
            ):
                expected = [batch for batch in batches if batch.end > offset and batch.base < end]
                found = journal.read(topic, offset, end, max_bytes)
                if found is None:
                    found = journal.read_planned(journal.plan_read(topic, offset, end, max_bytes))()
                assert [(b.base, b.end, b.append_time_ms) for b in found] == [
                    (b.base, b.end, b.time_ms) for b in expected[: len(found)]
                ]
                assert bool(found) == bool(expected)
                assert sum(batch.stored_bytes for batch in found[:-1]) <= max_bytes
                if found and len(found) < len(expected):
                    more = len(expected[len(found)].data) + BROKER_PART_BYTES
                    assert sum(batch.stored_bytes for batch in found) + more > max_bytes
                for batch, written in zip(found, expected, strict=False):
                    assert b"".join(batch.buffers)[BROKER_PART_BYTES:] == written.data
                    assert batch.stored_bytes == BROKER_PART_BYTES + len(written.data)
    assert journal.read(99, 0, 10, 100) == []
    assert journal.plan_read(99, 0, 10, 100) == []


async def test_what_is_given_to_the_tier_is_whole_batches_of_about_as_many_bytes(full: Desk) -> None:
    for topic, batches in full.truth.batches.items():
        last = batches[-1].end
        sizes = [len(batch.data) + BROKER_PART_BYTES for batch in batches]
        for offset in (0, 1, last // 2, last - 1, last):
            for end, max_bytes in (
                (last, 1),
                (last, sizes[0]),
                (last, 3000),
                (last, 1 << 20),
                (last // 2, 9000),
            ):
                asked = [i for i, each in enumerate(batches) if each.end > offset and each.base < end]
                wanted: list[int] = []
                for i in asked:
                    if wanted and sum(sizes[each] for each in wanted) >= max_bytes:
                        break
                    wanted.append(i)
                found, until, total = full.journal.places(topic, offset, end, max_bytes)
                assert total == sum(sizes[i] for i in wanted)
                assert until == (batches[wanted[-1]].end if wanted else offset)
                bodies: list[bytes] = []
                for path, packed in found:
                    for place in array("Q", packed):
                        at = place >> 32
                        bodies.append(path.read_bytes()[at : at + (place & 0xFFFFFFFF)][BROKER_PART_BYTES:])
                assert bodies == [batches[i].data for i in wanted]


async def test_questions_about_a_topic_are_answered_over_all_segments(full: Desk) -> None:
    journal = full.journal
    for topic, batches in full.truth.batches.items():
        assert journal.first_offset(topic) == 0
        for offset in range(0, batches[-1].end + 2):
            behind = [batch for batch in batches if batch.end > offset]
            assert journal.time_at_offset(topic, offset) == (behind[0].time_ms if behind else None)
            assert journal.stored_bytes(topic, offset) == sum(
                len(batch.data) + BROKER_PART_BYTES for batch in behind
            )
        for time_ms in range(900, batches[-1].time_ms + 3, 1):
            later = [batch.base for batch in batches if batch.time_ms >= time_ms]
            assert journal.offset_at_time(topic, time_ms) == (later[0] if later else None)
    assert journal.first_offset(99) is None
    assert journal.offset_at_time(99, 0) is None
    assert journal.time_at_offset(99, 0) is None
    assert journal.stored_bytes(99) == 0


async def test_a_deleted_topic_is_forgotten_and_the_others_are_not(full: Desk) -> None:
    full.journal.drop_topic(1)
    assert full.journal.read(1, 0, 1000, 1 << 20) == []
    assert full.journal.first_offset(1) is None
    for topic in (2, 3):
        full.journal.cache.drop(topic)
        assert full.read_all(topic) == full.truth.batches[topic]


async def test_a_read_where_the_disk_has_to_be_asked_says_so_and_is_done_by_a_worker(fast_path: Path) -> None:
    class ColdDisk(FaultyDisk):
        def pread_cached(self, fd: int, count: int, at: int) -> bytes | None:
            return None

    with anyio.fail_after(20):
        disk = ColdDisk()
        desk = Desk(fast_path / "j", disk=disk, cache_bytes=1)
        await desk.start()
        await fill(desk, steps=10, seed=1)
        desk.journal.cache.drop(1)
        assert desk.journal.read(1, 0, 10_000, 5000) is None
        before = set(disk.open_fds)
        never_called = desk.journal.read_planned(desk.journal.plan_read(1, 0, 10_000, 5000))
        assert disk.open_fds == before, "a read that is given up before it runs holds nothing"
        del never_called
        assert desk.read_all(1) == desk.truth.batches[1]
        await desk.journal.close()
        assert disk.open_fds == set()


COLUMN = st.lists(
    st.tuples(
        st.integers(0, 2**62), st.integers(-(2**62), 2**62), st.integers(0, 2**31), st.integers(0, 2**32 - 1)
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(topics=st.dictionaries(st.integers(0, 2**64 - 1), COLUMN, max_size=5), bit=st.integers(min_value=0))
def test_sidecars_round_trip_and_no_flipped_bit_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, topics: dict[int, list[tuple[int, ...]]], bit: int
) -> None:
    index = SegmentIndex(4096)
    index.end_lsn = 9999
    for topic, rows in topics.items():
        for base, time_ms, position, size in rows:
            index.add(topic, base, base + 1, time_ms, position, size)
    path = tmp_path_factory.getbasetemp() / "x.index"
    write_sidecar(path, index.encode())
    loaded = load_sidecar(path, 4096)
    assert loaded is not None
    assert loaded.end_lsn == 9999
    entries, written = (
        {topic: [run.entry(i) for i in range(len(run))] for topic, run in each.runs.items()}
        for each in (loaded, index)
    )
    assert entries == written
    loaded.close()
    assert load_sidecar(path, 8192) is None, "of another segment"
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)
    assert load_sidecar(path, 4096) is None
    path.write_bytes(data[: bit % len(data)])
    assert load_sidecar(path, 4096) is None


async def test_segments_go_oldest_first_and_only_when_nobody_needs_them(fast_path: Path) -> None:
    with anyio.fail_after(30):
        desk = Desk(fast_path / "j")
        await desk.start()
        await fill(desk, steps=60, seed=3)
        journal = desk.journal
        segments = journal.statistics().segments
        assert journal.collect(lambda topic: 0) == 0
        # one offset of one topic in the third segment holds up everything behind it
        third = journal.sealed()[2]
        topic, run = next(iter(third[2].items()))
        keep: Callable[[int], int | None] = lambda t: run.first if t == topic else 1 << 60  # noqa: E731
        removed = journal.collect(keep)
        assert 0 < removed <= 2
        assert journal.statistics().segments == segments - removed
        assert journal.sealed()[0][0] <= third[0]
        found = journal.read(topic, run.first, run.end, 1)
        assert found
        assert found[0].base == run.first
        gone = journal.collect(lambda t: None)
        assert gone == segments - removed - 1, "the one that is written stays"
        assert [p.name for p in sorted(journal.folder.glob("*.index"))] == []
        assert journal.first_offset(topic) is None or journal.statistics().segments == 1
        await journal.close()


async def test_nothing_is_removed_before_the_newest_head_is_durable(fast_path: Path) -> None:
    with anyio.fail_after(30):
        from tests.broker.journal.powercut import RecordingDisk, SlowSyncer

        disk = RecordingDisk(fast_path / "j")
        syncer = SlowSyncer(disk)
        desk = Desk(fast_path / "j", disk=disk, syncer=syncer)
        await desk.start()
        await desk.rested()
        syncer.by_itself = False
        while desk.journal.statistics().segments < 2:
            desk.append(1, size=3000)
            await anyio.lowlevel.checkpoint()
        assert desk.journal.collect(lambda topic: None) == 0
        syncer.finish()
        syncer.finish()
        assert desk.journal.collect(lambda topic: None) == 1
        desk.journal.abandon()


async def test_a_segment_that_cannot_be_removed_holds_up_the_later_ones(fast_path: Path) -> None:
    """A hole between segments would look like a lost file to the next start."""
    with anyio.fail_after(30):
        disk = FaultyDisk()
        desk = Desk(fast_path / "j", disk=disk)
        await desk.start()
        await fill(desk, steps=40, seed=4)
        files = sorted(path.name for path in desk.journal.folder.glob("*.journal"))
        disk.fail_on("unlink", 0)
        removed = desk.journal.collect(lambda topic: None)
        assert removed > 2
        assert sorted(path.name for path in desk.journal.folder.glob("*.journal")) == files
        disk.heal()
        desk.journal.collect(lambda topic: None)
        assert sorted(path.name for path in desk.journal.folder.glob("*.journal")) == files[removed:]
        await desk.journal.close()


@steady
@given(
    times=st.lists(st.one_of(st.integers(-50, 50), st.integers(-(2**62), 2**62)), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_append_times_never_decrease_however_the_batches_of_a_run_come(
    times: list[int], cuts: list[int]
) -> None:
    """A clock that was ahead is lowered to what came after it, so that a search by time finds the first batch."""
    one_by_one, in_columns, mixed = (Run.empty(4096) for _ in range(3))
    rows = [(3 * i, 3 * i + 2, time_ms, 100 * i, 50 + i) for i, time_ms in enumerate(times)]
    for row in rows:
        one_by_one.append(*row)
    edges = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    for number, (start, end) in enumerate(pairwise(edges)):
        part = rows[start:end]
        columns = (
            np.array([row[0] for row in part], dtype=np.uint64),
            np.array([row[1] for row in part], dtype=np.uint64),
            np.array([row[2] for row in part], dtype=np.int64),
            np.array([row[3] << 32 | row[4] for row in part], dtype=np.uint64),
        )
        in_columns.extend(*columns)
        if number % 2:
            mixed.extend(*columns)
        else:
            for row in part:
                mixed.append(*row)
    lowered = [min(times[i:]) for i in range(len(times))]
    for run in (one_by_one, in_columns, mixed):
        found = [run.entry(i) for i in range(len(run))]
        assert [each.append_time_ms for each in found] == lowered
        assert [(each.base, each.end, each.position, each.body_bytes) for each in found] == [
            (base, end, position, size) for base, end, _, position, size in rows
        ]
        assert {each.segment for each in found} <= {4096}
        for time_ms in {*times, 0}:
            expected = next((i for i, each in enumerate(lowered) if each >= time_ms), len(run))
            assert run.at_time(time_ms) == expected
        if times:
            assert (run.first, run.end, run.last_time_ms) == (0, rows[-1][1], lowered[-1])
            assert run.body_bytes == sum(row[4] for row in rows)
        for at, (base, end, *_) in enumerate(rows):
            assert [run.at_or_after(offset) for offset in (base, end - 1, end)] == [at, at, at + 1]
            rest = run.since(100 * at)
            assert rest is not None
            assert [rest.entry(i) for i in range(len(rest))] == found[at:]
        assert run.since(100 * len(rows)) is None
