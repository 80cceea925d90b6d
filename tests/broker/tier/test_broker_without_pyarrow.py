"""pyarrow belongs to the tier's process: a broker never loads it, and runs where it is not installed, saying so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import asyncio, json, sys
from importlib.machinery import PathFinder
blocked = set(sys.argv[2].split(","))
class Finder:
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else PathFinder.find_spec(name, path, target)
sys.meta_path = [Finder() if finder is PathFinder else finder for finder in sys.meta_path]
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_broker.tier.status import status_of
ports = {f"server.{name}_port": 0 for name in ("grpc", "admin", "metrics", "http")}
async def main():
    async with Broker(load_settings(env={}, overrides={"data.dir": sys.argv[1], **ports})) as broker:
        print(json.dumps({
            "enabled": status_of(broker.tier)["enabled"],
            "degraded": [reason.code for reason in broker.port.degraded()],
            "not_ready": [reason.code for reason in broker.port.not_ready()],
            "loaded": "pyarrow" in sys.modules,
        }))
asyncio.run(main())
"""


def started(folder: Path, *blocked: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "data"), ",".join(blocked)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_a_broker_without_pyarrow_runs_ready_and_says_why_it_does_not_tier(tmp_path: Path) -> None:
    said = started(tmp_path, "pyarrow", "fsspec", "s3fs")
    assert said == {"enabled": False, "degraded": ["TIER_OFF"], "not_ready": [], "loaded": False}


def test_a_broker_with_pyarrow_leaves_it_to_the_tiers_process(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert started(tmp_path) == {"enabled": True, "degraded": [], "not_ready": [], "loaded": False}
