"""An identity provider's https server: a key set that changes, and the ways in which such a server misbehaves."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from pydanube_cli.certificates import CertificateFolder


class KeyServer:
    """A server of published keys: tests set its answers; `asked` counts requests by path."""

    def __init__(self, ca: Path, url: str) -> None:
        self.ca = ca
        self.url = url
        self.keys: list[dict[str, Any]] = []
        self.body: bytes | None = None  # instead of the keys
        self.status = 200
        self.location = ""
        self.drip = (
            threading.Event()
        )  # set: after half the answer comes a byte now and then, until it is cleared
        self.gone = threading.Event()  # a client gave a slow answer up
        self.asked: dict[str, int] = {}


def public_jwk(private: Any, kid: str, **more: Any) -> dict[str, Any]:
    """The public half of a key as an identity provider publishes it."""
    name = {"RSAPrivateKey": "RS256", "ECPrivateKey": "ES256", "Ed25519PrivateKey": "EdDSA"}[
        type(private).__name__
    ]
    return {**json.loads(jwt.get_algorithm_by_name(name).to_jwk(private.public_key())), "kid": kid, **more}


@contextmanager
def key_server(folder: Path) -> Iterator[KeyServer]:
    """Serve on localhost, with certificates of an authority of its own in `folder`."""
    made = CertificateFolder(path=folder)
    made.make(["localhost"], principal="x", days=1, again=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked[self.path] = served.asked.get(self.path, 0) + 1
            body = json.dumps({"keys": served.keys}).encode() if served.body is None else served.body
            self.send_response(served.status)
            if served.location:
                self.send_header("location", served.location)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            half = len(body) // 2 if served.drip.is_set() else len(body)
            self.wfile.write(body[:half])
            try:
                while served.drip.is_set() and half < len(body):
                    self.wfile.write(body[half : half + 1])
                    half += 1
                    stopped.wait(0.05)
            except OSError:
                served.gone.set()

        def log_message(self, *_: Any) -> None: ...

    stopped = threading.Event()

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None: ...  # a client that does not trust it goes away

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.file("server.crt"), made.file("server.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    served = KeyServer(made.file("ca.crt"), f"https://localhost:{server.server_port}/keys")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
