"""Our own gRPC server: listens, supervises its connections, and stops when told to.

How it is built is in docs/research/grpc-server.md: `http2` speaks HTTP/2 without I/O, `calls` puts gRPC on its streams,
`own_connection` joins both to a transport, and here is what the connections share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pydanube_core.http2 import Limits

from pydanube_broker.rpc.caller import Keeper
from pydanube_broker.rpc.connection_limits import MOST, TOO_MANY_OF_ADDRESS
from pydanube_broker.rpc.deadlines import Deadlines
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.listening import listen
from pydanube_broker.rpc.own_connection import OwnConnection
from pydanube_broker.rpc.peer_memory import PeerMemory
from pydanube_broker.rpc.routing import methods_of, nothing
from pydanube_broker.rpc.tls_door import TlsDoor


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The limits of a connection: time, and memory above the level of frames."""

    #: from the connection to the peer's first SETTINGS
    handshake_s: float = 20.0
    #: for a header block in several frames, and for one frame of at most 64 KiB
    headers_s: float = 10.0
    frame_s: float = 60.0
    #: between two pieces of a request that is one message
    request_s: float = 60.0
    #: a connection on which nothing comes is asked for a sign of life after so long, and given up after so much more
    ping_after_s: float = 30.0
    ping_timeout_s: float = 20.0
    look_s: float = 2.0
    #: a stream whose client takes nothing of what waits in it, while others of its connection wait for the room
    stuck_s: float = 10.0
    connections: int = MOST
    of_address: int = MOST  # of these, from one address; what comes beyond is closed
    #: of one message; handlers refuse less by their own limits, with their own words
    message_bytes: int = 64 << 20
    #: of messages that are not whole, or not wanted yet, of one connection
    held_bytes: int = 128 << 20


