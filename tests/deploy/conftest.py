"""What `deploy/` holds, tried with the tools it is for (`make test-deploy`).

A tool that is not on this machine skips its tests, and the gate lists them as not run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.broker_process import broker_process_fixture

ROOT = Path(__file__).resolve().parents[2]
# Below the time limit of the tests that want a program, so that they are skipped and do not fail
BUILD_S = 600
DEPLOY = ROOT / "deploy"

broker = broker_process_fixture(
    scope="module",
    environment={
        "DANUBE_DIAGNOSIS__SAMPLE_INTERVAL": "200ms",
        "DANUBE_DIAGNOSIS__STUCK_AFTER": "1s",
        "DANUBE_TIER__FLUSH_AGE": "500ms",
    },
)


def tool(name: str, where: str) -> str:
    """The path of a program, or a skip that says where it is to be had."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {where}")
    return found


def go_program(module: str) -> str:
    """A program from the Go module proxy (`path@version`), built once into .tools; minutes at its first use."""
    package, _, version = module.partition("@")
    program = ROOT / ".tools" / "go" / f"{package.rsplit('/', 1)[1]}-{version}"
    if program.exists():
        return str(program)
    go = tool("go", "https://go.dev/dl")
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [go, "install", module],
                env={**os.environ, "GOBIN": folder, "GOFLAGS": "-modcacherw"},
                capture_output=True,
                text=True,
                check=False,
                timeout=BUILD_S,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{module} was not built within {BUILD_S} s. Run it again: Go keeps the built parts")
        if done.returncode != 0:
            pytest.skip(f"{module} could not be built: {done.stderr.strip().splitlines()[-1]}")
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(next(Path(folder).iterdir()), program)
    return str(program)


def go_module(module: str) -> Path:
    """The folder of a module's sources."""
    go = tool("go", "https://go.dev/dl")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "go.mod").write_text("module x\n")
        done = subprocess.run(
            [go, "mod", "download", "-json", module], cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        pytest.skip(f"{module} could not be had: {done.stdout.strip()[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])
