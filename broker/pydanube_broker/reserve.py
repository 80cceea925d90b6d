"""Room on the disk for a start and for changes: a file of nothing that is given up when the disk is full.

The guard (`data.min_free_bytes`) stops publishes; the cold tier's objects, the metadata and other programs can still fill
the disk to the last byte. A broker that dies then needs a segment and a few transactions to start, or nobody could ever
read what it holds; and one that runs needs a few transactions to delete what fills it. Made again, beside the work, once there is room for it above the guard.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

METADATA_BYTES: Final = 16 << 20
SHARE: Final = 20  # at most a 20th of the disk, as the guard
PLENTY: Final = 4  # times what is kept free: then a stopped broker needs no reserve


class Reserve:
    """See the module. `release` and `give_back` before and after the loop's work, `keep` in a worker thread."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._file = folder / "reserve"
        self._wanted = segment_bytes + METADATA_BYTES

    def _disk(self) -> tuple[int, int]:
        stat = os.statvfs(self._file.parent)
        return stat.f_bavail * stat.f_frsize, min(self._wanted, stat.f_blocks * stat.f_frsize // SHARE)

    def release(self) -> bool:
        """Before a start: give the room up where there is not as much without it; whether it was."""
        with contextlib.suppress(OSError):
            free, size = self._disk()
            return free < size and self.give_up()
        return False

    def give_up(self) -> bool:
        """Free its room now; whether there was any."""
        with contextlib.suppress(OSError):
            self._file.unlink()
            return True
        return False

    def keep(self, guard_bytes: int) -> None:
        """Make it where there is room for it above the guard.

        Raises:
            OSError: there is not, after all; nothing is left behind.
        """
        if self._file.exists():
            return
        free, size = self._disk()
        if free < guard_bytes + 2 * size:
            return
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                for at in range(0, size, 1 << 20):
                    os.pwrite(fd, bytes(min(1 << 20, size - at)), at)
        except OSError:
            self._file.unlink()
            raise
        finally:
            os.close(fd)

    def give_back(self, guard_bytes: int) -> None:
        """After a stop: not kept where the disk has plenty."""
        with contextlib.suppress(OSError):
            free, size = self._disk()
            if free >= PLENTY * (guard_bytes + size):
                self._file.unlink()
