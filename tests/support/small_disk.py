"""A small file system of its own, for tests of a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size` (as `mount` takes it: `64m`) on `folder`, which is made; skip where that is not allowed."""
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("NOT RUN: mounting a small tmpfs takes root")
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    made = subprocess.run(words, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"NOT RUN: this machine refuses to mount a tmpfs: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
