"""The writer: what one sync serves, in what order it is reported, and what it leaves open."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.journal import RecordKind, segments
from pydanube_broker.journal import journal as journal_module
from pydanube_broker.journal.disk import Buffer
from pydanube_broker.journal.group_commit import GROUP_BYTES, IOV_MAX, SLICE_BYTES, GroupCommit
from pydanube_broker.journal.helper import InlineSyncer, SyncDone
from pydanube_core.errors import Overloaded

from tests.broker.journal.faulty import FaultyDisk
from tests.broker.journal.ledger import CURSOR, Desk, turns_until
from tests.broker.journal.powercut import RecordingDisk, SlowSyncer
from tests.core.batches import steady

pytestmark = pytest.mark.anyio


class WatchingDisk(FaultyDisk):
    """Notes the size of each write and how many descriptors were open at the most."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []  # (pieces, bytes)
        self.most_open = 0

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> None:
        assert len(buffers) <= 1024, "the kernel refuses more"
        self.writes.append((len(buffers), sum(map(len, buffers))))
        self.most_open = max(self.most_open, len(self.open_fds))
        super().pwritev(fd, buffers, at)


async def test_records_of_one_turn_share_one_sync(fast_path: Path) -> None:
    with anyio.fail_after(20):
        desk = Desk(fast_path / "j", segment_bytes=1 << 20)
        await desk.start()
        before = desk.journal.statistics().syncs
        for topic in range(50):
            desk.append(topic, size=100)
        assert await desk.durable()
        assert desk.journal.statistics().syncs == before + 1
        await desk.journal.close()


async def test_whoever_asks_is_told_how_long_each_sync_took(fast_path: Path) -> None:
    with anyio.fail_after(20):
        desk = Desk(fast_path / "j", segment_bytes=1 << 20)
        told: list[float] = []
        desk.journal.when_synced(lambda seconds, _: told.append(seconds))
        await desk.start()
        desk.append(1, size=10)
        assert await desk.durable()
        assert len(told) == desk.journal.statistics().syncs >= 2  # what the start needs, and the record's
        assert tuple(told) == desk.journal.statistics().fsync_s
        await desk.journal.close()


async def test_records_that_come_during_a_sync_share_the_next(fast_path: Path) -> None:
    with anyio.fail_after(20):
        disk = RecordingDisk(fast_path / "j")
        syncer = SlowSyncer(disk)
        desk = Desk(fast_path / "j", disk=disk, syncer=syncer, segment_bytes=1 << 20)
        await desk.start()
        syncer.by_itself = False
        before = desk.journal.statistics().syncs
        desk.append(1, size=10)
        await anyio.lowlevel.checkpoint()
        for topic in range(2, 30):
            desk.append(topic, size=10)
            await anyio.lowlevel.checkpoint()
        assert desk.truth.promised == {}
        syncer.finish()
        assert desk.truth.promised == {1: 3}, "only what was written when the sync was asked for"
        syncer.finish()
        assert set(desk.truth.promised) == set(range(1, 30))
        assert desk.journal.statistics().syncs == before + 2
        desk.journal.abandon()


async def test_durable_is_reported_in_order_and_never_beyond_what_was_written(fast_path: Path) -> None:
    with anyio.fail_after(20):
        desk = Desk(fast_path / "j")
        await desk.start()
        for step in range(60):
            while True:
                try:
                    desk.append(step % 3, size=step * 20)
                    break
                except Overloaded:
                    await anyio.lowlevel.checkpoint()
            if step % 7 == 0:
                await anyio.lowlevel.checkpoint()
        assert await desk.durable()
        seen = desk.ledger.durable_lsns
        assert seen == sorted(set(seen))
        assert seen[-1] == desk.journal.next_lsn
        await desk.journal.close()


