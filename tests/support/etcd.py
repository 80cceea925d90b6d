"""Real etcd members as child processes on free ports, quick to start, to stop, to stall and to lead."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from tests.support.broker_process import free_ports
from tests.support.waiting import pause

BINARY: Final = Path(sys.executable).parent / "etcd"
CONTROL: Final = Path(sys.executable).parent / "etcdctl"
_START_S: Final = 60.0
_LOOK_S: Final = 0.05
# Without fsync, as no test of ours cuts the power; the leases may be as short as a second: 1.5 × 600 ms, rounded up
_QUICK: Final = (
    "--unsafe-no-fsync",
    "--heartbeat-interval=50",
    "--election-timeout=600",
    "--log-level=error",
)


class EtcdMembers:
    """`with EtcdMembers(folder, count) as etcd`: that many members of one cluster, ready.

    Args:
        options: further options of each member.
        tls: certificate and key of the members' client port; with them the URLs are https.
        host: the address of their client ports.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        *,
        options: Sequence[str] = (),
        tls: tuple[Path, Path] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._folder = folder
        self._host = host
        self._tls = tls
        scheme = "http" if tls is None else "https"
        ports = free_ports(2 * count)
        self.ports = ports[:count]
        self._urls = [f"{scheme}://{host}:{port}" for port in self.ports]
        peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
        together = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
        self._arguments = [
            [
                str(BINARY),
                f"--name=m{n}",
                f"--data-dir={folder / f'm{n}'}",
                f"--listen-client-urls={self._urls[n]}",
                f"--advertise-client-urls={self._urls[n]}",
                f"--listen-peer-urls={peers[n]}",
                f"--initial-advertise-peer-urls={peers[n]}",
                f"--initial-cluster={together}",
                *_QUICK,
                *(() if tls is None else (f"--cert-file={tls[0]}", f"--key-file={tls[1]}")),
                *options,
            ]
            for n in range(count)
        ]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count

    @property
    def endpoints(self) -> list[str]:
        return [f"{self._host}:{port}" for port in self.ports]

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix, as `--metadata` takes it."""
        return f"etcd://{','.join(self.endpoints)}{prefix}"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for n in range(len(self._processes)):
            self.start(n, wait=False)
        try:
            for n in range(len(self._processes)):
                self._until_ready(n)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()

    def start(self, n: int, *, wait: bool = True) -> None:
        """Start a member (again)."""
        with (self._folder / f"m{n}.log").open("ab") as log:
            self._processes[n] = subprocess.Popen(self._arguments[n], stdout=log, stderr=log)
        if wait:
            self._until_ready(n)

    def stop(self, n: int) -> None:
        """End a member by SIGTERM and wait for it."""
        process = self._process(n)
        process.terminate()
        process.wait()
        self._processes[n] = None

    def save(self, file: Path) -> None:
        """Write a snapshot."""
        self.control("snapshot", "save", str(file), endpoints=self.endpoints[:1])

    def restore(self, file: Path) -> None:
        """Begin anew, on the same port, with what the snapshot has; of one member."""
        (arguments,) = self._arguments
        process = self._process(0)
        process.kill()  # SIGTERM would wait for whoever is connected
        process.wait()
        folder = self._folder / "m0"
        shutil.rmtree(folder)
        kept = ("--name=", "--data-dir=", "--initial-cluster=", "--initial-advertise-peer-urls=")
        options = [each for each in arguments if each.startswith(kept)]
        subprocess.run(
            [str(CONTROL), "snapshot", "restore", str(file), *options],
            check=True,
            capture_output=True,
            timeout=_START_S,
        )
        self.start(0)

    def stall(self, n: int) -> None:
        """SIGSTOP: its connections stand, and nothing answers."""
        pause(self._process(n))

    def resume(self, n: int) -> None:
        self._process(n).send_signal(signal.SIGCONT)

    def leader(self) -> int:
        """Return the index of the member that leads now."""
        status = json.loads(self.control("endpoint", "status", "-w", "json"))
        for n, each in enumerate(status):
            if each["Status"]["header"]["member_id"] == each["Status"]["leader"]:
                return n
        raise AssertionError(f"no leader: {status}")

    def member_id(self, n: int) -> str:
        """Return a member's id, as `etcdctl move-leader` takes it."""
        status = json.loads(self.control("endpoint", "status", "-w", "json", endpoints=[self.endpoints[n]]))
        return f"{status[0]['Status']['header']['member_id']:x}"

    def control(self, *arguments: str, endpoints: Sequence[str] | None = None) -> str:
        """Run `etcdctl` and return its output; raise if it fails."""
        command = [str(CONTROL), f"--endpoints={','.join(endpoints or self.endpoints)}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _process(self, n: int) -> subprocess.Popen[bytes]:
        process = self._processes[n]
        assert process is not None, f"member {n} does not run"
        return process

    def _until_ready(self, n: int) -> None:
        limit = time.monotonic() + _START_S
        while not self._is_healthy(n):
            log = self._folder / f"m{n}.log"
            assert self._process(n).poll() is None, f"member {n} ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < limit, f"member {n} is not ready after {_START_S} s: {log}"
            time.sleep(_LOOK_S)

    def _is_healthy(self, n: int) -> bool:
        context: Any = None
        if self._tls is not None:
            import ssl

            context = ssl.create_default_context(cafile=str(self._tls[0]))
            context.check_hostname = False
        try:
            with urllib.request.urlopen(f"{self._urls[n]}/health", timeout=5, context=context) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, urllib.error.URLError):
            return False


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMembers]:
    """Run an etcd for one test. The fixture of the same name in conftest.py runs one for a module."""
    with EtcdMembers(tmp_path / "etcd") as members:
        yield members
