"""Folders under .tools/ with packages that tests need but the project must not depend on.

Each is filled once by `pip install --target` with exact versions and hashes, without dependencies, and put on the
PYTHONPATH of a subprocess. Two test runs may race for it: each installs beside and moves into place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

__all__ = ["TOOLS", "ensure_package", "subprocess_environment"]

ROOT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = ROOT / ".tools"

# What pip prints when it cannot talk to the index; any other failure is a failure of the test.
_UNREACHABLE: Final = (
    "connection broken by",
    "Max retries exceeded",
    "Could not fetch URL",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "ReadTimeoutError",
    "ConnectTimeoutError",
)


def ensure_package(requirement: str, *, hashes: Sequence[str] = ()) -> Path:
    """Return the folder that holds exactly `requirement` ("name==version"), installing it when missing.

    Args:
        requirement: one exact requirement; the folder is named after it.
        hashes: SHA-256 of the acceptable wheels; none: pip's own check against the index has to do.

    Raises:
        pytest.skip.Exception: the package index cannot be reached; the reason begins with "NOT RUN".
        AssertionError: pip failed for any other reason.
    """
    name, separator, version = requirement.partition("==")
    assert separator, f"{requirement} is not pinned"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"  # wheels may be for one interpreter only
    folder = TOOLS / f"{name}-{version}-{python}"
    if folder.is_dir():
        return folder
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=TOOLS) as scratch:
        lines = " ".join([requirement, *(f"--hash=sha256:{digest}" for digest in hashes)])
        listing = Path(scratch, "requirements.txt")
        listing.write_text(lines + "\n", encoding="utf-8")
        fresh = Path(scratch, "packages")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += [
            "--only-binary=:all:",
            "--retries=2",
            "--timeout=15",
            f"--target={fresh}",
            f"--requirement={listing}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
        if done.returncode != 0:
            if any(sign in done.stderr for sign in _UNREACHABLE):
                pytest.skip(
                    f"NOT RUN: {requirement} is not in .tools/ and the package index cannot be reached"
                )
            raise AssertionError(f"pip could not install {requirement}:\n{done.stderr}")
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was faster
                raise
            shutil.rmtree(fresh)
    return folder


def subprocess_environment(*folders: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment where `folders` come before the installed packages, and tests/ can be imported."""
    paths = os.pathsep.join(map(str, [*folders, ROOT]))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "PYTHONPATH": paths, **(extra or {})}
