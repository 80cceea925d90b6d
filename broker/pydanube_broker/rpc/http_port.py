"""An HTTP port: an ASGI application on a socket that listens already, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from pydanube_broker.rpc.connection_limits import REQUEST_S, patient_http
from pydanube_broker.rpc.peer_memory import PeerMemory
from pydanube_broker.rpc.places import MOST
from pydanube_broker.rpc.tls_door import TlsDoor

KEEP_ALIVE_S: Final = 65  # longer than the idle time of usual clients, so that they close first


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, which belong to the command, and behind `TlsDoor` if the port has TLS."""

    def __init__(
        self,
        config: uvicorn.Config,
        context: Callable[[], ssl.SSLContext] | None,
        closed: Counter[str],
        of_address: int,
    ) -> None:
        super().__init__(config)
        self._of_address = of_address
        self.up = asyncio.Event()
        self._context = context
        self._closed = closed
        self._door: TlsDoor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        try:
            await super().startup(sockets if self._context is None else [])
        except SystemExit as error:  # uvicorn's report of a failed start
            raise RuntimeError("the application on the HTTP port did not start. The log says why") from error
        if self._context is not None:
            self._door = TlsDoor(
                sockets[0],
                self._protocol,
                self._context,
                patience_s=REQUEST_S,
                closed=self._closed,
                of_address=self._of_address,
            )
        self.up.set()

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is not None:
            self._door.close()
        await super().shutdown(sockets)


class HttpPort:
    """See the module.

    Args:
        app: its lifespan is run if `lifespan` is `on`.
        tls: returns the certificates in effect. None: plain text.
        connections: the maximum number. The longest idle ones give way.
        of_address: of these, from one address. Further ones are closed.
        memory: counts unread answers.
        closed: counts connections closed because of their peer, by reason.
        grace_s: for requests that are under way when it stops.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        connections: int,
        memory: PeerMemory | None,
        of_address: int = MOST,
        closed: Counter[str] | None = None,
        lifespan: str = "off",
        grace_s: float = 1.0,
    ) -> None:
        self._listener = listener
        closed = Counter() if closed is None else closed
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan=lifespan,  # type: ignore[arg-type]
            ws="none",
            proxy_headers=False,  # no trusted proxy in front reports another address
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(grace_s)),
            server_header=False,
            http=patient_http(connections, of_address=of_address, memory=memory, closed=closed),
        )
        self._server = _Server(config, tls, closed, of_address)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.ensure_future(self._server._serve([self._listener]))
        up = asyncio.ensure_future(self._server.up.wait())
        await asyncio.wait((self._task, up), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._task.done():
            await self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._listener.close()