class OwnServer:
    """A gRPC server on one address.

    Args:
        host, port: port 0 takes any free one.
        flag: the command's option that moves the port.
        route: what it serves.
        calls: counts calls that ended: service, method, name of the status.
        closed: counts connections that were closed for what their peer did, by reason.
        connections: counts those that were `opened`, and those that `ended`.
        unix_path: listen on this socket too.
        memory: what is held for the peers of all ports of a broker.
        tls: gives the certificates in force, with ALPN `h2`; asks for client certificates as it says.
        keeper: asks who calls; None: nobody does.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        flag: str,
        route: Route,
        calls: Counter[tuple[str, str, str]] | None = None,
        closed: Counter[str] | None = None,
        connections: Counter[str] | None = None,
        unix_path: str | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        limits: Limits | None = None,
        times: Times | None = None,
        memory: PeerMemory | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits or Limits()
        self.times = times or Times()
        self.memory = memory or PeerMemory(256 << 20)
        self.calls: Counter[tuple[str, str, str]] = Counter() if calls is None else calls
        self.closed: Counter[str] = Counter() if closed is None else closed
        self._counted: Counter[str] = Counter() if connections is None else connections
        self.methods = methods_of(route, self.calls)
        self.nothing = nothing(self.calls)
        self.keeper = keeper
        self.deadlines = Deadlines(self.loop)
        self._tls = tls
        self._unix_path = unix_path
        self._listener = listen(host, port, flag=flag)
        self.port: int = self._listener.getsockname()[1]
        self._servers: list[asyncio.Server | TlsDoor] = []
        self.open_connections: set[OwnConnection] = set()
        self.by_address: Counter[str] = Counter()  # of them, by the address they come from
        self._woken: list[OwnConnection] = []
        self._later: dict[float, set[OwnConnection]] = {}  # to be flushed, by how long that waits
        self._timer: asyncio.TimerHandle | None = None
        self._looks = 0
        self._stopping = False
        self._empty = asyncio.Event()

    async def start(self) -> None:
        def factory() -> OwnConnection:
            return OwnConnection(self)

        if self._tls is None:
            self._servers.append(await self.loop.create_server(factory, sock=self._listener, backlog=512))
        else:
            patience_s = self.times.handshake_s
            door = TlsDoor(
                self._listener,
                factory,
                self._tls,
                patience_s=patience_s,
                closed=self.closed,
                of_address=self.times.of_address,
            )
            self._servers.append(door)
        if self._unix_path is not None:
            before = os.umask(0o177)  # nobody else may open it, from its first moment on
            try:
                self._servers.append(await self.loop.create_unix_server(factory, self._unix_path))
            finally:
                os.umask(before)
        self._timer = self.loop.call_later(self.times.look_s, self._look)

    async def stop(self, grace_s: float | None) -> None:
        """Take no more connections and no more calls; give those under way `grace_s`, then end them as retryable."""
        if not self._stopping:
            self._stopping = True
            for server in self._servers:
                server.close()
            if not self._servers:
                self._listener.close()
            for connection in tuple(self.open_connections):
                connection.http.announce_end()
                connection.flush()
        if self.open_connections and grace_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
        for connection in tuple(self.open_connections):
            connection.end_calls()
            connection.close("stopped")
        await asyncio.sleep(0)  # closed transports tell their connections in the next turn
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.deadlines.close()

    # -- of the connections ------------------------------------------------------------------------------------

    def admit(self, connection: OwnConnection) -> bool:
        """Return whether one more connection is accepted."""
        host = connection.peer.host
        if self.by_address[host] >= self.times.of_address and not connection.peer.local:
            self.closed[TOO_MANY_OF_ADDRESS] += 1
            return False
        if self._stopping or len(self.open_connections) >= self.times.connections:
            self.closed["too_many_connections"] += 1
            leaving = None if self._stopping else self._first_to_go()
            if leaving is None:
                return False
            leaving.http.leave("too_many_connections")
            leaving.close("too_many_connections")  # its client comes back when it has something to say
            self._forget(leaving)
        self.open_connections.add(connection)
        self.by_address[host] += 1
        self._counted["opened"] += 1
        self._empty.clear()
        return True

    def _first_to_go(self) -> OwnConnection | None:
        """Of those that nobody has vouched for, or else of those that are idle: one of the address that has most of them, and
        of these that which has said nothing for longest. None: all are at work for somebody who is known."""
        for given in (
            [each for each in self.open_connections if self.keeper is not None and not each.known],
            [each for each in self.open_connections if each.idle],
        ):
            if given:
                of = Counter(each.peer.host for each in given)
                # uvloop counts milliseconds: of two from the same one, that which has not even greeted
                return min(
                    given, key=lambda each: (-of[each.peer.host], each.http.heard_at, each.http.greeted)
                )
        return None

    def lost(self, connection: OwnConnection) -> None:
        self._counted["ended"] += 1
        self._forget(connection)
        for waiting in self._later.values():
            waiting.discard(connection)
        if not self.open_connections:
            self._empty.set()

    def _forget(self, connection: OwnConnection) -> None:
        if connection in self.open_connections:
            self.open_connections.discard(connection)
            host = connection.peer.host
            self.by_address[host] -= 1
            if not self.by_address[host]:
                del self.by_address[host]

    def wake(self, connection: OwnConnection) -> None:
        """Flush the connection at the end of this turn of the loop, together with others."""
        if not self._woken:
            self.loop.call_soon(self.flush_woken)
        self._woken.append(connection)

    def flush_woken(self) -> None:
        """Let leave now what connections have to send; by itself when the loop turns."""
        woken, self._woken = self._woken, []
        now = self.loop.time()
        for connection in reversed(woken):  # who is delivered to was woken after whose publish caused it
            connection.now = now
            connection.flush()

    def flush_later(self, connection: OwnConnection, wait_s: float) -> None:
        """Flush the connection within `wait_s`: for answers to pings, and messages that wait for others."""
        if wait_s not in self._later:
            self._later[wait_s] = set()
            self.loop.call_later(wait_s, self._flush_late, wait_s)
        self._later[wait_s].add(connection)

    def _flush_late(self, wait_s: float) -> None:
        now = self.loop.time()
        for connection in self._later.pop(wait_s):
            connection.now = now
            connection.flush()

    def _look(self) -> None:
        self._timer = self.loop.call_later(self.times.look_s, self._look)
        self._looks += 1
        now = self.loop.time()
        for connection in tuple(self.open_connections):
            connection.look_after(now)
            if self._looks % 4 == 0:
                connection.look_at_requests(now)

    # -- what it tells -----------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        return len(self.open_connections)
