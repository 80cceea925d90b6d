"""The console in a browser: textual-serve, behind our own access check.

Additions to textual-serve: opening the page needs a token that works once, which becomes a cookie that scripts do not
see and other sites cannot send. Browsers send a cookie to every port of a host, so the cookie is limited to a secret
path: another server on this machine is not sent it, and two consoles do not replace each other's. Page, files and
websocket require that cookie, our own host and, if there is one, our own origin. The page loads nothing from a foreign
host. At most `MOST_SESSIONS` consoles run at a time. A connection that shows no cookie is closed after `STRANGER_S`.
"""

from __future__ import annotations

import asyncio
import html
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from aiohttp import web
from textual_serve.server import Server

COOKIE: Final = "danube_console"
MOST_SESSIONS: Final = 4
MOST_COOKIES: Final = 16  # browsers that were let in. The oldest is dropped
MOST_CONNECTIONS: Final = 64  # a browser opens at most 7: 6 for files, and a websocket per console
STRANGER_S: Final = 10.0  # for a request with a cookie, on any network that a person can bear
_ACCEPT_AGAIN_S: Final = 0.2  # after the process ran out of descriptors
_PAGE: Final = Path(__file__).with_name("serving_page.html")
_KEYS: Final = Path(__file__).with_name("serving_keys.js")
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """Decides which requests are served. Pure, except for the random token and cookies."""

    def __init__(self, hosts: frozenset[str]) -> None:
        self.hosts = hosts
        self.place = f"/{secrets.token_urlsafe(12)}/"
        self.token = secrets.token_urlsafe(24)
        self._cookies: list[str] = []

    def exchange(self, token: str) -> str | None:
        """Return a cookie for the token, which is then replaced. None for a wrong or used token."""
        if not _is_equal(token, self.token):
            return None
        self.token = secrets.token_urlsafe(24)
        self._cookies = [*self._cookies, secrets.token_urlsafe(32)][-MOST_COOKIES:]
        return self._cookies[-1]

    def refusal(self, *, host: str, origins: Sequence[str], cookie: str | None, socket: bool) -> str | None:
        """Return why a request is refused. None: it is served."""
        if host not in self.hosts:
            return "this console answers to its own address only"
        if not origins and socket:
            return "a websocket carries its origin"
        if any(origin != f"http://{host}" for origin in origins):
            return "another page may not use this console"
        if not any(_is_equal(cookie or "", known) for known in self._cookies):
            return "open the link that danube tui --serve printed. Each works once"
        return None


def _is_equal(given: str, secret: str) -> bool:
    """Compare in constant time. Bytes of a header that are no UTF-8 arrive as surrogates."""
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


class Visitors:
    """The open connections: bounded, and those without a valid cookie closed after `STRANGER_S`."""

    def __init__(self) -> None:
        self._strangers: dict[asyncio.Transport, None] = {}  # by age
        self._known: set[asyncio.Transport] = set()

    def arrived(self, transport: asyncio.Transport) -> None:
        """Count a new connection. If there are too many, close the oldest stranger, which may be this one."""
        for each in [each for each in self._strangers if each.is_closing()]:
            del self._strangers[each]
        self._known = {each for each in self._known if not each.is_closing()}
        if transport in self._known:
            return
        self._strangers[transport] = None
        if len(self._strangers) + len(self._known) > MOST_CONNECTIONS:
            self._close(next(iter(self._strangers)))
        asyncio.get_running_loop().call_later(STRANGER_S, self._close, transport)

    def let_in(self, transport: asyncio.Transport | None) -> None:
        """Keep a connection open: a request on it had a valid cookie."""
        if transport is not None:
            self._strangers.pop(transport, None)
            self._known.add(transport)

    def _close(self, stranger: asyncio.Transport) -> None:
        if stranger in self._strangers:
            del self._strangers[stranger]
            stranger.abort()


class ConsoleServer(Server):
    """Serves consoles. `command` starts one."""

    def __init__(self, command: str, listener: socket.socket, say: Callable[[str], None]) -> None:
        host, port = listener.getsockname()[:2]
        # Not an address to open: the port of a container is published on its machine.
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        if ":" in host:
            host = f"[{host}]"
        super().__init__(command, host=host, port=port, title="danube console")
        self.visitors = Visitors()
        self.door = Door(frozenset({f"{host}:{port}", f"localhost:{port}"}))
        self._listener = listener
        self._say = say
        self._sessions = 0

    @property
    def link(self) -> str:
        """Return the link for the next browser. It works once."""
        return f"{self.public_url}/?token={self.door.token}"

    async def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        place = self.door.place
        app.add_routes(
            [
                web.get(place, self._index),
                web.get(f"{place}keys.js", self._keys),
                web.get(f"{place}ws", self.handle_websocket),
                web.static(f"{place}static", self.statics_path),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        # Only a browser that opens the link uses the token up: programs that preview links send HEAD.
        enters = request.path == "/" and request.method == "GET"
        token = request.query.get("token") if enters else None
        is_socket = request.path == f"{self.door.place}ws"
        refusal = self.door.refusal(
            host=request.host,
            origins=request.headers.getall("Origin", []),
            cookie=request.cookies.get(COOKIE),
            socket=is_socket,
        )
        if token is not None and request.host in self.door.hosts and "Origin" not in request.headers:
            response = self._enter(token)
        elif refusal is not None:
            response = web.Response(status=403, text=f"{refusal}\n")
        elif is_socket and self._sessions >= MOST_SESSIONS:
            response = web.Response(status=503, text=f"{MOST_SESSIONS} consoles are open already\n")
        else:
            self.visitors.let_in(request.transport)
            response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _enter(self, token: str) -> web.Response:
        cookie = self.door.exchange(token)
        if cookie is None:
            return web.Response(status=403, text="this link was used already, or is none of ours\n")
        self._say(f"a browser connected. The link for another one: {self.link}")
        response = web.Response(status=303, headers={"Location": self.door.place})
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="Strict", path=self.door.place)
        return response

    async def _index(self, request: web.Request) -> web.Response:
        socket_url = html.escape(f"ws://{request.host}{self.door.place}ws")
        page = _PAGE.read_text(encoding="utf-8").replace("WEBSOCKET", socket_url)
        return web.Response(text=page, content_type="text/html")

    async def _keys(self, _: web.Request) -> web.Response:
        return web.Response(text=_KEYS.read_text(encoding="utf-8"), content_type="text/javascript")

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run one console for as long as its browser is connected."""
        self._sessions += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._sessions -= 1

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        ends = asyncio.Event()
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(each, ends.set)
        accepting = loop.create_task(self._accept(runner))
        try:
            self._say(f"the console is at {self.link}")
            await ends.wait()
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
            self._listener.close()
            await runner.cleanup()

    async def _accept(self, runner: web.AppRunner) -> None:
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None
        while True:
            try:
                peer, _ = await loop.sock_accept(self._listener)
                transport, _ = await loop.connect_accepted_socket(server, peer)
            except OSError:  # the peer is gone already, or no descriptor is free
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self.visitors.arrived(transport)
