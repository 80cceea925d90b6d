"""Segment files: what retention sees of those that are full, and what a publish sees if the next one cannot be made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pydanube_broker.journal import Disk, segments
from pydanube_broker.journal.file_worker import FileWorker
from pydanube_broker.journal.segments import SegmentFiles
from pydanube_core.errors import ClusterError, DiskFull, Overloaded, Unavailable

from tests.broker.journal.ledger import SEGMENT_BYTES, Desk, InlinePreparer, SameThread
from tests.broker.journal.test_checkpoints import fill

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_sealed_segments_are_those_before_the_one_that_is_written_each_with_its_bytes(
    fast_path: Path,
) -> None:
    desk = Desk(fast_path / "j")
    await desk.start()
    assert desk.journal.sealed() == []
    await fill(desk, 4)
    sealed = desk.journal.sealed()
    assert len(sealed) >= 3
    bases = [base for base, _, _ in sealed]
    for (base, size, runs), following in zip(sealed, [*bases[1:], None], strict=True):
        assert 0 < size <= SEGMENT_BYTES
        assert following is None or base + size <= following
        assert set(runs) == {1}
    assert bases == sorted(bases)
    assert sum(size for _, size, _ in sealed) <= desk.journal.next_lsn - bases[0]
    ends = [runs[1].end for _, _, runs in sealed]
    assert ends == sorted(ends)
    await desk.journal.close()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, Unavailable),
        (errno.ENOENT, Unavailable),
        (errno.EIO, Unavailable),
    ],
)
@pytest.mark.parametrize("free", [12_345, None])
async def test_a_refusal_names_the_folder_and_its_room_and_asks_to_wait_for_the_next_attempt(
    fast_path: Path, number: int, kind: type[ClusterError], free: int | None
) -> None:
    class MeasuredDisk(Disk):
        def free_bytes(self, path: Path) -> int:
            assert path == fast_path
            if free is None:
                raise OSError(errno.EIO, "not measured")
            return free

    disk = MeasuredDisk()
    files = SegmentFiles(fast_path, disk, InlinePreparer(disk), FileWorker(SameThread()), 4 * SEGMENT_BYTES)
    refused = files.refusal(OSError(number, "no more"))
    assert type(refused) is kind
    assert refused.retry_after_ms == segments.RETRY_S * 1000 == 500
    assert refused.details["field"] == "data.dir"
    assert refused.details["value"] == str(fast_path)
    assert refused.details.get("free_bytes") == free
    assert refused.details.get("needed_bytes") == (4 * SEGMENT_BYTES if kind is DiskFull else None)
    assert str(fast_path) in refused.message
    if kind is DiskFull:
        assert ("an unknown number" if free is None else str(free)) in refused.message
    files.last_error = OSError(number, "no more")
    assert files.refusal() == refused or str(files.refusal()) == str(refused)
    assert files.trouble() == ("DISK_GUARD" if kind is DiskFull else "JOURNAL_STALLED", refused.message)
    files.close()


async def test_without_an_error_a_refusal_asks_to_wait_for_the_segment_that_is_made(fast_path: Path) -> None:
    disk = Disk()
    files = SegmentFiles(fast_path, disk, InlinePreparer(disk), FileWorker(SameThread()), 4 * SEGMENT_BYTES)
    refused = files.refusal()
    assert type(refused) is Overloaded
    assert refused.retry_after_ms == 50
    assert files.trouble() is None
    files.close()
