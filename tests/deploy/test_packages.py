"""Wheel and sdist, each installed into an empty environment, for every Python that is on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import ROOT
from tests.support.pinned_packages import ensure_package

UV = "uv==0.13.9"
MINUTES = 60.0
# Bytes on disk, bytecode with them, that the base install adds to an empty environment
MOST_ADDED = 50_000_000
# (Python, what is installed, extras): all extras once, since Spark alone is half a gigabyte.
INSTALLS = [
    ("3.11", "wheel", "all"),
    ("3.11", "sdist", "broker,mcp"),
    ("3.11", "wheel", ""),
    ("3.12", "wheel", "broker,mcp,s3"),
    ("3.13", "wheel", "broker,mcp,s3"),
    ("3.14", "wheel", "broker,mcp,s3"),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def interpreter(version: str) -> str:
    for found in (
        shutil.which(f"python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    ):
        if found is not None and _runs(str(found), version):
            return str(found)
    pytest.skip(f"Python {version} is not on this machine")


def _runs(program: str, version: str) -> bool:
    shown = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(shown, capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def bytes_on_disk(folder: Path) -> int:
    return (
        sum(path.lstat().st_blocks for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        * 512
    )


@pytest.mark.timeout(20 * MINUTES)
@pytest.mark.parametrize(("python", "kind", "extras"), INSTALLS)
def test_an_empty_environment_gets_a_command_that_works(
    python: str, kind: str, extras: str, packages: dict[str, Path], tmp_path: Path
) -> None:
    base = interpreter(python)
    uv = str(ensure_package(UV) / "bin" / "uv")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("DANUBE_", "PYTHON"))
    }
    venv = tmp_path / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", base, str(venv)], check=True, env=environment)
    empty = bytes_on_disk(venv)
    wanted = f"pydanube[{extras}] @ {packages[kind].as_uri()}" if extras else str(packages[kind])
    installed = subprocess.run(
        [uv, "pip", "install", "--quiet", *["--compile-bytecode"] * (not extras), "--python", str(venv / "bin/python"), wanted],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr

    def danube(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(venv / "bin" / "danube")
        return subprocess.run(
            [program, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )

    assert danube("--version").stdout.startswith("danube ")
    if not extras:
        assert 0 < bytes_on_disk(venv) - empty <= MOST_ADDED
        refused = danube("up", "--json")
        assert json.loads(refused.stderr)["error"]["code"] == "MISSING_EXTRA"
        doctor = danube("doctor", "--json", "--port-offset", "1234")
        missing = {
            f["summary"].split()[2] for f in json.loads(doctor.stdout)["findings"] if f["check"] == "extras"
        }
        assert {"broker", "mcp", "spark"} <= missing
        return
    ready = tmp_path / "ready.json"
    words = ["up", "--data-dir", "data", "--ready-file", str(ready), "--json"]
    for name in ("grpc", "admin", "metrics", "http"):
        words += [f"--{name}-port", "0"]
    with subprocess.Popen(
        [str(venv / "bin" / "danube"), *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as broker:
        assert broker.stdout is not None
        info = json.loads(broker.stdout.readline())
        address = ("--broker", info["grpc"], "--admin", info["admin"])
        assert danube("produce", "hello", "-m", "world", *address).returncode == 0
        assert danube("consume", "hello", "--exit", "--format", "raw", *address).stdout == "world\n"
        doctor = danube("doctor", "--json", "--data-dir", "elsewhere", "--port-offset", "1234", *address)
        assert "findings" in json.loads(doctor.stdout)
        broker.terminate()
        assert broker.wait(60) == 0
