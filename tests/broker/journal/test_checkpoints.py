"""State of any size: it never stops publishing, it is written no more often than it costs, and a start finds it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pydanube_broker.journal import JournalOptions
from pydanube_broker.journal.checkpoint import Checkpoints, checkpoint_path
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.file_worker import FileWorker
from pydanube_broker.journal.records import FILE_HEADER_BYTES
from pydanube_core.errors import CorruptJournal, InvalidArgument

from tests.broker.journal.faulty import FaultyDisk
from tests.broker.journal.ledger import SEGMENT_BYTES, Desk
from tests.broker.journal.test_faults import append

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def heads(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.head"))


async def fill(desk: Desk, segments: int) -> None:
    end = desk.journal.next_lsn + segments * SEGMENT_BYTES
    while desk.journal.next_lsn < end:
        assert await append(desk, 1, 2000)


@pytest.mark.parametrize("padding", [SEGMENT_BYTES, 10 * SEGMENT_BYTES, 300 * SEGMENT_BYTES])
async def test_state_larger_than_a_segment_stops_neither_publishing_nor_a_start(
    fast_path: Path, padding: int
) -> None:
    truth = None
    for _ in range(3):
        desk = Desk(fast_path / "j", truth, padding=padding)
        await desk.start()
        await fill(desk, 4)
        await desk.journal.close()
        truth = desk.truth
    last = Desk(fast_path / "j", truth)
    await last.start()
    assert last.ledger.restored == 1
    await last.journal.close()


async def test_large_state_is_written_once_for_as_many_bytes_of_journal(fast_path: Path) -> None:
    disk = FaultyDisk()
    desk = Desk(fast_path / "j", disk=disk, padding=5 * SEGMENT_BYTES)
    await desk.start()
    made = disk.calls["create"]
    segments = desk.journal.statistics().segments
    await fill(desk, 30)
    await desk.rested()
    written = disk.calls["create"] - made - (desk.journal.statistics().segments - segments)
    assert 4 <= written <= 6
    await desk.journal.close()


async def test_segments_and_heads_go_once_a_newer_head_is_durable(fast_path: Path) -> None:
    desk = Desk(fast_path / "j", padding=3 * SEGMENT_BYTES)
    await desk.start()
    await fill(desk, 12)
    desk.trim(1, desk.truth.next(1))
    desk.journal.collect(lambda topic: desk.ledger.starts.get(topic, 0))
    await fill(desk, 1)
    assert desk.journal.statistics().segments <= 6
    assert len(heads(fast_path / "j")) == 1
    await desk.journal.close()
    again = Desk(fast_path / "j", desk.truth)
    await again.start()
    await again.journal.close()


async def test_a_head_that_could_not_be_written_is_tried_again_and_nothing_older_goes(
    fast_path: Path,
) -> None:
    disk = FaultyDisk()
    desk = Desk(fast_path / "j", disk=disk, padding=2 * SEGMENT_BYTES)
    await desk.start()
    await desk.rested()
    disk.fail_on("rename", 0, lasting=True)  # of new segments and of heads
    await fill(desk, 1)
    disk.heal()
    await fill(desk, 4)
    desk.journal.collect(lambda topic: desk.truth.next(topic))
    await desk.journal.close()
    desk.ledger.starts[1] = desk.truth.next(1)
    again = Desk(fast_path / "j", padding=2 * SEGMENT_BYTES)
    again.journal.recover()
    assert again.ledger.next == desk.ledger.next
    again.journal.abandon()


@pytest.mark.parametrize("harm", ["removed", "damaged", "another's"])
async def test_a_head_that_is_gone_and_cannot_be_made_again_is_named(fast_path: Path, harm: str) -> None:
    folder = fast_path / "j"
    desk = Desk(folder, padding=2 * SEGMENT_BYTES)
    await desk.start()
    await fill(desk, 6)
    await desk.journal.close()
    again = Desk(folder, desk.truth, padding=2 * SEGMENT_BYTES)
    await again.start()
    await again.journal.close()
    (head,) = heads(folder)
    kept = head.read_bytes()
    match harm:
        case "removed":
            head.unlink()
        case "damaged":
            head.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        case _:
            head.write_bytes(kept[:24] + bytes(8) + kept[32:])
    refused = Desk(folder, desk.truth)
    with pytest.raises(CorruptJournal, match=head.name):
        refused.journal.recover()
    refused.journal.abandon()
    head.write_bytes(kept)
    restored = Desk(folder, desk.truth)
    await restored.start()
    await restored.journal.close()


async def test_a_head_of_another_start_under_the_same_name_is_not_taken(fast_path: Path) -> None:
    """A start that was killed left a head for a segment that another start then made its own."""
    folder = fast_path / "j"
    desk = Desk(folder, padding=2 * SEGMENT_BYTES)
    await desk.start()
    await append(desk, 1, 2000)
    base = desk.journal._active.base  # type: ignore[union-attr]
    path = checkpoint_path(folder, base + SEGMENT_BYTES)
    path.write_bytes(b"x" * 100)
    await fill(desk, 6)
    await desk.journal.close()
    again = Desk(folder, desk.truth)
    await again.start()
    await again.journal.close()


def test_segments_that_could_not_be_read_back_are_refused() -> None:
    for size in (2 << 30, (1 << 30) + 512):
        with pytest.raises(InvalidArgument, match="segment_bytes"):
            JournalOptions(segment_bytes=size)
    JournalOptions(segment_bytes=1 << 30)


async def test_ready_segments_of_another_size_are_not_gone_on_with(fast_path: Path) -> None:
    """A larger `segment_bytes` helps at once, and not after the segments that stand ready are used up."""
    desk = Desk(fast_path / "j")
    await desk.start()
    await desk.rested()
    await append(desk, 1, 2000)
    await desk.journal.close()
    again = Desk(fast_path / "j", desk.truth, segment_bytes=8 * SEGMENT_BYTES)
    await again.start()
    assert await append(again, 1, 3 * SEGMENT_BYTES)
    await again.journal.close()


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_gigabyte_of_state_recovers(tmp_path: Path) -> None:
    padding = 1 << 30
    with anyio.fail_after(900):
        desk = Desk(tmp_path / "j", padding=padding, segment_bytes=64 << 20)
        await desk.start()
        assert await append(desk, 1, 2000)
        await desk.journal.close()
        again = Desk(tmp_path / "j", desk.truth, padding=padding, segment_bytes=64 << 20)
        await again.start()
        assert again.ledger.next == {1: 3}
        await again.journal.close()
        (head,) = (tmp_path / "j").glob("*.head")
        assert head.stat().st_size > padding
        last = Desk(tmp_path / "j", desk.truth, segment_bytes=64 << 20)
        await last.start()
        await last.journal.close()


class Jobs:
    """A worker whose jobs the test carries out, one at a time."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Callable[[], Any], Callable[[Future[Any]], None]]] = []

    def run(self, work: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        self._jobs.append((work, then))

    def carry_out(self) -> None:
        work, then = self._jobs.pop(0)
        done: Future[Any] = Future()
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)
        then(done)

    def carry_out_all(self) -> None:
        while self._jobs:
            self.carry_out()


