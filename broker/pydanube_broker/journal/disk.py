"""The few system calls of the journal, in one place, so that a test can fail any of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["Disk"]

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_F_FULLFSYNC: Final = 51  # macOS: fsync alone leaves the drive's cache
Buffer = bytes | bytearray | memoryview


class Disk:
    """The real one. Short writes are finished here; everything else is the kernel's answer."""

    def open_rw(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        return os.dup(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> None:
        """Write all of the buffers (at most IOV_MAX of them)."""
        total = sum(map(len, buffers))
        done = os.pwritev(fd, buffers, at)
        while done < total:  # a signal, or a disk that is running full: the rest decides which
            rest = memoryview(b"".join(buffers))[done:]
            done += os.pwrite(fd, rest, at + done)

    def pread(self, fd: int, count: int, at: int) -> bytes:
        return os.pread(fd, count, at)

    def pread_cached(self, fd: int, count: int, at: int) -> bytes | None:
        """As `pread`, but None where the kernel would have to ask the disk."""
        if not _NOWAIT:
            return os.pread(fd, count, at)
        buffer = bytearray(count)
        try:
            got = os.preadv(fd, [buffer], at, _NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno == errno.EOPNOTSUPP:  # tmpfs has no other place to read from
                return os.pread(fd, count, at)
            raise
        return bytes(buffer) if got == count else None

    def datasync(self, fd: int) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            import fcntl  # macOS only

            fcntl.fcntl(fd, _F_FULLFSYNC)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize
