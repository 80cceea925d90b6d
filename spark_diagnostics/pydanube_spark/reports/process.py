"""Run a report in a separate process with its JVM. Its output does not reach the caller's, and it ends with the caller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from pydanube_core.errors import ClusterError, Internal, MissingExtra
from pydanube_core.extras import install_command

from pydanube_spark.reports.progress import Progress, no_progress

_NOISE_LINES: Final = 30
_END_S: Final = 10.0


def check_installed() -> None:
    """Raise `MissingExtra` if the extra is not installed."""
    from importlib.util import find_spec

    for module in ("numpy", "pyarrow"):
        if find_spec(module) is None:
            raise MissingExtra(
                f"reports read Parquet, and {module} is not installed: {install_command('spark')}",
                extra="spark",
                module=module,
            )


def run_in_process(arguments: Sequence[str], progress: Progress = no_progress) -> dict[str, Any]:
    """Return the result of `pydanube_spark.reports.main`.

    Raises the `ClusterError` of the report. If the call is interrupted, it ends the process and its JVM first.
    """
    check_installed()
    process = subprocess.Popen(
        [sys.executable, "-m", "pydanube_spark.reports.main", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # with its child, the JVM, so that both end together
    )
    assert process.stderr is not None
    assert process.stdout is not None
    answer: list[str] = []
    # Read stdout in a thread: a result larger than a pipe would block the process, while we wait for the end of stderr.
    reader = threading.Thread(target=answer.extend, args=(process.stdout,), daemon=True)
    reader.start()
    failure: ClusterError | None = None
    noise: deque[str] = deque(maxlen=_NOISE_LINES)
    try:
        for line in process.stderr:
            said = _said(line)
            if "progress" in said:
                progress(str(said["doing"]), float(said["progress"]))
            elif "error" in said:
                failure = ClusterError.from_dict(said["error"])
            else:
                noise.append(line.rstrip())
        reader.join()
        code = process.wait()
    finally:
        if process.poll() is None:
            _end(process)
        reader.join()
        process.stdout.close()
        process.stderr.close()
    if failure is not None:
        raise failure
    if code:
        raise Internal(
            f"the report's process ended with {code}: {noise[-1] if noise else 'it said nothing'}",
            exit_code=code,
            log=list(noise),
        )
    result: dict[str, Any] = json.loads(answer[-1])
    return result


def _said(line: str) -> dict[str, Any]:
    if line.startswith(('{"progress"', '{"error"')):
        with contextlib.suppress(ValueError):
            said: dict[str, Any] = json.loads(line)
            return said
    return {}


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            return
