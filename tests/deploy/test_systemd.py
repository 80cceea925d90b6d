"""The units, by systemd's own tools: valid, hardened, and the user and folders that they need are made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY, tool

UNIT = DEPLOY / "systemd" / "danube.service"
MOST_EXPOSED = 3.0


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_the_unit_is_valid_and_starts_the_command_with_flags_that_exist(tmp_path: Path) -> None:
    verify = tool("systemd-analyze", "apt-get install systemd")
    program = tmp_path / "danube"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "danube.service"
    unit.write_text(UNIT.read_text().replace("/opt/danube/bin/danube", str(program)))
    done = run(verify, "verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    helped = run("./danube", "up", "--help").stdout
    (start,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert [flag for flag in re.findall(r"--[a-z-]+", start) if flag not in helped] == []


def test_the_unit_is_hardened() -> None:
    analyze = tool("systemd-analyze", "apt-get install systemd")
    done = run(analyze, "security", "--offline=true", "--no-pager", str(UNIT))
    exposure = re.search(r"exposure level for danube.service: (\d+\.\d)", done.stdout)
    assert exposure, done.stdout + done.stderr
    assert float(exposure[1]) < MOST_EXPOSED


def test_user_and_folders_are_made_in_an_empty_system(tmp_path: Path) -> None:
    sysusers = tool("systemd-sysusers", "apt-get install systemd")
    tmpfiles = tool("systemd-tmpfiles", "apt-get install systemd")
    root = tmp_path / "root"
    for folder, name in (("sysusers.d", "sysusers.conf"), ("tmpfiles.d", "tmpfiles.conf")):
        (root / "usr/lib" / folder).mkdir(parents=True)
        text = (DEPLOY / "systemd" / name).read_text()
        (root / "usr/lib" / folder / "danube.conf").write_text(text)
    (root / "etc").mkdir()
    done = run(sysusers, f"--root={root}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^danube:.*:/var/lib/danube:", (root / "etc/passwd").read_text(), re.MULTILINE)
    done = run(tmpfiles, "--create", f"--root={root}")
    if done.returncode != 0 and "root" not in done.stderr and "ermission" in done.stderr:
        pytest.skip(f"not as root: {done.stderr}")
    assert done.returncode == 0, done.stderr
    modes = {
        path: oct((root / path).stat().st_mode & 0o777)
        for path in ("etc/danube", "etc/danube/environment", "var/lib/danube")
    }
    assert modes == {"etc/danube": "0o750", "etc/danube/environment": "0o640", "var/lib/danube": "0o750"}
