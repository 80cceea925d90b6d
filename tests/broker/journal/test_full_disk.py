"""Room on the disk: some stays free, a start with little makes a small segment, and segments grow with use."""

from __future__ import annotations

import errno
from pathlib import Path

import anyio
import pytest
from pydanube_broker.journal import segments
from pydanube_core.errors import DiskFull, Overloaded

from tests.broker.journal.faulty import FaultyDisk
from tests.broker.journal.ledger import SEGMENT_BYTES, Desk
from tests.broker.journal.test_faults import append
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
LARGE = 256 * SEGMENT_BYTES  # four times the least that a start makes


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "RETRY_S", 0.001)


class SmallDisk(FaultyDisk):
    """Takes so many bytes in files that are made, and no more."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size_bytes = size
        self.made: dict[str, int] = {}
        self._paths: dict[int, str] = {}

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._paths[fd] = path.name
        self.made[path.name] = 0
        return fd

    def free_bytes(self, path: Path) -> int:
        return self.size_bytes - sum(self.made.values())

    def pwritev(self, fd, buffers, at):  # type: ignore[no-untyped-def]
        name = self._paths.get(fd)
        if name is not None:
            grown = max(0, at + sum(map(len, buffers)) - self.made[name])
            if grown > self.free_bytes(Path()):
                raise OSError(errno.ENOSPC, "the disk is full")
            self.made[name] += grown
        super().pwritev(fd, buffers, at)

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.made[new.name] = self.made.pop(old.name)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.made.pop(path.name, None)


async def test_publishes_stop_before_they_take_what_is_to_stay_free(fast_path: Path) -> None:
    disk = SmallDisk(12 * SEGMENT_BYTES)
    desk = Desk(fast_path / "j", disk=disk)
    desk.journal.keep_free(lambda: 5 * SEGMENT_BYTES)
    await desk.start()
    assert desk.journal.trouble() is None

    async def fill() -> None:
        while True:
            try:
                desk.append(1, size=2000)
            except Overloaded:
                await anyio.sleep(0.001)
            await desk.durable()

    with pytest.raises(DiskFull):
        await fill()
    assert disk.free_bytes(fast_path) >= 5 * SEGMENT_BYTES
    trouble = desk.journal.trouble()
    assert trouble is not None
    assert trouble[0] == "DISK_GUARD"
    for position in range(10):  # cursors have the reserve
        desk.move_cursor(1, 1, position)
    assert await desk.durable()
    disk.size_bytes *= 2
    assert await append(desk, 1, 2000)
    with anyio.fail_after(30):
        await until(lambda: desk.journal.trouble() is None)
    await desk.journal.close()


async def test_a_start_on_a_full_disk_makes_do_with_a_small_segment(fast_path: Path) -> None:
    disk = SmallDisk(16 * LARGE)
    desk = Desk(fast_path / "j", disk=disk, segment_bytes=LARGE)
    await desk.start()
    assert await append(desk, 1, 2000)
    await desk.journal.close()
    for path in (fast_path / "j").glob("*.journal"):
        if int(path.stem) > 0:  # somebody else took the room of what stood ready
            disk.unlink(path)
    disk.size_bytes = sum(disk.made.values()) + LARGE - 1
    for _ in range(3):
        again = Desk(fast_path / "j", desk.truth, disk=disk, segment_bytes=LARGE)
        await again.start()
        again.move_cursor(1, 1, 1)
        assert await again.durable()
        again.journal.abandon()
    disk.size_bytes *= 4
    healed = Desk(fast_path / "j", desk.truth, disk=disk, segment_bytes=LARGE)
    await healed.start()
    assert await append(healed, 1, 2000)
    await healed.journal.close()


async def test_a_start_with_room_for_one_segment_makes_it_and_later_ones_of_full_size(
    fast_path: Path,
) -> None:
    """The segment is there, although the room behind it is to stay free: nothing is refused, and nothing gets smaller."""
    disk = SmallDisk(2 * LARGE - 1)
    desk = Desk(fast_path / "j", disk=disk, segment_bytes=LARGE)
    desk.journal.keep_free(lambda: 1)
    await desk.start()
    disk.size_bytes *= 4
    with anyio.fail_after(30):
        await until(lambda: len(list((fast_path / "j").glob("*.journal"))) > 2)
    await desk.journal.close()
    assert {path.stat().st_size for path in (fast_path / "j").glob("*.journal")} == {LARGE}


async def test_segments_grow_with_the_journals_use_and_are_small_again_after_a_start(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with little to store took five files of 64 MiB."""
    monkeypatch.setattr(segments, "FIRST_SEGMENT_BYTES", SEGMENT_BYTES)

    def sizes() -> list[int]:
        return [path.stat().st_size for path in sorted((fast_path / "j").glob("*.journal"))]

    desk = Desk(fast_path / "j", segment_bytes=8 * SEGMENT_BYTES)
    await desk.start()
    await desk.rested()
    assert sizes() == [SEGMENT_BYTES] * (1 + segments.READY_TARGET)
    assert desk.journal.next_segment_bytes == SEGMENT_BYTES
    while desk.journal.statistics().segments < 8:
        assert await append(desk, 1, 2000)
    await desk.rested()
    found = sizes()
    assert found == sorted(found)
    assert {*found} == {SEGMENT_BYTES * times for times in (1, 2, 4, 8)}
    assert desk.journal.next_segment_bytes == 8 * SEGMENT_BYTES
    await desk.journal.close()

    again = Desk(fast_path / "j", desk.truth, segment_bytes=8 * SEGMENT_BYTES)
    await again.start()
    again.check()
    assert again.journal.next_segment_bytes == SEGMENT_BYTES
    assert await append(again, 1, 2000)
    await again.journal.close()


async def test_a_record_larger_than_the_first_segments_is_stored_and_survives_a_start(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits `segment_bytes`, and the segments that are ready are smaller."""
    monkeypatch.setattr(segments, "FIRST_SEGMENT_BYTES", SEGMENT_BYTES)
    size = 8 * SEGMENT_BYTES
    desk = Desk(fast_path / "j", segment_bytes=size)
    await desk.start()
    await desk.rested()
    with pytest.raises(Overloaded):
        desk.append(1, size=3 * SEGMENT_BYTES)
    assert await append(desk, 1, 3 * SEGMENT_BYTES)
    live = desk.journal.statistics().segments
    desk.journal.abandon()  # the record is behind the last mark
    for path in sorted((fast_path / "j").glob("*.journal"))[live:]:
        path.unlink()
    again = Desk(fast_path / "j", desk.truth, segment_bytes=size)
    await again.start()
    again.check()
    assert again.read_all(1)
    assert await append(again, 1, 2000)
    await again.journal.close()
