"""What `deploy/` holds, tried with the tools it is for (`make test-deploy`).

A tool that is not on this machine skips its tests, and the gate lists them as not run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.broker_process import broker_process_fixture

ROOT = Path(__file__).resolve().parents[2]
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
