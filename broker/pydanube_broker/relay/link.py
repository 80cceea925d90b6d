"""Connections to other brokers: each carries calls of many clients, each call a stream.

The windows of its streams bound the data in flight for a client that does not read. The connection's window is given
back as soon as data has arrived, so that no stream blocks another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any, Final
from urllib.parse import urlsplit

from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.facts import DialFacts
from pydanube_core.grpc_wire import Headers
from pydanube_core.http2 import Limits, Stream
from pydanube_core.http2.codes import ErrorCode
from pydanube_core.http2_link import Http2Link, StreamUser

#: the stream ended without trailers, so the call has no status
NO_STATUS: Final = "the answer ended without a status"
LIMITS: Final = Limits(
    stream_window_bytes=256 << 10,
    stream_window_max_bytes=1 << 20,
    connection_window_bytes=16 << 20,
    connection_window_max_bytes=16 << 20,
    out_bytes=512 << 10,
    buffer_bytes=768 << 10,
    ping_answer_s=0.0,
)
MESSAGE_BYTES: Final = 64 << 20  # maximum of one message, as brokers accept them
CONNECT_S: Final = 5.0
ACCEPTED_S: Final = 1.0  # the kernel of a stopped process accepts for it
KEEPALIVE_S: Final = 10.0


class Leg:
    """A relayed call as its link sees it: the base of stream users (`http2_link.StreamUser`)."""

    def on_reset(self, code: int, why: str) -> None:
        if code == ErrorCode.ENHANCE_YOUR_CALM:
            why = why or "the client did not read its messages, and other calls waited for the room"
        self.on_lost(why or f"the stream was reset: {code:d}", untouched=code == ErrorCode.REFUSED_STREAM)

    def on_lost(self, why: str, *, untouched: bool) -> None:
        """Handle the loss of the stream. `untouched`: the other broker has not processed it."""
        raise NotImplementedError


class BrokerCall(Leg, StreamUser):
    """A call that this broker makes itself: `_end` gets why it was lost."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits."""
        return True

    def on_lost(self, why: str, *, untouched: bool) -> None:
        what = "cannot be reached" if untouched else "went away"
        self._end(Unavailable(f"the broker at {self.url} {what} ({why})", broker=self.url))

    def eased(self) -> None:
        """Do nothing, because requests are small and few."""

    def _end(self, error: ClusterError) -> None:
        """End the call, once, with an error."""
        raise NotImplementedError


def request_head(url: str, path: str) -> Headers:
    """Return the fields that each request to another broker begins with."""
    parts = urlsplit(url)
    return (
        (b":method", b"POST"),
        (b":scheme", parts.scheme.encode()),
        (b":path", path.encode()),
        (b":authority", parts.netloc.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity,gzip"),
    )


class Link(Http2Link):
    """See the module."""

    eager = False  # a turn carries calls of many clients

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(url, loop, limits=LIMITS, message_bytes=MESSAGE_BYTES, keepalive_s=KEEPALIVE_S)
        self.http.out.shared = True

    async def connect(self, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """Connect, and wait for the HTTP/2 settings of the other side. After a failure `reason` has the cause."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        try:
            context = tls() if tls is not None and parts.scheme == "https" else None
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(
                    lambda: self,
                    host,
                    parts.port or 0,
                    ssl=context,
                    server_hostname=host if context is not None else None,
                )
                await self.greeting
        except TimeoutError:
            accepts = "it accepts the connection, and sends nothing: " if self._transport is not None else ""
            self.abort(f"{accepts}no answer within {CONNECT_S:g} s")
        except ssl.SSLCertVerificationError as error:
            self.abort(f"its certificate is not accepted: {error.verify_message}")
        except OSError as error:
            self.abort(error.strerror or str(error))
        except asyncio.CancelledError:
            self.abort("given up")
            raise

    def ask(self, headers: Headers, request: bytes, leg: StreamUser) -> Stream:
        """Start a call with its only message. Requires `usable`, and not `http.full`."""
        stream = self.open_stream()
        stream.user = leg
        self.http.out.request(stream, headers, request)
        self.send()
        return stream

    def start(self, headers: Headers, leg: StreamUser) -> Stream:
        """Start a call whose request is a stream. The caller writes to it immediately."""
        stream = self.open_stream()
        stream.user = leg
        self.http.out.head(stream, headers)
        self.send_later()
        return stream

    def cancel(self, stream: Stream) -> None:
        """Cancel a stream whose caller has stopped waiting."""
        stream.user = None
        self.http.reset(stream, ErrorCode.CANCEL)
        self.send()

    def resume(self, stream: Stream) -> None:
        """Resume a stream: its client reads again."""
        self.http.resume(stream, self.loop.time())
        self.send()


#: connections to one broker. Each carries as many calls as that broker allows on a connection, 10 000
_LINKS: Final = 8


async def _connects(url: str) -> bool:
    """Return whether a process accepts connections at the address. It may end them, or send nothing."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(ACCEPTED_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, parts.hostname or "", parts.port or 0
            )
    except OSError:  # also of the timeout
        return False
    transport.abort()
    return True


class Links:
    """The connections to other brokers, up to `_LINKS` per address: opened on demand, closed with the broker.

    Args:
        tls: for brokers whose address is `https`.
    """

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], None], tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self._spawn = spawn
        self._tls = tls
        self._links: dict[str, list[Link]] = {}
        self._waiting: dict[str, list[Callable[[Link | str], None]]] = {}

    def reach(self, url: str, then: Callable[[Link | str], None]) -> None:
        """Call `then` with a usable link that has room, immediately if one is open, or with the reason for having none."""
        links = self._links.get(url)
        if links is not None:
            for link in links:
                if link.usable and not link.http.full and not link.http.out.overdue:
                    then(link)
                    return
            links[:] = [link for link in links if link.usable]
            if len(links) >= _LINKS:
                then(f"all {_LINKS} connections are full")
                return
        waiting = self._waiting.get(url)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[url] = [then]
        self._spawn(self._connect(url))

    def ask(self, headers: Headers, request: bytes, call: BrokerCall) -> None:
        """Send a call's only message as soon as its broker is reached, if the caller still waits then."""

        def go(link: Link | str) -> None:
            if isinstance(link, str):
                call.on_lost(link, untouched=True)
            elif call.wanted:
                link.ask(headers, request, call)

        self.reach(call.url, go)

    async def dial(self, url: str) -> DialFacts:
        """Open a connection and close it again. If that fails, see whether a process accepts connections there."""
        link = Link(url, asyncio.get_running_loop())
        await link.connect(self._tls)
        if not link.usable:
            return DialFacts(address=url, failure=link.reason, connects=await _connects(url))
        link.close("")
        return DialFacts(address=url, failure=None)

    async def _connect(self, url: str) -> None:
        link = Link(url, asyncio.get_running_loop())
        try:
            await link.connect(self._tls)
        finally:
            waiting = self._waiting.pop(url)
            if link.usable:
                self._links.setdefault(url, []).append(link)
            for then in waiting:
                if link.usable and link.http.full:
                    self.reach(url, then)
                else:
                    then(link if link.usable else link.reason)

    def close(self) -> None:
        """Close the links to all brokers."""
        links, self._links = self._links, {}
        for link in chain.from_iterable(links.values()):
            link.abort("this broker leaves")
