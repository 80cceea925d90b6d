"""Running the server: over stdio for a client that starts us, over HTTP beside JSON-RPC."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Unpack

import anyio
from mcp.server.transport_security import TransportSecuritySettings
from pydanube.addresses import DEFAULT_ADMIN_URL
from pydanube_admin.http import (
    MAX_BODY_BYTES,
    MCP,
    AsgiApp,
    HttpFace,
    http_server,
)
from pydanube_admin.jsonrpc import JsonRpc
from pydanube_admin.remote import OpsClient
from starlette.applications import Starlette

from pydanube_mcp.envelopes import CheckedMessages
from pydanube_mcp.narrowing import Narrowed
from pydanube_mcp.server import DanubeServer, ServerArguments, build_server
from pydanube_mcp.session_limit import SessionLimit

# Only sessions of the 2025 protocol: each holds its streams, about 100 kB. A new one replaces the one that
# has been idle longest. Only if every session has an open stream or a call under way is the new one refused
# with 503.
MAX_SESSIONS: Final = 256
SESSION_IDLE_S: Final = 600.0


def mcp_app(server: DanubeServer) -> AsgiApp:
    """Return the ASGI application of streamable HTTP, for `HttpFace(mcp=…)`, whose guard must be in front of it."""
    return _in_front_of(_starlette(server))


@asynccontextmanager
async def serving(server: DanubeServer) -> AsyncIterator[AsgiApp]:
    """Yield the same application, with `server` and its sessions open until the end of the block."""
    app = _starlette(server)
    async with server, app.router.lifespan_context(app):
        yield _in_front_of(app)


def _in_front_of(app: AsgiApp) -> AsgiApp:
    return Narrowed(SessionLimit(CheckedMessages(app)))


def _starlette(server: DanubeServer) -> Starlette:
    return server.streamable_http_app(
        # Interrupted streams are resumed only for the conformance suite: in ours there is nothing to lose.
        event_store=server.others,
        retry_interval=None if server.others is None else 100,
        streamable_http_path=MCP,
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        session_idle_timeout=SESSION_IDLE_S,
        # HttpFace has checked Host and Origin against its own list, which may be longer than the SDK's.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


@asynccontextmanager
async def http_face(
    connections: Mapping[str, str] | str = DEFAULT_ADMIN_URL,
    *,
    rpc: bool = True,
    allowed_hosts: Collection[str] = (),
    **arguments: Unpack[ServerArguments],
) -> AsyncIterator[HttpFace]:
    """Yield the application of port 8765, `/rpc` and `/mcp`, with its connections, closed at the end.

        async with http_face(admin_url) as app, http_server(sock, app):
            ...

    `/rpc` speaks for the first of several clusters. A read-only face has no `/rpc`, which could change things.
    """
    server = build_server(connections, **arguments)
    first = connections if isinstance(connections, str) else next(iter(connections.values()))
    timeout_s, principal = arguments.get("timeout_s", 10.0), arguments.get("principal")
    ops = OpsClient(first, timeout_s=timeout_s, principal=principal, face="jsonrpc")
    spoken = rpc and not arguments.get("read_only", False)
    async with server, ops:
        yield HttpFace(JsonRpc(ops) if spoken else None, mcp=mcp_app(server), allowed_hosts=allowed_hosts)


def _settle() -> None:
    """Exclude all present objects from garbage collection, because they are permanent. Turn collection on."""
    gc.freeze()
    gc.enable()


def run_stdio(
    connections: Mapping[str, str] | str = DEFAULT_ADMIN_URL, **arguments: Unpack[ServerArguments]
) -> None:
    """Serve on stdin and stdout until stdin ends, or until SIGINT or SIGTERM. Logs must go to stderr."""

    async def serve() -> None:
        async with (
            build_server(connections, **arguments) as server,
            anyio.create_task_group() as group,
        ):
            _settle()
            group.start_soon(_until_signal, group.cancel_scope)
            await server.run_stdio_async()
            group.cancel_scope.cancel()

    anyio.run(serve)


async def _until_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


def run_http(
    sock: socket.socket,
    connections: Mapping[str, str] | str = DEFAULT_ADMIN_URL,
    *,
    allowed_hosts: Collection[str] = (),
    grace_s: float = 5.0,
    protocol: Any = "auto",
    **arguments: Unpack[ServerArguments],
) -> None:
    """Serve `/mcp` on a bound socket until SIGINT or SIGTERM, then finish open requests within `grace_s`.

    `protocol` is uvicorn's `http`. The starter of the process bounds its connections by it.
    """

    async def serve() -> None:
        async with http_face(connections, rpc=False, allowed_hosts=allowed_hosts, **arguments) as app:
            _settle()
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with http_server(sock, app, grace_s=grace_s, protocol=protocol):
                    async for _ in signals:
                        break

    anyio.run(serve)
