"""The official Python client, unmodified, for tests that run beside it or against it.

It is no dependency of ours: it lives in .tools/ and is imported by subprocesses only. Its two dependencies, grpcio
and protobuf, are those of the environment, so that both sides share one runtime.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.pinned_packages import ensure_package, subprocess_environment

__all__ = ["VERSION", "official_client_environment", "official_client_folder", "run_beside_official_client"]

VERSION: Final = "0.5.0"
_WHEEL_SHA256: Final = "b181debcf49f64b286c3c698c8561aee60617b2b1d7b3cdc4a8f1dbc7a0d7aa1"


def official_client_folder() -> Path:
    """Return the folder to put on PYTHONPATH; installs the client when it is missing.

    Raises:
        pytest.skip.Exception: it is missing and the package index cannot be reached ("NOT RUN: ...").
    """
    return ensure_package(f"danube-client=={VERSION}", hashes=[_WHEEL_SHA256])


def official_client_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a subprocess which may `import danube`."""
    return subprocess_environment(official_client_folder(), extra=extra)


def run_beside_official_client(
    script: Path, *arguments: str, timeout_s: float = 60, interpreter_options: Sequence[str] = ("-W", "error")
) -> subprocess.CompletedProcess[str]:
    """Run `script` in a process that can import both our packages and the official client.

    Returns:
        The finished process, whatever its exit code, with its text output.

    Raises:
        subprocess.TimeoutExpired: after `timeout_s`; the process has been killed.
    """
    return subprocess.run(
        [sys.executable, *interpreter_options, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=official_client_environment(),
    )
