"""The processes of a local cluster and etcd, each in a session of its own, so that Ctrl-C reaches the command alone."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydanube_core.errors import MissingExtra, Unavailable
from pydanube_core.extras import install_command

_PR_SET_PDEATHSIG: Final = 1
_LOG_TAIL: Final = 2000


class Child:
    """A process with its log. It ends with this process if the system supports that (Linux)."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None and self.exit_code is None else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or before."""
        return None if self._process is None else self._process.returncode

    async def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Its output goes to the log."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    async def ended(self) -> int:
        """Wait for its end, and return the exit code."""
        assert self._process is not None, "it was not started"
        return await self._process.wait()

    async def end(self, number: signal.Signals, *, patience_s: float) -> int | None:
        """Send a signal and wait for the end, after `patience_s` with SIGKILL. None if it does not run."""
        process = self._process
        if process is None or process.returncode is not None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(patience_s):
                return await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    def tail(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-_LOG_TAIL:].strip()
        return ""


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


START_S: Final = 60.0
_LOOK_S: Final = 0.1
_STOP_S: Final = 10.0


def etcd_binary() -> str:
    """Return the `etcd` beside this Python, else the system's. Raises `MissingExtra`."""
    beside = Path(sys.executable).with_name("etcd")
    found = str(beside) if beside.is_file() else shutil.which("etcd")
    if found is None:
        raise MissingExtra(
            f"a local cluster keeps its metadata on etcd, which is not installed: {install_command('cluster')}, or your "
            "system's etcd 3.4 or newer",
            extra="cluster",
        )
    return found


class Etcd:
    """Members `0…count-1` of one etcd cluster.

    Args:
        ports: a client's and a peer's port for each member, the same ones at each start.
    """

    def __init__(self, folder: Path, ports: list[tuple[int, int]]) -> None:
        self._folder = folder
        self._ports = ports
        self.members = [Child(f"etcd {n}", folder / f"etcd-{n}.log") for n in range(1, len(ports) + 1)]

    @property
    def endpoints(self) -> list[str]:
        """host:port of each member, for clients."""
        return [f"127.0.0.1:{client}" for client, _ in self._ports]

    async def start(self) -> None:
        """Start all and wait until they serve. Raises `Unavailable`."""
        binary = etcd_binary()
        peers = ",".join(f"m{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(self._ports, 1))
        for n, ((client, peer), member) in enumerate(zip(self._ports, self.members, strict=True), 1):
            await member.start(
                [
                    binary,
                    f"--name=m{n}",
                    f"--data-dir={self._folder / f'etcd-{n}'}",
                    f"--listen-client-urls=http://127.0.0.1:{client}",
                    f"--advertise-client-urls=http://127.0.0.1:{client}",
                    f"--listen-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-cluster={peers}",
                    "--log-level=warn",
                ],
                {},
            )
        until = time.monotonic() + START_S
        for (client, _), member in zip(self._ports, self.members, strict=True):
            while not await asyncio.to_thread(_is_healthy, client):
                if member.exit_code is not None or time.monotonic() > until:
                    raise Unavailable(
                        f"{member.name} does not start. The end of {member.log}:\n{member.tail()}"
                    )
                await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Stop all members of etcd."""
        await asyncio.gather(*(member.end(signal.SIGTERM, patience_s=_STOP_S) for member in self.members))


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(json.load(answer)["health"] == "true")
    except (OSError, ValueError):
        return False
