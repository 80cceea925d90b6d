"""The HTTP face on port 8765: `POST /rpc`, and `/mcp` if there is an MCP application to mount.

Plain ASGI, so that every request passes the same checks: a web page in a user's browser must not be able to
administer a cluster on that machine. Hence Host and Origin must be loopback names unless others were allowed
(403), and the body must be declared `application/json` (415), which no form and no simple cross-site request
can do. The body is read here, whole and limited (413), before any application sees it.

    app = HttpFace(JsonRpc(ops), mcp=mcp_app)        # mcp_app: pydanube_mcp.mcp_app(...), or None
    async with http_server(sock, app):               # sock: bound, listening or not. Closed at the end
        ...                                          # answers until the block is left
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, MutableMapping
from typing import Any, Final

import anyio
from pydanube_core.calling_program import CallingProgram, current_program
from pydanube_core.errors import ClusterError, InvalidArgument, MissingExtra, Overloaded, PermissionDenied
from pydanube_core.extras import install_command
from pydanube_core.http_hosts import host_name, is_loopback

from pydanube_admin.engine.permission import NO_QUESTION
from pydanube_admin.jsonrpc import JsonRpc, openrpc_document
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.value_limit import check_values

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
# Of all requests that are arriving or being answered. Small bodies are always accepted, for connections are
# bounded.
MAX_BODIES_BYTES: Final = 32 * 1024 * 1024
SMALL_BODY_BYTES: Final = 64 * 1024
BODY_TIMEOUT_S: Final = 30.0  # for a body to arrive: a stuck upload must not hold its connection
DISCARD_BYTES: Final = 64 * 1024 * 1024  # of a body that is too large, before its sender is cut off
DISCARD_S: Final = 5.0
DISCARD_PAUSE_S: Final = 0.5
MAX_PRINCIPAL_CHARS: Final = 256
_ONCE: Final = frozenset({b"host", b"origin", b"authorization", b"content-type", b"danube-principal"})

# Methods beside POST: the 2025 wire ends its sessions with DELETE, and its GET stream carries messages that a
# server sends unasked, the alerts that a client subscribed to.
OPENRPC: Final = "/openrpc.json"
MCP: Final = "/mcp"
MCP_READ: Final = "/mcp/read"  # the same server, which only reads there
_MCP_METHODS: Final = ("POST", "GET", "DELETE")
_METHODS: Final = {"/rpc": ("POST",), MCP: _MCP_METHODS, MCP_READ: _MCP_METHODS, OPENRPC: ("GET",)}


class _HttpError(Exception):
    """An answer that ends a request before it reaches a face."""

    def __init__(self, status: int, error: ClusterError, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = headers


def _check_once(names: Iterable[bytes]) -> None:
    """Refuse a request that repeats a header about its sender, origin or host.

    Of two values, one reader would take the first and another the last.
    """
    for name, count in Counter(names).items():
        if count > 1 and name in _ONCE:
            word = name.decode()
            raise _HttpError(
                400,
                InvalidArgument(f"the header {word} stands there {count} times. Send it once", field=word),
            )


class _Room:
    """The memory for the bodies of all requests together, from arrival to answer."""

    def __init__(self) -> None:
        self._taken = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[Callable[[int], None]]:
        """Return a function for one body, called with its present length. It raises if there is no room."""
        mine = 0

        def grown(length: int) -> None:
            nonlocal mine
            wanted = max(0, length - SMALL_BODY_BYTES)
            if self._taken + wanted - mine > MAX_BODIES_BYTES:
                raise _HttpError(
                    503,
                    Overloaded(
                        f"bodies of {MAX_BODIES_BYTES} bytes are under way already. Try again in a moment"
                    ),
                    (("retry-after", "1"), ("connection", "close")),
                )
            self._taken += wanted - mine
            mine = wanted

        try:
            yield grown
        finally:
            self._taken -= mine


class HttpFace:
    """The ASGI application of the HTTP port.

    Args:
        rpc: answers `/rpc`. None: `/rpc` is 404.
        mcp: answers `/mcp`. Its lifespan is run with ours. None: `/mcp` is 404.
        allowed_hosts: names, without port, that Host and Origin may have beside the loopback ones. `*` allows
            any.
    """

    def __init__(
        self, rpc: JsonRpc | None, *, mcp: AsgiApp | None = None, allowed_hosts: Collection[str] = ()
    ) -> None:
        self._rpc = rpc
        self._mcp = mcp
        answerers = (("/rpc", rpc), (MCP, mcp), (MCP_READ, mcp), (OPENRPC, rpc))
        self._paths = [path for path, answerer in answerers if answerer is not None]
        self._room = _Room()
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                with self._room.place() as grown:
                    await self._http(scope, receive, send, grown)
            case "lifespan" if self._mcp is not None:
                await self._mcp(scope, receive, send)
            case "lifespan":
                await idle_lifespan(receive, send)
            case _:  # no websockets here: ASGI's way to refuse one
                await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send, grown: Callable[[int], None]) -> None:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        try:
            _check_once(name.lower() for name, _ in scope["headers"])
            path = self._admit(scope, headers)
            body = await _read_body(headers, receive, grown) if scope["method"] == "POST" else b""
            if body is not None:
                _check_values(body)
        except _HttpError as refused:
            await _send_json(send, refused.status, {"error": refused.error.to_dict()}, refused.headers)
            return
        if body is None:  # the client went away
            return
        if path == OPENRPC:
            await _send_json(send, 200, openrpc_document())
            return
        if path in (MCP, MCP_READ):
            assert self._mcp is not None
            await self._mcp(scope, _replay(body, receive), send)
            return
        assert self._rpc is not None
        name, _, version = headers.get("user-agent", "").partition(" ")[0].partition("/")
        before = current_program.set(CallingProgram(name=name, version=version))
        try:
            answer = await self._rpc.handle(body, principal=headers.get("danube-principal"))
        finally:
            current_program.reset(before)
        if answer is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await _send_body(send, 200, answer)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> str:
        """Return the path of an admitted request. Host and Origin come first: foreign pages learn nothing else."""
        host = headers.get("host", "")
        if not self._is_allowed(host_name(f"//{host}")):
            raise _HttpError(403, _foreign("Host", host))
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(host_name(origin)):
            raise _HttpError(403, _foreign("Origin", origin))
        path: str = scope["path"]
        if path not in self._paths:
            there = " and ".join(f"{_METHODS[known][0]} {known}" for known in self._paths)
            raise _HttpError(
                404, InvalidArgument(f"there is no {path[:100]} here, only {there}", field="path")
            )
        methods = _METHODS[path]
        if scope["method"] not in methods:
            error = InvalidArgument(
                f"{path} takes {methods[0]}, not {scope['method']}", field="method", value=scope["method"]
            )
            raise _HttpError(405, error, (("allow", ", ".join(methods)),))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            error = InvalidArgument(
                f"send Content-Type: application/json, not {kind[:100] or 'none'}",
                field="content-type",
                value=kind[:100],
            )
            raise _HttpError(415, error)
        principal = headers.get("danube-principal", "x")
        if not (principal.isprintable() and 1 <= len(principal) <= MAX_PRINCIPAL_CHARS):
            error = InvalidArgument(
                f"Danube-Principal: use 1-{MAX_PRINCIPAL_CHARS} printable characters",
                field="danube-principal",
            )
            raise _HttpError(400, error)
        return path

    def _is_allowed(self, name: str | None) -> bool:
        if name is None:
            return False
        return is_loopback(name) or name in self._allowed_hosts or "*" in self._allowed_hosts


def _foreign(header: str, value: str) -> PermissionDenied:
    return PermissionDenied(
        f"{header} {value[:100]!r} is not this machine. Use http://127.0.0.1 or http://localhost",
        field=header.lower(),
        value=value[:100],
    )


async def _read_body(headers: dict[str, str], receive: Receive, grown: Callable[[int], None]) -> bytes | None:
    """Return the whole body, or None if the client left. At most `MAX_BODY_BYTES`, declared or not."""
    declared = headers.get("content-length", "0")
    if len(declared) > 19 or not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        if "expect" not in headers:  # with `Expect: 100-continue` the client has not begun to send
            await _discard(receive)
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    break
                grown(len(body))
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        late = InvalidArgument(f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
        raise _HttpError(408, late, (("connection", "close"),)) from error
    await _discard(receive)
    raise _too_large()


async def _discard(receive: Receive) -> None:
    """Let a client finish sending, within bounds.

    If the connection closes while the client still sends, its system discards our answer, and the client
    never learns the reason.
    """
    taken = 0
    with anyio.move_on_after(DISCARD_S):
        while taken <= DISCARD_BYTES:
            with anyio.move_on_after(DISCARD_PAUSE_S) as pause:
                message = await receive()
            if (
                pause.cancelled_caught
                or message["type"] == "http.disconnect"
                or not message.get("more_body", False)
            ):
                return
            taken += len(message.get("body", b""))


def _too_large() -> _HttpError:
    error = InvalidArgument(
        f"the body is larger than {MAX_BODY_BYTES} bytes", field="body", max_bytes=MAX_BODY_BYTES
    )
    return _HttpError(413, error, (("connection", "close"),))


def _check_values(body: bytes) -> None:
    try:
        check_values(body, "body")
    except InvalidArgument as error:
        raise _HttpError(413, error) from error


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the read body, then the server's next events (that the client left)."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


async def _send_json(send: Send, status: int, body: Any, headers: tuple[tuple[str, str], ...] = ()) -> None:
    await _send_body(send, status, json.dumps(body).encode(), headers)


async def _send_body(send: Send, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
    fields = (("content-type", "application/json"), ("content-length", str(len(body))), *headers)
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


async def idle_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _uvicorn_server(app: AsgiApp, up: anyio.Event, *, grace_s: float, protocol: Any) -> Any:
    """Make the server that `http_server` runs. It sets `up` once it takes connections."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra(
            f"the HTTP face needs more than the base installation: {install_command('broker')}",
            extra="broker",
        ) from error

    class Server(uvicorn.Server):
        """uvicorn's server, which would otherwise take the process's signal handlers for itself."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().startup(sockets)
            except SystemExit as error:  # how the library reports a failed start
                raise RuntimeError(
                    "the application on the HTTP port did not start. The log has the reason"
                ) from error
            up.set()

    return Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            http=protocol,
            server_header=False,
            proxy_headers=False,  # there is no proxy in front that could report a client address
            timeout_keep_alive=65,  # longer than the idle time of usual clients, so that they close first
            timeout_graceful_shutdown=max(1, round(grace_s)),
        )
    )


@contextlib.asynccontextmanager
async def http_server(
    sock: socket.socket, app: AsgiApp, *, grace_s: float = 5.0, protocol: Any = "auto"
) -> AsyncIterator[None]:
    """Serve `app` on a bound socket while the block runs.

    On leaving, no new connection is taken and open requests have `grace_s` to finish. Then they are dropped,
    and the socket is closed. Signals are left to the command that runs this. `protocol` is uvicorn's `http`.

    Raises `MissingExtra`: uvicorn is not installed.
    """
    up = anyio.Event()
    server = _uvicorn_server(app, up, grace_s=grace_s, protocol=protocol)

    async def run() -> None:
        with running:
            await server.serve(sockets=[sock])
        if not server.should_exit:
            raise RuntimeError("the HTTP server ended unexpectedly. The log has the reason")

    running = anyio.CancelScope(shield=True)  # after a cancellation, open requests still get their grace
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                await up.wait()
                yield
            finally:
                server.should_exit = True
                running.deadline = anyio.current_time() + grace_s + 2  # past uvicorn's own deadline
    except BaseExceptionGroup as group_error:
        # The caller does not see this group: its own error may be the one inside.
        if len(group_error.exceptions) == 1:
            raise group_error.exceptions[0] from group_error.exceptions[0].__cause__
        raise
    finally:
        sock.close()


_TOOL_CALL: Final = "tools/call"
_BY_TOOL: Final = {operation.tool: operation for operation in OPERATIONS.values()}


def asked_permission(body: bytes) -> str | None:
    """Return the permission for the operation that a JSON-RPC request or MCP tool call names.

    None for other requests, or if no permission is needed.
    """
    try:
        check_values(body, "body")
        request = json.loads(body)
    except (InvalidArgument, ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    method, params = request.get("method"), request.get("params")
    if method == _TOOL_CALL:
        name = params.get("name") if isinstance(params, dict) else None
        operation = _BY_TOOL.get(name) if isinstance(name, str) else None
    else:
        operation = OPERATIONS.get(method) if isinstance(method, str) else None
    return None if operation is None or operation.name in NO_QUESTION else operation.permission
