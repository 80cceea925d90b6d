"""Our generated code on the oldest runtime that we promise and on a 7.x one, with and without the C extension."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.pinned_packages import ROOT, ensure_package, subprocess_environment

SCRIPT = Path(__file__).with_name("runtime_probe_script.py")
FLOOR = "6.31.1"


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("runtime", [FLOOR, "7.36.2"])
def test_every_message_travels_on_this_runtime(runtime: str, implementation: str) -> None:
    folder = ensure_package(f"protobuf=={runtime}")
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=subprocess_environment(folder, extra={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["runtime"], report["implementation"]) == (runtime, implementation)
    assert report["messages"] > 100
    assert report["bytes_compared"] > 10_000
    assert report["methods"] >= 63


def test_the_tested_floor_is_the_promised_one() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (promised,) = [
        found[1] for line in requirements if (found := re.fullmatch(r"protobuf>=([\d.]+),<8", line))
    ]
    assert promised == FLOOR
