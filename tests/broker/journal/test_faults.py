"""Each call to the disk fails once: what was acknowledged is there after a restart, and nothing else is promised."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.journal import RecordKind, segments
from pydanube_broker.journal.checkpoint import CHECKPOINT_BODY
from pydanube_broker.journal.records import FILE_HEADER_BYTES, HEADER_BYTES, record_bytes
from pydanube_core.batch import BROKER_PART_BYTES, encode_batch
from pydanube_core.errors import (
    ClusterError,
    CorruptJournal,
    DiskFull,
    JournalReadOnly,
    LimitReached,
    Overloaded,
    Unavailable,
)

from tests.broker.journal.faulty import FaultyDisk
from tests.broker.journal.ledger import CURSOR, SEGMENT_BYTES, Desk, Truth

CALLS = (
    "open_rw",
    "open_ro",
    "create",
    "pwritev",
    "pread",
    "pread_cached",
    "datasync",
    "sync_dir",
    "rename",
    "unlink",
)
RETRYABLE = (DiskFull, Overloaded, Unavailable)


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "RETRY_S", 0.0)


async def append(desk: Desk, topic: int, size: int) -> bool:
    """Append and wait for the promise; False where the journal refused, which it may only do in the known ways."""
    for _ in range(30):
        try:
            desk.append(topic, size=size)
            return await desk.durable()
        except RETRYABLE:
            await anyio.sleep(0.001)
        except JournalReadOnly:
            return False
    raise AssertionError("it was refused for too long")


async def life(desk: Desk) -> list[ClusterError]:
    """Start, fill three segments, read everything back from the files, give up the oldest, and stop."""
    errors: list[ClusterError] = []
    try:
        await desk.start()
        for step in range(12):
            await append(desk, 1 + step % 2, (300, 2600, 4100)[step % 3])
            if step == 6:
                desk.trim(1, desk.truth.promised.get(1, 0))
                desk.trim(2, desk.truth.promised.get(2, 0))
        for topic in (1, 2):
            desk.journal.cache.drop(topic)
            try:
                desk.read_all(topic, start=desk.ledger.starts.get(topic, 0))
            except (CorruptJournal, Unavailable) as error:
                errors.append(error)
        desk.journal.collect(lambda topic: desk.ledger.starts.get(topic, 0))
    except (CorruptJournal, Unavailable, JournalReadOnly, DiskFull) as error:
        errors.append(error)
    finally:
        await desk.journal.close()
    return errors


async def first_life(folder: Path) -> Truth:
    desk = Desk(folder)
    await desk.start()
    for step in range(8):
        assert await append(desk, 1 + step % 2, 2500)
    desk.journal.abandon()
    return desk.truth


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_row_18_write_errors_are_reported(fast_path: Path, call: str, code: int) -> None:
    async def scenario() -> None:
        source = fast_path / "source"
        truth = await first_life(source)
        counting = FaultyDisk()
        shutil.copytree(source, fast_path / "count")
        assert await life(Desk(fast_path / "count", truth.copy(), disk=counting, cache_bytes=1)) == []
        total = counting.calls.get(call, -1) + 1
        assert total > 0
        for nth in range(0, total, 1 if total < 40 else 3):
            folder = fast_path / "failing"
            shutil.copytree(source, folder)
            disk = FaultyDisk(call, nth, code)
            desk = Desk(folder, truth.copy(), disk=disk, cache_bytes=1)
            with anyio.fail_after(20):
                errors = await life(desk)
            assert disk.failed == [call]
            assert disk.open_fds == set(), "every descriptor is closed, once"
            read_only = desk.journal.read_only
            if read_only is not None:
                assert call in ("pwritev", "datasync")
                assert read_only.details["outcome"] == "unknown"
                assert len(desk.ledger.failures) <= 1
            elif call in ("pread", "pread_cached", "open_ro") and errors:
                assert isinstance(errors[0], CorruptJournal if code == errno.EIO else Unavailable)
            with anyio.fail_after(20):  # the disk is well again
                again = Desk(folder, desk.truth)
                await again.start()
                assert await append(again, 1, 100)
                await again.journal.close()
            shutil.rmtree(folder)

    anyio.run(scenario)


@pytest.mark.anyio
@pytest.mark.parametrize("call", ["pwritev", "datasync"])
async def test_after_a_failed_write_or_sync_nothing_is_acknowledged_any_more(
    fast_path: Path, call: str
) -> None:
    with anyio.fail_after(20):
        disk = FaultyDisk()
        desk = Desk(fast_path / "j", disk=disk)
        await desk.start()
        assert await append(desk, 1, 100)
        await desk.rested()
        promised = dict(desk.truth.promised)
        disk.fail_on(call, 0)
        desk.append(1, size=100)
        desk.append(2, size=100)
        assert not await desk.durable()
        disk.heal()
        for _ in range(5):
            with pytest.raises(JournalReadOnly):
                desk.append(1, size=10)
            with pytest.raises(JournalReadOnly):
                desk.journal.append(RecordKind.CURSOR, 1, [CURSOR.pack(1, 1)])
            await anyio.lowlevel.checkpoint()
        assert [error.details["outcome"] for error in desk.ledger.failures] == ["unknown"]
        assert desk.truth.promised == promised
        assert desk.journal.statistics().read_only
        syncs = disk.calls["datasync"]
        await desk.journal.close()
        assert disk.calls["datasync"] == syncs, "closing does not ask again"


@pytest.mark.anyio
async def test_a_full_disk_refuses_publishes_before_an_offset_and_clears_itself(fast_path: Path) -> None:
    with anyio.fail_after(20):
        disk = FaultyDisk()
        desk = Desk(fast_path / "j", disk=disk)
        await desk.start()
        disk.fail_on("create", 0, errno.ENOSPC, lasting=True)
        refused: DiskFull | None = None
        for _ in range(60):
            try:
                desk.append(1, size=2000)
            except DiskFull as error:
                refused = error
                break
            except Overloaded:
                await anyio.lowlevel.checkpoint()
            assert await desk.durable()
        assert refused is not None
        assert "no space left" in refused.message
        assert refused.details["needed_bytes"] == SEGMENT_BYTES
        assert refused.retry_after_ms is not None
        offered = desk.truth.next(1)
        # the reserve is for what frees space and for what consumers have done
        before = desk.journal.statistics()
        while desk.journal.statistics().segments == before.segments:
            desk.move_cursor(1, 1, desk.truth.next(1))
            desk.trim(1, 3)
            assert await desk.durable()
        assert desk.journal.statistics().ready_segments == 0
        with pytest.raises(DiskFull):
            desk.append(1, size=1)
        assert desk.truth.next(1) == offered
        disk.heal()
        assert await append(desk, 1, 5000)
        assert desk.truth.batches[1][-1].base == offered, "no offset was used up by a refusal"
        await desk.journal.close()
        again = Desk(fast_path / "j", desk.truth)
        await again.start()
        await again.journal.close()


@pytest.mark.anyio
async def test_only_a_full_disk_is_called_full(fast_path: Path) -> None:
    with anyio.fail_after(20):
        disk = FaultyDisk()
        desk = Desk(fast_path / "j", disk=disk)
        await desk.start()
        for error, expected in (
            (errno.ENOENT, Unavailable),
            (errno.EDQUOT, DiskFull),
            (errno.EROFS, Unavailable),
        ):
            disk.fail_on("create", 0, error, lasting=True)
            refused: ClusterError | None = None
            while refused is None:
                await anyio.lowlevel.checkpoint()
                try:
                    desk.append(1, size=2000)
                except Overloaded:
                    continue
                except ClusterError as problem:
                    refused = problem
            assert type(refused) is expected
            assert expected is DiskFull or f"[Errno {error}]" in refused.message
            assert refused.retry_after_ms is not None
            disk.heal()
            assert await append(desk, 1, 5000)
        await desk.journal.close()


@pytest.mark.anyio
async def test_records_of_topics_are_refused_too_when_the_reserve_is_used_up(fast_path: Path) -> None:
    with anyio.fail_after(20):
        disk = FaultyDisk()
        desk = Desk(fast_path / "j", disk=disk)
        await desk.start()
        disk.fail_on("create", 0, errno.ENOSPC, lasting=True)

        async def move_on() -> None:
            for position in range(5000):
                desk.move_cursor(1, 1, position)
                await anyio.lowlevel.checkpoint()

        with pytest.raises(DiskFull):
            await move_on()
        assert await desk.durable()
        disk.heal()
        await anyio.sleep(0.05)
        desk.move_cursor(1, 1, 6000)
        assert await desk.durable()
        await desk.journal.close()
        again = Desk(fast_path / "j", desk.truth)
        await again.start()
        assert again.ledger.cursors == {"1/1": 6000}
        await again.journal.close()


@pytest.mark.anyio
async def test_a_file_that_a_stale_helper_left_in_the_way_is_replaced(fast_path: Path) -> None:
    """The helper of a broker that was killed finishes its segment after the next broker has looked."""
    with anyio.fail_after(20):
        folder = fast_path / "j"
        desk = Desk(folder)
        desk.journal.recover()
        (folder / f"{SEGMENT_BYTES:020d}.journal").write_bytes(b"x" * SEGMENT_BYTES)
        await desk.journal.begin()
        for _ in range(20):
            assert await append(desk, 1, 2000)
        desk.journal.cache.drop(1)
        assert desk.read_all(1) == desk.truth.batches[1]
        await desk.journal.close()
        again = Desk(folder, desk.truth)
        await again.start()
        await again.journal.close()


@pytest.mark.anyio
async def test_a_record_that_no_segment_holds_is_refused_before_anything_is_written(fast_path: Path) -> None:
    with anyio.fail_after(20):
        desk = Desk(fast_path / "j")
        await desk.start()
        with pytest.raises(LimitReached, match="segment_bytes"):
            desk.append(1, size=SEGMENT_BYTES)
        assert await append(desk, 1, 2000)
        await desk.journal.close()
        again = Desk(fast_path / "j", desk.truth)
        await again.start()
        await again.journal.close()


@pytest.mark.anyio
async def test_a_record_that_fills_a_whole_segment_is_stored_and_a_longer_one_refused(
    fast_path: Path,
) -> None:
    with anyio.fail_after(20):
        desk = Desk(fast_path / "j")
        await desk.start()
        taken = FILE_HEADER_BYTES + record_bytes(CHECKPOINT_BODY.size) + record_bytes(0)  # and the end mark
        body_bytes = SEGMENT_BYTES - taken - HEADER_BYTES
        assert record_bytes(body_bytes) == SEGMENT_BYTES - taken
        room = body_bytes - BROKER_PART_BYTES - len(encode_batch([b""]))
        data = encode_batch([b"x" * room])
        assert len(data) == body_bytes - BROKER_PART_BYTES
        with pytest.raises(LimitReached, match="segment_bytes"):
            desk.append(1, data=encode_batch([b"x" * (room + 8)]), count=1)
        while True:
            try:
                desk.append(1, data=data, count=1)
                break
            except Overloaded:
                await anyio.lowlevel.checkpoint()
        assert await desk.durable()
        desk.journal.cache.drop(1)
        assert desk.read_all(1, max_bytes=SEGMENT_BYTES) == desk.truth.batches[1]
        await desk.journal.close()


@pytest.mark.anyio
async def test_a_journal_that_was_abandoned_reports_no_failure_to_its_owner(fast_path: Path) -> None:
    desk = Desk(fast_path / "j")
    await desk.start()
    desk.journal.abandon()
    desk.journal.refuse(Unavailable("another broker has replaced this one", retry_after_ms=1))
    assert desk.ledger.failures == []
