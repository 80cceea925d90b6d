"""The HTTP face whose MCP half is loaded by its first request.

The SDK and the models of two protocols take a second of processor time and 50 MB to load. A broker whose HTTP
port receives no MCP request needs neither. The first request to `/mcp` loads them, in a thread, while the
loop goes on serving. Later requests wait for the same load. An error of the load is the answer to all waiting
requests, and the next request tries again.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
from pydanube_admin.http import AsgiApp, HttpFace, Receive, Scope, Send, idle_lifespan
from pydanube_admin.jsonrpc import JsonRpc
from pydanube_admin.remote import OpsClient, OpsEntry

_log = logging.getLogger("pydanube.mcp")

T = TypeVar("T")

_FAILED: Final = (
    b'{"error": {"code": "INTERNAL", "message": "the MCP server could not be loaded; the log says why"}}'
)


class LazyApp(Generic[T]):
    """An ASGI application that its first request creates.

    Args:
        load: the slow part, which runs in a thread.
        serve: makes the application from the result of `load`, on the loop, and closes it at the end.
    """

    def __init__(
        self, load: Callable[[], T], serve: Callable[[T], AbstractAsyncContextManager[AsgiApp]]
    ) -> None:
        self._load = load
        self._serve = serve
        self._app: AsgiApp | None = None
        self._turn = anyio.Lock()
        self._wanted = anyio.Event()
        self._opened = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Own the resources of the application, and close them at the end of the block."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep)
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    async def _keep(self) -> None:
        """Keep the application open, in a task of its own. In a request's task it would end with that."""
        while True:
            await self._wanted.wait()
            try:
                # Abandoned when the process stops: a half-finished load needs no closing, and the stop must
                # not wait for it.
                loaded = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
                async with self._serve(loaded) as self._app:
                    # As at the start of the process: permanent objects are excluded from garbage collection.
                    gc.freeze()
                    self._opened.set()
                    await anyio.sleep_forever()
            except Exception:
                _log.exception("the MCP server could not be loaded", extra={"event": "mcp_not_loaded"})
            finally:
                self._app = None
                self._opened.set()
            self._wanted, self._opened = anyio.Event(), anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await idle_lifespan(receive, send)
            return
        if self._app is None:
            opened = self._opened
            self._wanted.set()
            await opened.wait()
        if self._app is None:
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_FAILED))]
            await send({"type": "http.response.start", "status": 500, "headers": head})
            await send({"type": "http.response.body", "body": _FAILED})
            return
        await self._app(scope, receive, send)


@asynccontextmanager
async def lazy_http_face(
    admin_url: str,
    *,
    profile: str,
    confirm: str,
    read_only: bool = False,
    toolsets: str | None = None,
    timeout_s: float = 10.0,
    allowed_hosts: Collection[str] = (),
    entry: OpsEntry | None = None,
) -> AsyncIterator[HttpFace]:
    """`http_face` of one cluster: `/rpc` is ready immediately, `/mcp` is loaded by its first request.

    `entry` is `danube.ops/Call` if that is in this process: both then bypass the admin port.
    """

    def load() -> Any:
        # By name and here: imported at the top, they would cost the time that this module saves.
        import_module("pydanube_mcp.run")
        build: Any = import_module("pydanube_mcp.server").build_server
        return build(
            admin_url,
            profile=profile,
            confirm=confirm,
            read_only=read_only,
            toolsets=toolsets,
            timeout_s=timeout_s,
            entry=entry,
        )

    app = LazyApp(load, lambda server: import_module("pydanube_mcp.run").serving(server))
    ops = OpsClient(admin_url, timeout_s=timeout_s, face="jsonrpc", entry=entry)
    async with app.running(), ops:
        yield HttpFace(JsonRpc(ops), mcp=app, allowed_hosts=allowed_hosts)
