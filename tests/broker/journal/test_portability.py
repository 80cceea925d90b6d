"""Where the kernel knows less: old macOS has no pwritev, tmpfs no read that does not wait, any disk may write short."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydanube_broker.journal import Disk, disk

POOR = """
import os, socket
for name in ("pwritev", "preadv", "fdatasync", "RWF_NOWAIT", "statvfs", "link", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("send_fds", "recv_fds"):
    delattr(socket, name)
import pydanube_broker.journal
"""


def test_the_package_is_imported_where_the_calls_are_missing() -> None:
    subprocess.run([sys.executable, "-c", POOR], check=True, timeout=60)


@pytest.mark.parametrize("has_pwritev", [True, False])
@pytest.mark.parametrize("most", [1, 7, 4096])
def test_short_writes_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pwritev: bool, most: int
) -> None:
    real = os.pwrite
    monkeypatch.setattr(disk, "HAS_PWRITEV", has_pwritev)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, b"".join(buffers)[:most], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:most], at))
    fd = Disk().create(tmp_path / "file")
    try:
        pieces = [b"abc", memoryview(b"defgh" * 30), bytearray(b"i"), b""]
        Disk().pwritev(fd, pieces, 5)
        assert os.pread(fd, 1000, 5) == b"".join(pieces)
        monkeypatch.setattr(os, "pwritev", lambda *args: 0)
        monkeypatch.setattr(os, "pwrite", lambda *args: 0)
        with pytest.raises(OSError, match="took nothing"):
            Disk().pwritev(fd, [b"x"], 0)
    finally:
        os.close(fd)


@pytest.mark.skipif(not disk.NOWAIT, reason="this system has no read that does not wait")
def test_a_read_that_would_wait_says_so_and_one_that_cannot_know_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fd = Disk().open_ro(path)
    try:
        assert Disk().pread_cached(fd, 4, 3) == b"3456", "just written, so it is in the page cache"

        def answer(code: int) -> None:
            def preadv(*args: object) -> int:
                raise OSError(code, "as the kernel says it")

            monkeypatch.setattr(os, "preadv", preadv)

        answer(errno.EAGAIN)
        assert Disk().pread_cached(fd, 4, 3) is None
        answer(errno.EOPNOTSUPP)
        assert Disk().pread_cached(fd, 4, 3) == b"3456"
        answer(errno.EIO)
        with pytest.raises(OSError, match="as the kernel"):
            Disk().pread_cached(fd, 4, 3)
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, at, flags: 2)
        assert Disk().pread_cached(fd, 4, 3) is None, "half of it is in the cache"
        monkeypatch.setattr(disk, "NOWAIT", 0)
        assert Disk().pread_cached(fd, 4, 3) == b"3456"
    finally:
        os.close(fd)
