"""The few system calls of the journal, in one place, so that a test can fail any of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydanube_broker.journal.sync_program import full_sync, rename_new

NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
HAS_PWRITEV: Final = hasattr(os, "pwritev")  # macOS before 11 has none
Buffer = bytes | bytearray | memoryview


class Disk:
    """The real system calls. Short writes are completed here. Other results are the kernel's."""

    def open_rw(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_ro(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> None:
        """Write all of the buffers (at most IOV_MAX of them)."""
        total = sum(map(len, buffers))
        done = os.pwritev(fd, buffers, at) if HAS_PWRITEV else 0
        if done < total:  # a signal, or a full disk: the next write shows which
            rest = memoryview(b"".join(buffers))
            while done < total:
                step = os.pwrite(fd, rest[done:], at + done)
                if step <= 0:
                    raise OSError(errno.EIO, "a write took nothing")
                done += step

    def pread(self, fd: int, count: int, at: int) -> bytes:
        """Read `count` bytes, fewer at the end of the file. One system call reads at most 2 GiB less a page."""
        data = os.pread(fd, count, at)
        if len(data) == count or not data:
            return data
        pieces, got = [data], len(data)
        while got < count and (data := os.pread(fd, count - got, at + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def pread_cached(self, fd: int, count: int, at: int) -> bytes | None:
        """As `pread`, but return None if the kernel would have to read the disk."""
        if not NOWAIT:
            return os.pread(fd, count, at)
        buffer = bytearray(count)
        try:
            got = os.preadv(fd, [buffer], at, NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno == errno.EOPNOTSUPP:  # tmpfs, which is in memory anyway
                return os.pread(fd, count, at)
            raise
        return bytes(buffer) if got == count else None

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def datasync(self, fd: int) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            full_sync(fd)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            full_sync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file. Raises `FileExistsError` if the new name is taken, unlike `os.rename`."""
        rename_new(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize
