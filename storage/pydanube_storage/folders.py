"""Files and folders of the local disk."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path


def is_full(error: OSError) -> bool:
    """Return whether the disk, or a quota on it, has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    _sync(path, os.O_RDWR)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and deleted names of a folder durable."""
    if os.name != "nt":  # Windows cannot open directories and does not need it
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def own_folder(prefix: str, root: Path) -> Path:
    """Create a folder for this process below `root`.

    Folders of that prefix whose process has ended are removed, because a killed process leaves its folder behind.
    """
    for old in root.glob(f"{prefix}*-*"):
        pid = old.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=root))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
