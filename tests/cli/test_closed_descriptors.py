"""Commands whose standard descriptors are closed at their start: `/dev/null` stands in for each."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydanube_cli.failures import cluster_error

DANUBE = Path(sys.executable).parent / "danube"


def closed(which: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    shell = "exec " + " ".join([str(DANUBE), *words, which])
    return subprocess.run(["/bin/sh", "-c", shell], capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("which", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", [("config", "show"), ("produce", "t", "-m", "x", "--timeout", "1s")])
def test_commands_end_with_their_own_code(which: str, words: tuple[str, ...]) -> None:
    broker = ("--broker", "http://127.0.0.1:1") if words[0] == "produce" else ()
    ended = closed(which, *words, *broker)
    assert ended.returncode == (3 if broker else 0), ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize("which", ["<&-", "<&- >&- 2>&-"])
def test_broker_that_is_stopped_ends_well(which: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ports = " ".join(f"--{port}-port 0" for port in ("grpc", "admin", "metrics", "http"))
    command = f"exec {DANUBE} up --data-dir {tmp_path / 'data'} {ports} --ready-file {ready} {which}"
    process = subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        begun = time.monotonic()
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() - begun < 60
            time.sleep(0.05)
        for fd in (0, 1, 2):
            assert Path(f"/proc/{process.pid}/fd/{fd}").exists()
        assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output


@pytest.mark.parametrize("words", [("config", "show"), ("--version",), ("--help",)])
def test_full_disk_behind_the_output_is_no_wrong_argument(words: tuple[str, ...]) -> None:
    ended = closed("> /dev/full", *words)
    assert ended.returncode == 3
    assert b"DISK_FULL" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_lost_output_does_not_say_that_the_command_may_be_run_again() -> None:
    lost = cluster_error(OSError(errno.ENOSPC, "No space left on device"))
    assert not lost.retryable
    assert "stand:" in lost.message
    assert cluster_error(OSError(errno.ENOSPC, "No space left on device", "/a")).retryable