async def test_no_head_goes_before_a_newer_one_is_whole_and_its_segment_is_durable(tmp_path: Path) -> None:
    jobs = Jobs()
    heads_kept = Checkpoints(tmp_path, Disk(), cast(FileWorker, jobs))
    old, new = 1 << 20, 2 << 20

    def there() -> list[int]:
        return [int(path.stem) for path in heads(tmp_path)]

    heads_kept.write(old, 1, [b"old"])
    jobs.carry_out_all()
    heads_kept.advance(old + FILE_HEADER_BYTES + 1)
    jobs.carry_out_all()
    assert (heads_kept.base, there()) == (old, [old])

    heads_kept.write(new, 2, [b"new"])
    heads_kept.advance(new + (1 << 20))  # its file is not written yet
    assert heads_kept.base == old
    jobs.carry_out()
    for durable in (new, new + FILE_HEADER_BYTES):  # its first record is not durable yet
        heads_kept.advance(durable)
        jobs.carry_out_all()
        assert (heads_kept.base, there()) == (old, [old, new])
    heads_kept.advance(new + FILE_HEADER_BYTES + 1)
    jobs.carry_out_all()
    assert (heads_kept.base, there()) == (new, [new])


async def test_a_head_that_could_not_be_written_keeps_the_older_one(tmp_path: Path) -> None:
    jobs, disk = Jobs(), FaultyDisk()
    heads_kept = Checkpoints(tmp_path, disk, cast(FileWorker, jobs))
    old, new = 1 << 20, 2 << 20
    heads_kept.write(old, 1, [b"old"])
    jobs.carry_out_all()
    heads_kept.advance(old + FILE_HEADER_BYTES + 1)
    disk.fail_on("rename", 0, lasting=True)
    heads_kept.write(new, 2, [b"new"])
    jobs.carry_out_all()
    heads_kept.advance(new + (1 << 20))
    jobs.carry_out_all()
    assert (heads_kept.base, [int(path.stem) for path in heads(tmp_path)]) == (old, [old])
    assert heads_kept.due(new, new - old), "the next segment tries again"