async def test_a_group_of_more_pieces_than_the_kernel_takes_is_written_in_order(fast_path: Path) -> None:
    with anyio.fail_after(30):
        disk = WatchingDisk()
        desk = Desk(fast_path / "j", disk=disk, segment_bytes=4 << 20)
        await desk.start()
        for _ in range(IOV_MAX):
            desk.append(1, size=1, count=1)
        desk.journal.append(RecordKind.CURSOR, 1, [CURSOR.pack(7, 9), *[b"x"] * (3 * IOV_MAX)])
        assert await desk.durable()
        assert max(pieces for pieces, _ in disk.writes) > IOV_MAX / 2
        await desk.journal.close()
        again = Desk(fast_path / "j", desk.truth, cache_bytes=1)
        await again.start()
        assert again.ledger.cursors["1/7"] == 9
        assert max(header.body_bytes for header in again.ledger.replayed) == CURSOR.size + 3 * IOV_MAX
        assert len(again.read_all(1)) == IOV_MAX
        await again.journal.close()


async def test_more_than_a_group_is_written_in_slices_and_synced_in_parts(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst must not hold the loop for its whole length, nor one sync grow without bound."""
    monkeypatch.setattr(segments, "FIRST_SEGMENT_BYTES", 64 << 20)  # no segment is made meanwhile
    with anyio.fail_after(30):
        disk = WatchingDisk()
        desk = Desk(fast_path / "j", disk=disk, segment_bytes=64 << 20)
        await desk.start()
        await desk.rested()
        disk.writes.clear()
        syncs = desk.journal.statistics().syncs
        for _ in range(5):
            for _ in range(10):
                desk.append(1, size=500_000, count=1)
        assert await desk.durable()
        assert sum(size for _, size in disk.writes) > 2 * GROUP_BYTES
        assert max(size for _, size in disk.writes) < SLICE_BYTES + 600_000
        assert desk.journal.statistics().syncs - syncs > 2
        desk.journal.abandon()
        again = Desk(fast_path / "j", desk.truth, segment_bytes=64 << 20)
        await again.start()
        again.journal.abandon()


class BusyDisk(WatchingDisk):
    """What `SlowSyncer` needs of a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[object] = []

    def finish_sync(self, fd: int, asked: int) -> None:
        assert fd in self.open_fds


async def test_descriptors_of_full_segments_are_closed_under_constant_load(fast_path: Path) -> None:
    """They used to be closed only when no sync was in flight, which under load is never."""
    with anyio.fail_after(30):
        disk = BusyDisk()
        syncer = SlowSyncer(disk)
        desk = Desk(fast_path / "j", disk=disk, syncer=syncer)
        await desk.start()
        syncer.by_itself = False
        while desk.journal.statistics().segments < 25:
            with contextlib.suppress(Overloaded):
                desk.append(1, size=3000)
                await anyio.lowlevel.checkpoint()
                desk.append(1, size=3000)
            await anyio.lowlevel.checkpoint()
            syncer.finish()  # the next sync is asked for before this one is acknowledged
        assert disk.most_open < 8
        syncer.by_itself = True
        syncer.finish()
        await desk.journal.close()
        assert disk.open_fds == set()


async def test_every_descriptor_is_closed_once(fast_path: Path) -> None:
    with anyio.fail_after(30):
        for clean in (True, False):
            disk = WatchingDisk()
            desk = Desk(fast_path / str(clean), disk=disk, cache_bytes=1)
            await desk.start()
            for step in range(30):
                while True:
                    try:
                        desk.append(step % 3, size=900)
                        break
                    except Overloaded:
                        await anyio.lowlevel.checkpoint()
            assert await desk.durable()
            for topic in range(3):
                desk.read_all(topic)
            if clean:
                await desk.journal.close()
            else:
                desk.append(1, size=900)
                desk.journal.abandon()
            assert disk.open_fds == set()


async def test_a_mark_proves_the_last_group_after_an_idle_while(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(30):
        for idle in (True, False):
            monkeypatch.setattr(journal_module, "MARK_AFTER_S", 0.01 if idle else 1000.0)
            folder = fast_path / str(idle)
            desk = Desk(folder)
            await desk.start()
            desk.append(1)
            assert await desk.durable()
            end = desk.journal.next_lsn
            if idle:
                await turns_until(lambda end=end, desk=desk: desk.journal.durable_lsn > end)
            desk.journal.abandon()
            again = Desk(folder, desk.truth)
            recovered = again.journal.recover()
            assert len(recovered.tail) == (0 if idle else 1)
            again.journal.abandon()


async def test_a_clean_stop_leaves_nothing_to_copy(fast_path: Path) -> None:
    with anyio.fail_after(30):
        desk = Desk(fast_path / "j")
        await desk.start()
        for _ in range(8):
            desk.append(1)
            desk.move_cursor(1, 1, 3)
        await desk.journal.close()
        assert desk.waiting == 0, "closing waits for what was appended"
        again = Desk(fast_path / "j", desk.truth)
        recovered = again.journal.recover()
        assert recovered.tail == []
        assert recovered.torn_bytes == 0
        assert len(again.ledger.replayed) == 16
        await again.journal.begin()
        again.check()
        await again.journal.close()


async def test_the_marks_of_a_start_and_a_stop_leave_room_for_the_end_mark(fast_path: Path) -> None:
    """A tail that fills the new segment to the last byte used to push the end mark into the next one."""
    with anyio.fail_after(60):
        for size in range(15_860, 15_960, 8):
            folder = fast_path / str(size)
            desk = Desk(folder)
            await desk.start()
            desk.journal.abandon()
            desk = Desk(folder, desk.truth)
            await desk.start()
            await desk.rested()
            desk.append(1, size=size, count=1)
            assert await desk.durable()
            desk.journal.abandon()
            for _ in range(2):
                again = Desk(folder, desk.truth)
                await again.start()
                await again.rested()
                again.append(1, size=2000)
                assert await again.durable()
                await again.journal.close()


async def test_a_sync_that_fails_is_not_asked_for_again(fast_path: Path) -> None:
    with anyio.fail_after(20):
        disk = WatchingDisk()
        desk = Desk(fast_path / "j", disk=disk, syncer=InlineSyncer(disk))
        await desk.start()
        await desk.rested()
        disk.fail_on("datasync", 0)
        desk.append(1)
        assert not await desk.durable()
        syncs = disk.calls["datasync"]
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        await desk.journal.close()
        assert disk.calls["datasync"] == syncs
        assert desk.truth.promised == {}


class HeldSyncer:
    """Notes the syncs that were requested, and completes none."""

    def __init__(self) -> None:
        self.done: SyncDone = lambda lsn, error, seconds, waited_s: None
        self.asked: list[int] = []

    def open(self, slot: int, fd: int) -> None: ...

    def forget(self, slot: int) -> None: ...

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        self.asked.append(lsn)

    def close(self) -> None: ...


async def test_a_writer_begins_with_all_durable_below_the_address_of_its_start(tmp_path: Path) -> None:
    disk, syncer, durable = FaultyDisk(), HeldSyncer(), list[int]()
    failed = list[OSError]()
    writer = GroupCommit(disk, syncer, on_durable=durable.append, on_failed=failed.append)
    writer.start(4096)
    assert (writer.written, writer.durable) == (4096, 4096)
    writer.switch(disk.create(tmp_path / "segment"), 4096)
    writer.put(4096, [b"record.."], 8)
    writer.write_now()
    assert (writer.written, writer.durable, syncer.asked) == (4104, 4096, [4104])
    syncer.done(4104, None, 0.001, 0.0)
    assert (writer.durable, durable) == (4104, [4104])
    writer.close()


async def test_records_of_one_turn_are_one_write_and_are_reported_as_written_once(tmp_path: Path) -> None:
    """A copy of the journal follows these reports: one for each record would cost it a look each."""
    disk, syncer, written = WatchingDisk(), HeldSyncer(), list[int]()
    writer = GroupCommit(disk, syncer, on_durable=lambda lsn: None, on_failed=lambda error: None)
    writer.on_written = written.append
    writer.start(0)
    writer.switch(disk.create(tmp_path / "segment"), 0)
    for turn in range(1, 4):
        for record in range(5):
            writer.put((turn - 1) * 40 + record * 8, [b"record.."], 8)
        assert written == [(done + 1) * 40 for done in range(turn - 1)], (
            "nothing is written before the turn ends"
        )
        await turns_until(lambda: writer.written >= turn * 40)  # noqa: B023 - it is over before the next turn
        await anyio.lowlevel.checkpoint()
        assert written == [(done + 1) * 40 for done in range(turn)]
        assert disk.writes == [(5, 40)] * turn
    assert syncer.asked == [40], "one sync at a time"
    writer.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["turn", "now", "synced", "switch"]), st.just(0)),
    ),
    max_size=40,
)


