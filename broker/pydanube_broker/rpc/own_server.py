"""Our own gRPC server: listens, supervises its connections, and stops.

Its design is in docs/research/grpc-server.md. `http2` implements HTTP/2 without I/O, `calls` puts gRPC on its streams,
and `own_connection` joins both to a transport. This module has the shared part of the connections.
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
from pydanube_broker.rpc.connection_limits import TOO_MANY_OF_ADDRESS
from pydanube_broker.rpc.deadlines import Deadlines
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.listening import listen
from pydanube_broker.rpc.lost_connections import LostConnections
from pydanube_broker.rpc.own_connection import OwnConnection
from pydanube_broker.rpc.peer_memory import PeerMemory
from pydanube_broker.rpc.places import MOST
from pydanube_broker.rpc.routing import methods_of, nothing
from pydanube_broker.rpc.tls_door import TlsDoor


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The limits of a connection: time, and memory above the level of frames."""

    #: From the connection to the peer's first SETTINGS.
    handshake_s: float = 20.0
    #: For a header block in several frames, and for one frame of at most 64 KiB.
    headers_s: float = 10.0
    frame_s: float = 60.0
    #: Between two pieces of a request that is one message.
    request_s: float = 60.0
    #: A silent connection is probed with a PING after the first time, and closed after the second.
    ping_after_s: float = 30.0
    ping_timeout_s: float = 20.0
    look_s: float = 2.0
    #: A stream whose client takes none of its waiting data, while others of its connection wait for the room.
    stuck_s: float = 10.0
    connections: int = MOST
    of_address: int = MOST  # of these, from one address. Further ones are closed
    #: Maximum of one message. Handlers have lower limits and errors of their own.
    message_bytes: int = 64 << 20
    #: Incomplete messages, and messages that no handler takes yet, of one connection.
    held_bytes: int = 128 << 20


class OwnServer:
    """A gRPC server on one address.

    Args:
        host, port: port 0 takes any free one.
        flag: the command's option that moves the port.
        route: its handlers.
        calls: counts calls that ended: service, method, name of the status.
        closed: counts connections closed because of their peer, by reason.
        connections: counts the `opened` ones and the `ended` ones.
        unix_path: listen on this socket too.
        memory: the memory held for the peers of all ports of a broker.
        tls: returns the certificates in effect, with ALPN `h2`. Its context decides about client certificates.
        keeper: authenticates callers. None: authentication is off.
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
        self.by_address: Counter[str] = Counter()  # open connections by peer address
        self.lost_connections = LostConnections(self.loop)
        self._woken: list[OwnConnection] = []
        self._later: dict[float, set[OwnConnection]] = {}  # connections to flush, by their delay
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
            before = os.umask(0o177)  # no other user may open it, from its first moment on
            try:
                self._servers.append(await self.loop.create_unix_server(factory, self._unix_path))
            finally:
                os.umask(before)
        self._timer = self.loop.call_later(self.times.look_s, self._look)

    async def stop(self, grace_s: float | None) -> None:
        """Take no more connections and no more calls. Give those under way `grace_s`, then end them as retryable."""
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
        await asyncio.sleep(0)  # closed transports notify their connections in the next turn
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
            leaving.close("too_many_connections")  # its client reconnects when it has a call
            self._forget(leaving)
        self.open_connections.add(connection)
        self.by_address[host] += 1
        self._counted["opened"] += 1
        self._empty.clear()
        return True

    def _first_to_go(self) -> OwnConnection | None:
        """Return the connection to close for a new one, or None if all authenticated connections have calls under way.

        Unauthenticated connections come first, then idle ones. Among these, the address with most connections loses the
        one that has been silent longest.
        """
        for given in (
            [each for each in self.open_connections if self.keeper is not None and not each.known],
            [each for each in self.open_connections if each.idle],
        ):
            if given:
                of = Counter(each.peer.host for each in given)
                # uvloop's time is in milliseconds. At equal times, a connection without a greeting comes first.
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
        """Flush connections that have something to send. Called when the loop turns."""
        woken, self._woken = self._woken, []
        now = self.loop.time()
        for connection in reversed(woken):  # a publish wakes its connection before those of its consumers
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

    # -- for status -------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        return len(self.open_connections)
