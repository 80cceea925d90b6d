"""A port that serves `/metrics` and `/healthz` for the connectors of a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pydanube_core.errors import PortInUse

from pydanube_connect.statistics import State, Statistics, exposition

_REQUEST_S: Final = 5.0
_MOST_LINES: Final = 100


@asynccontextmanager
async def metrics_port(host: str, port: int, look: Callable[[], Sequence[Statistics]]) -> AsyncIterator[int]:
    """Serve while the block runs. Yield the port.

    Raises:
        PortInUse: the port cannot be opened.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                first = await reader.readline()
                for _ in range(_MOST_LINES):
                    if (await reader.readline()).strip() == b"":
                        break
                writer.write(_answer(first, look()))
                await writer.drain()
        except (TimeoutError, OSError, ValueError):  # `readline` raises ValueError if a line is too long
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(serve, host, port, limit=8_192)
    except OSError as error:
        raise PortInUse(
            f"port {port} cannot be opened: {error.strerror}. Choose another.", port=port
        ) from None
    async with server:
        yield server.sockets[0].getsockname()[1]


def _answer(request: bytes, found: Sequence[Statistics]) -> bytes:
    path = request.split(b" ")[1] if request.count(b" ") == 2 else b""
    status, kind, body = "404 Not Found", "text/plain", "there are /metrics and /healthz\n"
    if path == b"/metrics":
        status, kind, body = "200 OK", "text/plain; version=0.0.4", exposition(found)
    elif path == b"/healthz":
        healthy = all(one.state in (State.RUNNING, State.STARTING) for one in found)
        status, kind = ("200 OK" if healthy else "503 Service Unavailable"), "application/json"
        body = json.dumps({"healthy": healthy, "connectors": [one.to_dict() for one in found]}) + "\n"
    data = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return head.encode() + data