@steady
@given(steps=STEPS, fails_at=st.none() | st.integers(0, 12), in_sync=st.booleans())
def test_any_order_of_records_turns_and_syncs_is_durable_as_written_and_stops_at_the_first_failure(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    fails_at: int | None,
    in_sync: bool,
) -> None:
    folder = tmp_path_factory.mktemp("writer")

    async def main() -> None:
        disk, syncer = WatchingDisk(), HeldSyncer()
        if fails_at is not None and not in_sync:
            disk.fail_on("pwritev", fails_at)
        durable, failed = list[int](), list[OSError]()
        writer = GroupCommit(disk, syncer, on_durable=durable.append, on_failed=failed.append)
        writer.start(0)
        files = [folder / "0"]
        expected: dict[Path, bytes] = {files[0]: b""}
        writer.switch(disk.create(files[0]), 0)
        end = asked = synced = 0
        for name, length in steps:
            match name:
                case "put":
                    record = bytes([1 + end // 8 % 255]) * length
                    writer.put(end, [record[:3], record[3:]], length)
                    padded = record + bytes(-length % 8)
                    expected[files[-1]] += padded
                    end += len(padded)
                case "now":
                    writer.write_now()
                    assert failed or writer.written == end
                case "turn":
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
                    assert failed or writer.written == end
                case "switch":
                    files.append(folder / str(len(files)))
                    expected[files[-1]] = b""
                    writer.switch(disk.create(files[-1]), end)
                case "synced" if len(syncer.asked) > asked:
                    asked += 1
                    error = OSError("rotten") if in_sync and asked - 1 == fails_at else None
                    before = list(durable)
                    was_failed = bool(failed)
                    syncer.done(syncer.asked[asked - 1], error, 0.0, 0.0)
                    if error is None and not was_failed:
                        synced = syncer.asked[asked - 1]
                        assert durable == [*before, synced]
                    else:
                        assert failed, "a failed sync is final"
                        assert durable == before
            assert len(syncer.asked) <= asked + 1, "one sync at a time"
            assert writer.durable == synced <= writer.written <= end
            assert syncer.asked == sorted(set(syncer.asked))
            assert failed or not syncer.asked or syncer.asked[-1] <= writer.written
        if not failed:
            writer.write_now()
            while len(syncer.asked) > asked and not (in_sync and asked == fails_at):
                asked += 1
                syncer.done(syncer.asked[asked - 1], None, 0.0, 0.0)
        if not failed and not (in_sync and asked == fails_at):
            assert {path: path.read_bytes() for path in files} == expected
            assert writer.durable == writer.written == end
            if expected[files[-1]]:
                assert len(disk.open_fds) == 1, "only the segment that is written is open"
        assert len(failed) <= 1
        writer.close()
        assert disk.open_fds == set()

    anyio.run(main)


async def test_a_writer_that_is_closed_twice_closes_each_segment_once(tmp_path: Path) -> None:
    """A descriptor that is closed twice may be another file's by then."""
    disk, syncer = FaultyDisk(), HeldSyncer()
    writer = GroupCommit(disk, syncer, on_durable=lambda lsn: None, on_failed=lambda error: None)
    for base in (0, 8):
        writer.switch(disk.create(tmp_path / str(base)), base)
        writer.put(base, [b"record.."], 8)
    assert len(disk.open_fds) == 2
    writer.close()
    writer.close()
    assert disk.open_fds == set()
