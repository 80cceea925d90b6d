"""An HTTP proxy in front of a real object store that does what stores do on bad days, on demand.

    with FaultyProxy(server.endpoint) as proxy:
        proxy.fault = Fault.CUT_BODY        # from the next request on; None: a good day again
        proxy.struck                        # how many requests it has struck since `fault` was set

Requests go on as they are, so that signatures hold.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import threading
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

__all__ = ["Fault", "FaultyProxy"]

_BUSY: Final = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
_NOT_PASSED_ON: Final = {"connection", "transfer-encoding", "content-length", "expect"}


class Fault(StrEnum):
    BUSY = "busy"  # 503 to everything
    HANG = "hang"  # no answer, until the fault is over
    CUT_BODY = "cut_body"  # an answer's body ends half-way
    LOSE_WRITE = "lose_write"  # 200 to what is written, which is thrown away
    STALE_LIST = "stale_list"  # a listing as it was when the fault began


class FaultyProxy:
    """See the module. Threads of its own; safe to set from the test's. `host`: where it listens."""

    def __init__(self, endpoint: str, *, host: str = "127.0.0.1") -> None:
        parts = urlsplit(endpoint)
        self._upstream = (str(parts.hostname), int(parts.port or 80))
        self._fault: Fault | None = None
        self._over = threading.Event()
        self._over.set()
        self._lists: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self.struck = 0
        self.headers: list[dict[str, str]] = []  # of what was written
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = http.server.ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://{self._server.server_address[0]!s}:{self._server.server_address[1]}"

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self.struck = 0
        self._fault = fault
        if fault is None:
            self._over.set()
        else:
            self._over.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fault = None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, handler: _Handler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        listing = handler.command == "GET" and "list-type=" in handler.path
        if handler.command in ("PUT", "POST"):
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        match self._fault:
            case Fault.BUSY:
                self.struck += 1
                handler.reply(503, [], _BUSY)
                return
            case Fault.HANG:
                self.struck += 1
                self._over.wait()
                handler.close_connection = True
                return
            case Fault.LOSE_WRITE if handler.command == "PUT" and body:
                self.struck += 1
                handler.reply(200, [("ETag", f'"{hashlib.md5(body).hexdigest()}"')], b"")
                return
            case Fault.STALE_LIST if listing and handler.path in self._lists:
                self.struck += 1
                handler.reply(*self._lists[handler.path])
                return
        upstream = http.client.HTTPConnection(*self._upstream, timeout=60)
        with contextlib.closing(upstream):
            upstream.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                if name.lower() not in _NOT_PASSED_ON or name.lower() == "content-length":
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            data = answer.read()
            headers = [
                (name, value) for name, value in answer.getheaders() if name.lower() not in _NOT_PASSED_ON
            ]
            length = answer.getheader("Content-Length")
        if listing and self._fault is None:
            self._lists[handler.path] = (answer.status, headers, data)
        cut = self._fault is Fault.CUT_BODY and handler.command == "GET" and not listing and len(data) > 1
        self.struck += cut
        handler.reply(answer.status, headers, data, length=length, cut=cut)


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: FaultyProxy
    protocol_version = "HTTP/1.1"

    def reply(
        self,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        *,
        length: str | None = None,
        cut: bool = False,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header(
                "Content-Length", length if length is not None and self.command == "HEAD" else str(len(data))
            )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    def _serve(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.owner.serve(self)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """The store's own log is enough."""
