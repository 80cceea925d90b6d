"""The space that the tier may use on the journal's disk, of which a guard keeps `data.min_free_bytes` free.

A flush makes room, because the journal can delete messages once an object has them. So flushes continue below the guard,
as long as they leave a quarter of it. A merge frees nothing before the grace period of its sources is over, and telemetry
frees nothing at all, so both leave the whole guard. If objects and files waiting for upload are on other disks, there is no
limit here.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pydanube_core.errors import DiskFull

FLUSH_SHARE: Final = 4  # flushes leave a quarter of the guard
LEAST_BYTES: Final = 64 << 10  # a smaller object frees too little for its write
_MUCH: Final = 1 << 62

Measure = Callable[[], tuple[int | None, int]]


def shares_disk(folder: Path, local: Path | None) -> bool:
    """Return whether objects, or files waiting for upload, are on the disk of `folder`. `local`: a store in a folder."""
    try:
        device = folder.stat().st_dev
        return _above(local or Path(tempfile.gettempdir())).stat().st_dev == device
    except OSError:
        return True


def _above(path: Path) -> Path:
    """Return the nearest part of a path that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class DiskRoom:
    """Compares writes of the tier with the free space. Single user: the loop.

    Args:
        measure: returns the free bytes, None if unknown, and the bytes that the guard keeps free.
    """

    def __init__(self, folder: Path, measure: Measure) -> None:
        self.shared = False  # on the journal's disk
        self._folder = folder
        self._measure = measure
        self._taken = 0  # by objects that are being written

    def for_flush(self, least: int = LEAST_BYTES) -> int:
        """Return the bytes that one object may take now. Raises `DiskFull`: they are less than `least`."""
        if not self.shared:
            return _MUCH
        free, guard = self._measure()
        if free is None:
            return _MUCH  # the disk's error is reported elsewhere
        room = free - self._taken - guard // FLUSH_SHARE
        if not guard:
            return _MUCH
        if room < least:
            raise self._full(f"a flush to the cold tier of {least} bytes or more", free, guard // FLUSH_SHARE)
        return room

    def check(self, size: int, what: str, *, local: Path | None = None) -> None:
        """Check that `size` bytes can be written without using the guard. Raises `DiskFull`.

        Args:
            local: the folder to write to, None for the store.
        """
        if not (self.shared if local is None else shares_disk(self._folder, local)):
            return
        free, guard = self._measure()
        if free is not None and guard and free - self._taken - size < guard:
            raise self._full(f"{what} of {size} bytes", free, guard)

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Context in which an object of about this size is written, so that others may take less."""
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size

    def _full(self, what: str, free: int, limit: int) -> DiskFull:
        return DiskFull(
            f"{what} waits: {free} bytes are free in {self._folder}, and {limit} are kept free for the journal: free space "
            "there, or lower data.min_free_bytes. It resumes without help",
            field="data.min_free_bytes",
            value=limit,
            free_bytes=free,
            retry_after_ms=1000,
        )
