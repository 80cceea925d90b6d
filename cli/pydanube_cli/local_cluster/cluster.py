"""A local cluster: the processes of etcd and the brokers, and the file that describes them.

`local.json` in the data directory holds the facts for every start (etcd's ports, the brokers' numbers). While
the cluster runs, it also holds the port at which the command accepts `status|add|stop|start|kill` from other
terminals, and a secret word that only its owner can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydanube_core.errors import Conflict, InvalidArgument, Unavailable

from pydanube_cli.local_cluster.child import Child, Etcd
from pydanube_cli.ready import replace_file

START_S: Final = 120.0
STOP_S: Final = 30.0
BROKERS: Final = 3
MOST_BROKERS: Final = 16
PORTS_APART: Final = 100
_LOOK_S: Final = 0.05
_STATE: Final = "local.json"
_PREFIX: Final = "/danube"
_SHOWN: Final = ("broker_id", "pid", "grpc", "admin", "metrics", "http", "data_dir")


@dataclass(slots=True, kw_only=True)
class State:
    """The content of `local.json`. `port`, `word`, `pid`: of the command that runs the cluster."""

    etcd_ports: list[tuple[int, int]]
    brokers: list[int] = field(default_factory=list)
    port_offset: int = 0
    port: int = 0
    word: str = ""
    pid: int = 0

    @staticmethod
    def read(folder: Path) -> State | None:
        """Read the state, or None if no cluster was started. Raises `InvalidArgument` for a damaged file."""
        file = folder / _STATE
        try:
            found = json.loads(file.read_bytes())
            ports = [(int(client), int(peer)) for client, peer in found.pop("etcd_ports")]
            return State(etcd_ports=ports, **found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument(
                f"{file} cannot be read ({error}): it lists the ports and brokers of the local cluster. Restore it, or "
                "begin again in another --data-dir",
                field="data_dir",
                value=str(folder),
            ) from error

    def write(self, folder: Path) -> None:
        replace_file(folder / _STATE, f"{json.dumps(asdict(self))}\n".encode(), mode=0o600)


class LocalCluster:
    """See the module. Single user: the loop.

    Args:
        say: receives each step of a start or a stop, as a line for people.
        environment: additional variables for the brokers.
    """

    def __init__(
        self,
        folder: Path,
        state: State,
        say: Callable[[str], None],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.state = state
        self.etcd = Etcd(folder, state.etcd_ports)
        self._say = say
        self._environment = {"DANUBE_TIER__URL": self.tier, **environment}
        self._brokers: dict[int, Child] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._busy: dict[int, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def tier(self) -> str:
        """The folder that all brokers keep their objects in."""
        return str(self.folder / "objects")

    async def start(self) -> None:
        """Start etcd, then all brokers in parallel. Raises `Unavailable`."""
        begun = time.monotonic()
        await self.etcd.start()
        self._say(f"etcd is ready at {', '.join(self.etcd.endpoints)} ({time.monotonic() - begun:.1f} s)")
        # The first makes the prefix a cluster
        await self.start_broker(self.state.brokers[0])
        async with asyncio.TaskGroup() as group:
            for n in self.state.brokers[1:]:
                group.create_task(self.start_broker(n))

    async def stop(self) -> None:
        """Stop the brokers in order, then etcd."""
        self._stopping = True
        running = [n for n, child in self._brokers.items() if child.pid is not None]
        await asyncio.gather(*(self.stop_broker(n) for n in running))
        for task in self._tasks:
            task.cancel()
        await self.etcd.stop()
        self._say("all stopped. The same command starts it again with all acknowledged messages")

    async def add(self) -> dict[str, Any]:
        """Start another broker, and return its entry of `status`."""
        if len(self.state.brokers) >= MOST_BROKERS:
            raise InvalidArgument(
                f"a local cluster has at most {MOST_BROKERS} brokers", field="action", value="add"
            )
        n = max(self.state.brokers) + 1
        self.state.brokers.append(n)
        self.state.write(self.folder)
        return await self.start_broker(n)

    async def start_broker(self, n: int) -> dict[str, Any]:
        """Start a broker with its data and ports, and wait until it is ready."""
        async with self._lock(n):
            child = self._child(n)
            if child.pid is not None:
                raise Conflict(f"broker {n} runs already, as process {child.pid}", retryable=False)
            begun = time.monotonic()
            ready = self.folder / f"broker-{n}.ready.json"
            ready.unlink(missing_ok=True)
            await child.start(self._words(n, ready), self._environment)
            while not ready.exists():
                if child.exit_code is not None or time.monotonic() > begun + START_S:
                    await child.end(signal.SIGKILL, patience_s=STOP_S)
                    raise Unavailable(f"broker {n} does not start. The end of {child.log}:\n{child.tail()}")
                await asyncio.sleep(_LOOK_S)
            self._facts[n] = json.loads(ready.read_text())
            self._say(f"broker {n} is ready at {self._facts[n]['grpc']} ({time.monotonic() - begun:.1f} s)")
            task = asyncio.create_task(self._watch(n, child))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return self.facts(n)

    async def stop_broker(self, n: int) -> dict[str, Any]:
        """Send SIGTERM and wait for the end."""
        return await self._end(n, signal.SIGTERM)

    async def kill_broker(self, n: int) -> dict[str, Any]:
        """Send SIGKILL. Acknowledged messages are safe all the same."""
        return await self._end(n, signal.SIGKILL)

    async def _end(self, n: int, number: signal.Signals) -> dict[str, Any]:
        async with self._lock(n):
            child = self._child(n)
            if child.pid is None:
                raise Conflict(f"broker {n} does not run: danube cluster local start {n}", retryable=False)
            await child.end(number, patience_s=STOP_S)
            return self.facts(n)

    async def _watch(self, n: int, child: Child) -> None:
        code = await child.ended()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        again = "" if self._stopping else f". danube cluster local start {n} starts it again"
        self._say(f"broker {n} has ended ({how}){again}")

    def facts(self, n: int) -> dict[str, Any]:
        """Return the facts of a broker."""
        child, known = self._child(n), self._facts.get(n, {})
        running = child.pid is not None
        return {
            "n": n,
            "state": "running" if running else "stopped",
            **{name: known.get(name) for name in _SHOWN},
            "pid": child.pid,
            "data_dir": str(self.folder / f"broker-{n}"),
        }

    def status(self) -> dict[str, Any]:
        """Return the whole cluster, in the form of the ready file."""
        return {
            "event": "ready",
            "etcd": self.etcd.endpoints,
            "metadata": self.metadata,
            "tier": self.tier,
            "data_dir": str(self.folder),
            "brokers": [self.facts(n) for n in self.state.brokers],
        }

    @property
    def metadata(self) -> str:
        """The URL of the brokers' metadata."""
        return f"etcd://{','.join(self.etcd.endpoints)}{_PREFIX}"

    def _words(self, n: int, ready: Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "pydanube_cli.main",
            "up",
            "--data-dir",
            str(self.folder / f"broker-{n}"),
            "--metadata",
            self.metadata,
            "--port-offset",
            str(self.state.port_offset + PORTS_APART * (n - 1)),
            "--ready-file",
            str(ready),
        ]

    def _child(self, n: int) -> Child:
        if n not in self.state.brokers:
            known = ", ".join(map(str, self.state.brokers))
            raise InvalidArgument(f"there is no broker {n}: there are {known}", field="number", value=n)
        if n not in self._brokers:
            self._brokers[n] = Child(f"broker {n}", self.folder / f"broker-{n}.log")
        return self._brokers[n]

    def _lock(self, n: int) -> asyncio.Lock:
        self._child(n)
        return self._busy.setdefault(n, asyncio.Lock())


