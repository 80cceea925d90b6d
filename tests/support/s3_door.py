"""S3 with conditions for tests: a door before rclone's server, which replaces objects whatever it is asked.

`PUT` with `If-None-Match: *` is answered 412 where the object is, one such request of a key at a time. Everything else
passes as it is. The server behind it takes any caller: a signature is of the door's address.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from tests.support.s3_server import S3Server

_TAKEN: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>PreconditionFailed</Code>'
    b"<Message>At least one of the pre-conditions you specified did not hold</Message></Error>"
)
_HOP: Final = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect")


class _Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind: str
    locks: defaultdict[str, threading.Lock]

    def _ask(self, method: str, body: bytes | None) -> tuple[int, list[tuple[str, str]], bytes]:
        server = urlsplit(self.behind)
        connection = http.client.HTTPConnection(server.hostname or "", server.port, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            connection.request(method, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT" and self.headers.get("If-None-Match") == "*":
            with self.locks[self.path.partition("?")[0]]:
                if self._ask("HEAD", None)[0] == 200:
                    self._answer(412, [("Content-Type", "application/xml")], _TAKEN)
                    return
                found = self._ask("PUT", body)
        else:
            found = self._ask(self.command, body or None)
        self._answer(*found)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers:
            if self.command == "HEAD" and name.lower() == "content-length":
                length = value
            elif name.lower() not in (*_HOP, "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def conditional(server: S3Server) -> Iterator[S3Server]:
    """Open the door before a server that was started with `public=True`."""

    handler = type("Door", (_Door,), {"behind": server.endpoint, "locks": defaultdict(threading.Lock)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as door:
        door.daemon_threads = True
        thread = threading.Thread(target=door.serve_forever, daemon=True)
        thread.start()
        try:
            yield replace(server, endpoint=f"http://127.0.0.1:{door.server_address[1]}")
        finally:
            door.shutdown()
            thread.join()
