"""Programs that are built by Go, once, into .tools/go; only where there is a Go toolchain."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.pinned_packages import TOOLS

FOLDER: Final = TOOLS / "go"


def go_tool(name: str, module: str, version: str) -> Path:
    """The program `name`, built from `module@version`; skips, as not run, where that cannot be."""
    program = FOLDER / f"{name}-{version}"
    if not program.exists():
        _go(name, "install", f"{module}@{version}")
        (FOLDER / "new" / module.rsplit("/", 1)[-1]).rename(program)
    return program


def go_program(name: str, source: Path) -> Path:
    """The program `name`, built from the folder `source`, which names its modules; skips, as not run, where that cannot be."""
    program = FOLDER / name
    _go(name, "build", "-C", str(source), "-o", str(program), ".")
    return program


def _go(name: str, *words: str) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip(f"NOT RUN: {name} needs Go, and there is none here")
    FOLDER.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "GOBIN": str(FOLDER / "new"),
        "GOPATH": str(FOLDER / "path"),
        "GOFLAGS": "-modcacherw",
    }
    built = subprocess.run([go, *words], env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"NOT RUN: {name} could not be built: {built.stderr.strip()[-300:]}")
