"""The program `duckdb`, which shares no code with us: what it says of our Parquet files judges what we say."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.broker_process import client_environment
from tests.support.pinned_packages import ensure_package

__all__ = ["duckdb_rows"]


def duckdb_rows(statement: str) -> list[dict[str, Any]]:
    """Run a query and return its rows; integers beyond 2^53 and 128-bit sums are text, as `-json` prints them."""
    program = next(path for path in ensure_package("duckdb-cli==1.5.6").rglob("duckdb") if path.is_file())
    program.chmod(0o755)
    done = subprocess.run(
        [str(program), "-json", "-c", statement],
        capture_output=True,
        env=client_environment(),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode().strip()
    found: list[dict[str, Any]] = json.loads(text) if text else []
    return [row for row in found if row]
