"""Reserved disk space for a start and for changes: an empty file that is given up when the disk is full.

The guard (`data.min_free_bytes`) stops publishes. The cold tier's objects, the metadata and other programs can still
fill the disk to the last byte. A broker that dies then needs a segment and a few transactions to start, or its data
would be unreadable. A running one needs a few transactions to delete data. The file is given up in steps, so that the
next start and the next deletion find some of it too, and restored, beside the work, when there is room above the guard.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

STEP_BYTES: Final = 512 << 10  # given up per step: the smallest segment of a start and some transactions
SPARE_BYTES: Final = 128 << 10  # stays free on a disk that is full otherwise
METADATA_BYTES: Final = 16 << 20
SHARE: Final = 20  # at most a 20th of the disk, as the guard
PLENTY: Final = 4  # a stopped broker with this many times the guard and the reserve free needs no reserve


class Reserve:
    """See the module. `release` and `give_back` run before and after the loop's work, `keep` in a worker thread."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "reserve"
        self._wanted = METADATA_BYTES

    def _disk(self) -> tuple[int, int]:
        stat = os.statvfs(self._file.parent)
        return stat.f_bavail * stat.f_frsize, min(self._wanted, stat.f_blocks * stat.f_frsize // SHARE)

    def release(self) -> bool:
        """Before a start, give up as much as it needs if the disk has too little room. Return whether any was given up."""
        with contextlib.suppress(OSError):
            free, _ = self._disk()
            return free < STEP_BYTES and self.give_up()
        return False

    def give_up(self) -> bool:
        """Free some of the reserve. Return whether there was any. The rest is for the next time."""
        with contextlib.suppress(OSError):
            left = self._file.stat().st_size - STEP_BYTES
            if left > 0:
                os.truncate(self._file, left)
            else:
                self._file.unlink()
            return True
        return False

    def keep(self, guard_bytes: int, segment_bytes: int) -> None:
        """Create or restore the reserve if there is room above the guard. It grows with the journal's segments.

        Below the guard, where no publishes are accepted any more, it takes a part of the free space, so that the next
        start has it.

        Raises `OSError`: there is no room after all. The file is unchanged.
        """
        self._wanted = segment_bytes + METADATA_BYTES
        free, size = self._disk()
        have = self._file.stat().st_size if self._file.exists() else 0
        if free >= guard_bytes + 2 * size:
            wanted = size
        elif free < guard_bytes:
            wanted = min(size, max(size // 2, 2 * STEP_BYTES), have + free - SPARE_BYTES)
        else:
            return
        if wanted <= have:
            return
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, have, wanted - have)
            else:
                for at in range(have, wanted, 1 << 20):
                    os.pwrite(fd, bytes(min(1 << 20, wanted - at)), at)
        except OSError:
            os.truncate(self._file, have)
            raise
        finally:
            os.close(fd)

    def give_back(self, guard_bytes: int) -> None:
        """Delete the reserve after a stop, if the disk has plenty of room."""
        with contextlib.suppress(OSError):
            free, size = self._disk()
            size = max(size, self._file.stat().st_size)  # before the first `keep` its size is unknown
            if free >= PLENTY * (guard_bytes + size):
                self._file.unlink()
