"""One HTTP request to an address of the settings: no redirects, bounded in bytes and in time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from pydanube_core.errors import Unavailable

MOST_S: Final = 10.0  # from the name's look-up to the last byte


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    """A request. `setting` names it in errors, because a URL may hold a secret. `ca`: the authority of an https server,
    None for the system's."""

    setting: str
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    ca: Path | None = None
    most_bytes: int  # of the answer


async def answer_to(request: OutgoingRequest) -> bytes:
    """Carry out a request in a thread of its own, and return the body of a 2xx answer. Raises `Unavailable`."""
    call = _Call(request)
    try:
        with anyio.fail_after(MOST_S):
            return await anyio.to_thread.run_sync(call.answer, abandon_on_cancel=True)
    except TimeoutError:
        raise Unavailable(f"{request.setting}: no whole answer within {MOST_S:g} s") from None
    finally:
        call.abort()


class _Call:
    def __init__(self, request: OutgoingRequest) -> None:
        self._request = request
        self._socket: socket.socket | None = None

    def answer(self) -> bytes:
        setting = self._request.setting
        try:
            return self._answer()
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(f"{setting}: its server is not trusted ({error.verify_message})") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"{setting}: {type(error).__name__}: {str(error)[:200]}") from None

    def _answer(self) -> bytes:
        request = self._request
        parts = urlsplit(request.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=request.ca)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=MOST_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=MOST_S)
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(request.method, target, body=request.body, headers=dict(request.headers))
            with contextlib.closing(connection.getresponse()) as answer:
                if not 200 <= answer.status < 300:
                    moved = ", and redirects are not followed" if 300 <= answer.status < 400 else ""
                    raise Unavailable(f"{request.setting}: the answer is {answer.status}{moved}")
                body = answer.read(request.most_bytes + 1)
        if len(body) > request.most_bytes:
            raise Unavailable(f"{request.setting}: the answer has more than {request.most_bytes} bytes")
        return body

    def abort(self) -> None:
        """End the wait of the thread, which a server can prolong by sending a byte now and then."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
