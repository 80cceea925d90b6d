"""The pipe between the client and the in-memory cluster.

Messages are handled in a later turn of the loop than they are written in, as they would be behind a network. A pipe
may be used from several loops (the sync facade has one a client): the cluster's state is under one lock, and what is
sent to a client goes to its own loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.transport import listen_by_reading


class Server(Protocol):
    """What stands at the cluster's end of a pipe."""

    @property
    def topic(self) -> object | None: ...

    def on_message(self, message: bytes) -> None: ...

    def on_close(self) -> None: ...

    def encode_failure(self, failure: pb.Failure) -> bytes: ...


class Connections:
    """Every pipe of a cluster, and the one lock over its state."""

    __slots__ = ("lock", "pipes")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pipes: set[Pipe] = set()


class Pipe:
    """A stream as the client holds it; the server writes with `send`."""

    def __init__(self, connections: Connections, serve: Callable[[Pipe], Server]) -> None:
        self._connections = connections
        self.loop = asyncio.get_running_loop()
        self._inbound: deque[bytes] = deque()
        self._outbound: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._error: ClusterError | None = None
        self._pumping = False
        self._closed = False
        self._server: Server | None = None
        with connections.lock:
            connections.pipes.add(self)
            self._server = serve(self)

    # -- the client's side -----------------------------------------------------------------------------------

    async def write(self, message: bytes) -> None:
        self._check()
        self._put(message)

    def _put(self, message: bytes) -> None:
        self._inbound.append(message)
        if not self._pumping:
            self._pumping = True
            self.loop.call_soon(self._pump)

    def write_at_once(self, message: bytes) -> bool:
        if self._error is not None or self._closed:
            return False
        self._put(message)
        return True

    async def read(self) -> bytes | None:
        while not self._outbound:
            self._check()
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._outbound.popleft()

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        return await listen_by_reading(self, take)

    async def finish(self) -> None:
        self.cut(None)

    async def aclose(self) -> None:
        self.cut(None)

    def _check(self) -> None:
        if self._error is not None:
            raise ClusterError.from_dict(self._error.to_dict())
        if self._closed:
            raise Unavailable("the stream is closed")

    # -- the cluster's side ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pumping = False
        with self._connections.lock:
            while self._inbound and not self._closed and self._server is not None:
                try:
                    self._server.on_message(self._inbound.popleft())
                except ClusterError as error:
                    self.send_failure(error)

    def serves(self, topics: Collection[object]) -> bool:
        """Whether it is a producer's or a consumer's of one of these."""
        return self._server is not None and self._server.topic in topics

    def send_failure(self, error: ClusterError) -> None:
        """A failure of the stream, which ends it."""
        failure = pb.Failure(error=error.to_json().encode())
        if self._server is not None:
            self.send(self._server.encode_failure(failure))
        self.cut(error)

    def send(self, message: bytes) -> None:
        if not self._closed:
            self._outbound.append(message)
            self._wake()

    def cut(self, error: ClusterError | None) -> None:
        """End the stream; what was sent before still arrives."""
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._inbound.clear()
        with self._connections.lock:
            self._connections.pipes.discard(self)
            server, self._server = self._server, None
            if server is not None:
                server.on_close()
        self._wake()

    def _wake(self) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            self._wake_reader()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake_reader)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
