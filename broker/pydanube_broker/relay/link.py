"""One connection to another broker, over our own HTTP/2: carries calls of many clients, each a stream.

The windows of its streams bound what is on the way for a client that does not read: the connection's window is given
back as soon as something came, so that no stream holds up another. A broker that is stopped closes nothing: while calls
are under way and nothing came for `KEEPALIVE_S`, it is asked for a sign of life, and given up after as long again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from pydanube_core.grpc_wire import Headers, Unpacker
from pydanube_core.http2 import (
    ClientConnection,
    ConnectionEnded,
    DataReceived,
    GoingAway,
    HeadReceived,
    Limits,
    Stream,
    StreamReset,
)
from pydanube_core.http2.codes import ErrorCode
from pydanube_core.http2.head import AnswerHead

LIMITS: Final = Limits(
    stream_window_bytes=256 << 10,
    stream_window_max_bytes=1 << 20,
    connection_window_bytes=16 << 20,
    connection_window_max_bytes=16 << 20,
    out_bytes=512 << 10,
    buffer_bytes=768 << 10,
    ping_answer_s=0.0,
)
MESSAGE_BYTES: Final = 64 << 20  # of one message, as brokers take them
HIGH_WATER_BYTES: Final = 256 << 10
CONNECT_S: Final = 5.0
KEEPALIVE_S: Final = 10.0


class Leg(Protocol):
    """A relayed call as its link sees it."""

    def on_head(self, head: AnswerHead, *, ended: bool) -> None:
        """The answer's headers arrived, or its trailers."""

    def on_data(self, data: bytes, start: int, end: int) -> None: ...

    def on_lost(self, why: str, *, untouched: bool) -> None:
        """The stream was lost; `untouched`: the other broker has not processed it."""

    def eased(self) -> None:
        """There is room again for more data."""


class Link(asyncio.Protocol):
    """See the module. Single user: the loop."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.http = ClientConnection(LIMITS, now=loop.time())
        self.http.out.shared = True
        self.unpack = Unpacker(MESSAGE_BYTES, loop.time)
        self.reason = ""  # why it ended
        self._loop = loop
        self._ready: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._blocked = False
        self._reading = False
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._probed_at: float | None = None

    async def connect(self, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """Connect, and wait for the HTTP/2 settings of the other side; `reason` says why that failed."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        try:
            context = tls() if tls is not None and parts.scheme == "https" else None
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(
                    lambda: self,
                    host,
                    parts.port or 0,
                    ssl=context,
                    server_hostname=host if context is not None else None,
                )
                await self._ready
        except TimeoutError:
            self.abort(f"no answer within {CONNECT_S:g} s")
        except OSError as error:
            self.abort(error.strerror or str(error))
        except asyncio.CancelledError:
            self.abort("given up")
            raise

    @property
    def usable(self) -> bool:
        """Whether a call may start here."""
        return self._transport is not None and self.http.greeted and not self.http.going

    # -- of the calls ----------------------------------------------------------------------------------------

    def ask(self, headers: Headers, request: bytes, leg: Leg) -> Stream:
        """Start a call with its only message. Requires `usable`, and not `http.full`."""
        stream = self._open(leg)
        self.http.out.request(stream, headers, request)
        self.send()
        return stream

    def start(self, headers: Headers, leg: Leg) -> Stream:
        """Start a call whose request is a stream; the caller writes to it at once."""
        stream = self._open(leg)
        self.http.out.head(stream, headers)
        return stream

    def _open(self, leg: Leg) -> Stream:
        stream = self.http.open()
        stream.user = leg
        if self._timer is None:
            self._timer = self._loop.call_later(KEEPALIVE_S, self._look)
        return stream

    def cancel(self, stream: Stream) -> None:
        """Cancel a stream that nobody waits for any more."""
        stream.user = None
        self.http.reset(stream, ErrorCode.CANCEL)
        self.send()

    def resume(self, stream: Stream) -> None:
        """Resume a stream: its client reads again."""
        self.http.resume(stream, self._loop.time())
        self.send()

    def send(self) -> None:
        """Schedule a write at the end of this turn, together with everything else sent in it."""
        if not self._reading and not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._flush()

    def _flush(self) -> None:
        http, transport = self.http, self._transport
        if transport is None:
            return
        while not self._blocked and (data := http.take(http.heard_at)):
            transport.write(data)
            if not http.out.turns:
                break
        if http.out.relieved:
            relieved, http.out.relieved = http.out.relieved, []
            for stream in relieved:
                if stream.user is not None:
                    stream.user.eased()
        if http.going and not http.streams and not http.out.ended:
            self.abort("the connection was ended")

    def _look(self) -> None:
        """Close the link if the other broker shows no sign of life while calls are under way."""
        self._timer = None
        http = self.http
        if self._transport is None or not http.streams:
            self._probed_at = None
            return
        now = self._loop.time()
        if self._probed_at is not None and http.heard_at < self._probed_at:
            self.abort(f"no sign of life for {now - http.heard_at:.0f} s")
            return
        wait = http.heard_at + KEEPALIVE_S - now
        if wait <= 0:
            self._probed_at, wait = now, KEEPALIVE_S
            http.probe()
            self.send()
        self._timer = self._loop.call_later(wait, self._look)

    # -- of the transport ------------------------------------------------------------------------------------

    def connection_made(self, given: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, given)  # uvloop's is none by type
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=HIGH_WATER_BYTES // 4)
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        http = self.http
        self._reading = True
        try:
            for event in http.receive(data, self._loop.time()):
                match event:
                    case DataReceived():
                        if event.stream.user is not None:
                            event.stream.user.on_data(event.data, event.start, event.end)
                            if event.ended:  # gRPC ends with trailers
                                self._lose(event.stream, "the answer ended without a status")
                    case HeadReceived():
                        if event.stream.user is not None:
                            event.stream.user.on_head(event.head, ended=event.ended)
                    case StreamReset():
                        self._lose(
                            event.stream,
                            self.reason or _why_reset(event.code),
                            untouched=event.code == ErrorCode.REFUSED_STREAM,
                        )
                    case ConnectionEnded():
                        self.abort(f"the connection failed: {event.why}")
                    case GoingAway() if event.code != ErrorCode.NO_ERROR:
                        self.reason = f"the broker ended the connection: {event.why or event.code}"
                    case _:
                        pass
        finally:
            self._reading = False
        if http.greeted and not self._ready.done():
            self._ready.set_result(None)
        self._flush()

    def _lose(self, stream: Stream, why: str, *, untouched: bool = False) -> None:
        leg, stream.user = stream.user, None
        if leg is not None:
            leg.on_lost(why, untouched=untouched)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(str(error) if error is not None else "the connection was closed")

    def abort(self, why: str) -> None:
        """Close at once; calls under way are told why."""
        self.reason = self.reason or why
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.http.ended = self.http.going = True
        streams = tuple(self.http.streams.values())
        self.http.streams.clear()
        for stream in streams:
            self.http.out.forget(stream)
            self._lose(stream, self.reason)
        if not self._ready.done():
            self._ready.set_result(None)


def _why_reset(code: int) -> str:
    if code == ErrorCode.ENHANCE_YOUR_CALM:
        return "the client did not read what it was sent, and others waited for its room"
    return f"the stream was reset: {code:d}"


#: to one broker; each carries as many calls as that one allows on a connection, 10 000
_LINKS: Final = 8


class Links:
    """The connections to other brokers, a few for each address: opened on demand, closed with the broker.

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
        """Call `then` with a usable link that has room, at once if there is one, or with the reason why there is none."""
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
