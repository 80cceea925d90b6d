"""The console in a browser: textual-serve, behind our own access check.

Additions to textual-serve: opening the page needs a token that works once, which becomes a cookie that scripts do not
see and other sites cannot send. Page, files and websocket require that cookie, our own host and, if there is one, our
own origin. The page loads nothing from a foreign host. At most `MOST_SESSIONS` consoles run at a time.
"""

from __future__ import annotations

import asyncio
import html
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

COOKIE: Final = "danube_console"
MOST_SESSIONS: Final = 4
MOST_COOKIES: Final = 16  # browsers that were let in. The oldest is dropped
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
        self.token = secrets.token_urlsafe(24)
        self._cookies: list[str] = []

    def exchange(self, token: str) -> str | None:
        """Return a cookie for the token, which is then replaced. None for a wrong or used token."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(24)
        self._cookies = [*self._cookies, secrets.token_urlsafe(32)][-MOST_COOKIES:]
        return self._cookies[-1]

    def refusal(self, *, host: str, origin: str | None, cookie: str | None, socket: bool) -> str | None:
        """Return why a request is refused. None: it is served."""
        if host not in self.hosts:
            return "this console answers to its own address only"
        if origin is None and socket:
            return "a websocket carries its origin"
        if origin is not None and (urlsplit(origin).scheme != "http" or urlsplit(origin).netloc != host):
            return "another page may not use this console"
        given = (cookie or "").encode()
        if not any(secrets.compare_digest(given, known.encode()) for known in self._cookies):
            return "open the link that danube tui --serve printed. Each works once"
        return None


class ConsoleServer(Server):
    """Serves consoles. `command` starts one."""

    def __init__(self, command: str, listener: socket.socket, say: Callable[[str], None]) -> None:
        host, port = listener.getsockname()[:2]
        if host in (
            "0.0.0.0",
            "::",
        ):  # no address to open: a container, whose port is published on its machine
            host = "127.0.0.1"
        super().__init__(command, host=host, port=port, title="danube console")
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
        app.add_routes(
            [
                web.get("/", self._index, name="index"),
                web.get("/keys.js", self._keys),
                web.get("/ws", self.handle_websocket, name="websocket"),
                web.static("/static", self.statics_path, name="static"),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        token = request.query.get("token") if request.path == "/" else None
        refusal = self.door.refusal(
            host=request.host,
            origin=request.headers.get("Origin"),
            cookie=request.cookies.get(COOKIE),
            socket=request.path == "/ws",
        )
        if token is not None and request.host in self.door.hosts and "Origin" not in request.headers:
            response = self._enter(token)
        elif refusal is not None:
            response = web.Response(status=403, text=f"{refusal}\n")
        elif request.path == "/ws" and self._sessions >= MOST_SESSIONS:
            response = web.Response(status=503, text=f"{MOST_SESSIONS} consoles are open already\n")
        else:
            response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _enter(self, token: str) -> web.Response:
        cookie = self.door.exchange(token)
        if cookie is None:
            return web.Response(status=403, text="this link was used already, or is none of ours\n")
        self._say(f"a browser connected. The link for another one: {self.link}")
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="Strict", path="/")
        return response

    async def _index(self, request: web.Request) -> web.Response:
        page = _PAGE.read_text(encoding="utf-8").replace("WEBSOCKET", html.escape(f"ws://{request.host}/ws"))
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
        try:
            await web.SockSite(runner, self._listener).start()
            self._say(f"the console is at {self.link}")
            await ends.wait()
        finally:
            await runner.cleanup()
