"""The brokers of the release before, from the history of this repository, with the packages of this environment."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

#: the last commit whose brokers move topics through fragments in the object store
COMMIT: Final = "c6007d03"
_ROOTS: Final = ("admin_core", "broker", "cli", "client", "core", "mcp_server", "storage", "tui")
_REPOSITORY: Final = Path(__file__).parents[2]


def old_program(folder: Path) -> str:
    """Return the path of its `danube` command. Skips the test where the history does not have it."""
    found = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "archive", COMMIT, *_ROOTS, "spark_diagnostics", "pyproject.toml"],
        capture_output=True,
    )
    if found.returncode:
        pytest.skip(f"NOT RUN: this clone does not have {COMMIT}: {found.stderr.decode()[-200:]}")
    root = folder / "old"
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(root, filter="data")
    program = folder / "old-danube"
    path = ":".join(str(root / each) for each in (*_ROOTS, "spark_diagnostics"))
    program.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={path}\n"
        f"exec {sys.executable} -c 'from pydanube_cli.main import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    return str(program)
