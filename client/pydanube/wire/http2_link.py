"""One connection to a broker: how it is opened and closed, and the calls on it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from typing import TYPE_CHECKING, Final

from pydanube_core.grpc_wire import Headers
from pydanube_core.http2 import Limits
from pydanube_core.http2_link import Http2Link

from pydanube.wire.endpoint import UNIX
from pydanube.wire.http2_call import MESSAGE_BYTES, Call
from pydanube.wire.statuses import not_reached
from pydanube.wire.tls import CLOSED_AFTER_HANDSHAKE, tls_failure

if TYPE_CHECKING:
    from pydanube_core.http2 import Stream


# At DEBUG it logs every header, also `authorization`, with which anyone could act as its owner.
logging.getLogger("hpack").setLevel(logging.INFO)

#: a consumer's credit bounds deliveries, so windows only have to be large enough
LIMITS: Final = Limits(
    stream_window_bytes=4 << 20,
    stream_window_max_bytes=4 << 20,
    connection_window_bytes=16 << 20,
    connection_window_max_bytes=16 << 20,
    out_bytes=512 << 10,
    buffer_bytes=768 << 10,
    ping_answer_s=0.0,
)
CLOSE_S: Final = 0.5  # for the goodbye to leave, and TLS to end
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


async def open_link(
    url: str, host: str, port: int, *, tls: ssl.SSLContext | None, patience_s: float, keepalive_s: float
) -> Link:
    """Connect, and wait for the broker's HTTP/2 settings.

    Raises:
        Unavailable: the broker was not reached, or did not send them within `patience_s`.
    """
    loop = asyncio.get_running_loop()
    link = Link(url, loop, keepalive_s)
    why, failed_tls, not_trusted = "", False, False
    try:
        async with asyncio.timeout(patience_s):
            if host.startswith(UNIX):
                await loop.create_unix_connection(lambda: link, host.removeprefix(UNIX))
            else:
                await loop.create_connection(
                    lambda: link, host, port, ssl=tls, server_hostname=host if tls is not None else None
                )
            await link.greeting
    except TimeoutError:
        why = f"no answer within {patience_s:g} s"
    except OSError as error:  # includes errors of ssl
        why, failed_tls = _reason(error), isinstance(error, ssl.SSLError)
        not_trusted = isinstance(error, ssl.SSLCertVerificationError)
    except asyncio.CancelledError:
        link.abort("given up")
        raise
    why = why or link.reason
    if why:
        link.abort("given up")
        raise not_reached(url, why, tls=failed_tls or link.failed_tls, retryable=not not_trusted)
    return link


def _reason(error: OSError) -> str:
    """Return an error's reason in the system's words, without asyncio's list of addresses."""
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    number = error.errno
    if number is None or not isinstance(error, ConnectionError):
        found = _ERRNO.search(str(error))
        number = int(found[1]) if found else None
    return os.strerror(number) if number else str(error)


class Link(Http2Link):
    """The connection of an SDK's client: each stream is a `Call`."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop, keepalive_s: float) -> None:
        super().__init__(url, loop, limits=LIMITS, message_bytes=MESSAGE_BYTES, keepalive_s=keepalive_s)

    def start(self, headers: Headers) -> Call:
        """Start a call, to which the caller writes immediately.

        Raises:
            Unavailable: the broker allows no more on this connection.
        """
        stream, call = self._open()
        self.http.out.head(stream, headers)
        self.send_later()
        return call

    def ask(self, headers: Headers, request: bytes) -> Call:
        """Start a call with its only message. Raises as `start`."""
        stream, call = self._open()
        self.http.out.request(stream, headers, request)
        self.send()
        return call

    def _open(self) -> tuple[Stream, Call]:
        if not self.usable or self.http.full:
            raise not_reached(self.url, self.reason or "it allows no more streams on this connection")
        stream = self.open_stream()
        stream.user = call = Call(self, stream)
        return stream, call

    def why_lost(self, error: Exception | None) -> str:
        self.failed_tls = self.failed_tls or isinstance(error, ssl.SSLError)
        if self._secured and not self._greeted and not self.failed_tls:
            # asyncio sends no alert when a server refuses a certificate: it closes.
            self.failed_tls = True
            return CLOSED_AFTER_HANDSHAKE
        return _reason(error) if isinstance(error, OSError) else "the connection was closed"

    async def aclose(self) -> None:
        """Send GOAWAY and close the connection. Waits at most `CLOSE_S` for the other side."""
        transport = self._transport
        if transport is not None:
            self.http.send_goaway()
            self.close("the client closed the connection")
            await asyncio.wait([self.closed], timeout=CLOSE_S)
            transport.abort()  # for a peer that does not close its side. Otherwise it does nothing
