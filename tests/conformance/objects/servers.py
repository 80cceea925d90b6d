"""Servers of Google's and Azure's object stores for tests: fake-gcs-server by `go install`, Azurite by npm."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.grpc.go_tools import go_tool
from tests.support.broker_process import free_ports
from tests.support.pinned_packages import TOOLS

BUCKET: Final = "bucket"
START_S: Final = 60.0
AZURITE: Final = "azurite@3.35.0"
# Azurite's own account, which its documentation gives
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def google() -> Iterator[str]:
    """Start fake-gcs-server with one bucket and yield its endpoint; skips where it cannot be built."""
    program = go_tool("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.56.1")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    words = [
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        "memory",
        "-external-url",
        url,
    ]
    with running([str(program), *words, "-public-host", url.removeprefix("http://")], port):
        body = json.dumps({"name": BUCKET}).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/storage/v1/b?project=test", data=body, headers=head)
        urllib.request.urlopen(request, timeout=30).close()
        yield url


@contextlib.contextmanager
def azure() -> Iterator[str]:
    """Start Azurite and yield a connection string; skips where npm cannot install it."""
    folder = TOOLS / AZURITE
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("NOT RUN: Azurite needs npm, and there is none here")
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(folder),
            AZURITE,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"NOT RUN: Azurite could not be installed: {done.stderr.strip()[-300:]}")
    (port,) = free_ports(1)
    words = [
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
    ]
    with running([str(program), *words, "--silent"], port):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        yield f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A server from the moment it listens."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + START_S
        while True:
            assert process.poll() is None, f"{Path(command[0]).name} ended"
            assert time.monotonic() < until, f"{Path(command[0]).name} does not listen after {START_S:.0f} s"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
