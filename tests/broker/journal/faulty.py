"""A disk that fails on demand, and counts descriptors."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from pydanube_broker.journal import Disk
from pydanube_broker.journal.disk import Buffer
from pydanube_broker.journal.records import SECTOR


class FaultyDisk(Disk):
    """Fails the n-th call of one kind, once or from then on."""

    def __init__(self, call: str = "", nth: int = 0, code: int = errno.EIO, *, lasting: bool = False) -> None:
        self.calls: dict[str, int] = {}
        self.fail_on(call, nth, code, lasting=lasting)
        self.failed: list[str] = []
        self.synced: list[int] = []
        self.open_fds: set[int] = set()
        self.failed_syncs: set[int] = set()

    def fail_on(self, call: str, nth: int, code: int = errno.EIO, *, lasting: bool = False) -> None:
        """The `nth` call from now on, counted from 0."""
        self._call, self._code, self._lasting = call, code, lasting
        self._nth = self.calls.get(call, -1) + 1 + nth

    def heal(self) -> None:
        self._call = ""

    def _maybe_fail(self, call: str) -> None:
        n = self.calls[call] = self.calls.get(call, -1) + 1
        if call == self._call and (n == self._nth or (self._lasting and n > self._nth)):
            self.failed.append(call)
            raise OSError(self._code, f"{call} number {n} was made to fail")

    def _opened(self, fd: int) -> int:
        assert fd not in self.open_fds
        self.open_fds.add(fd)
        return fd

    def open_rw(self, path: Path) -> int:
        self._maybe_fail("open_rw")
        return self._opened(super().open_rw(path))

    def open_ro(self, path: Path) -> int:
        self._maybe_fail("open_ro")
        return self._opened(super().open_ro(path))

    def create(self, path: Path) -> int:
        self._maybe_fail("create")
        return self._opened(super().create(path))

    def close(self, fd: int) -> None:
        self.open_fds.remove(fd)  # KeyError: closed twice
        self.failed_syncs.discard(fd)  # the number may be given out again
        super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> None:
        try:
            self._maybe_fail("pwritev")
        except OSError:
            whole = b"".join(buffers)
            half = max((at + len(whole) // 2) // SECTOR * SECTOR - at, 0)  # whole sectors of it arrived
            super().pwritev(fd, [whole[:half]], at)
            raise
        super().pwritev(fd, buffers, at)

    def pread(self, fd: int, count: int, at: int) -> bytes:
        self._maybe_fail("pread")
        return super().pread(fd, count, at)

    def pread_cached(self, fd: int, count: int, at: int) -> bytes | None:
        self._maybe_fail("pread_cached")
        return super().pread_cached(fd, count, at)

    def datasync(self, fd: int) -> None:
        assert fd not in self.failed_syncs, "a failed sync is never tried again on the same file"
        try:
            self._maybe_fail("datasync")
        except OSError:
            self.failed_syncs.add(fd)
            raise
        self.synced.append(fd)

    def sync_dir(self, path: Path) -> None:
        self._maybe_fail("sync_dir")

    def rename(self, old: Path, new: Path) -> None:
        self._maybe_fail("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._maybe_fail("unlink")
        super().unlink(path)