def prepared(folder: Path, *, brokers: int | None, etcd: int | None, port_offset: int | None) -> State:
    """Return the state for a start in this folder: as it was created, with more brokers if requested.

    Raises:
        Conflict: a local cluster runs there.
        InvalidArgument: it has another etcd or other ports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = State.read(folder)
    if state is None:
        state = State(etcd_ports=_free_ports(etcd or 1), port_offset=port_offset or 0)
    elif is_running(state):
        raise Conflict(
            f"the local cluster in {folder} runs already, as process {state.pid}: danube cluster local status --data-dir {folder}",
            retryable=False,
        )
    elif etcd not in (None, len(state.etcd_ports)):
        raise InvalidArgument(
            f"the cluster in {folder} has {len(state.etcd_ports)} etcd members: leave --etcd out",
            field="etcd",
            value=etcd,
        )
    if port_offset is not None:
        state.port_offset = port_offset
    wanted = max(brokers or 0, len(state.brokers)) or BROKERS
    while len(state.brokers) < wanted:
        state.brokers.append(max(state.brokers, default=0) + 1)
    return state


def is_running(state: State) -> bool:
    """Whether the command that wrote the state still listens."""
    if not state.port:
        return False
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", state.port), timeout=2):
        return True
    return False


def _free_ports(members: int) -> list[tuple[int, int]]:
    """Return two free ports for each member, which the cluster keeps."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2 * members)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [int(each.getsockname()[1]) for each in sockets]
    return list(zip(ports[::2], ports[1::2], strict=True))
