"""The client's side of one HTTP/2 connection on an asyncio transport: of the SDK, and between brokers.

`http2` has the protocol without I/O. This module moves its bytes, and is the only one of the core that may do so.

Writes of one turn of the loop are joined. With `eager`, the first write of a turn is not delayed, so that a lone message does
not wait. If the peer reads slowly, data beyond the transport's buffer stays queued in its stream, and the stream's
user waits.

A peer that was stopped, or whose machine is gone, closes nothing. If calls are open and nothing came for `keepalive_s`,
the link sends a PING. Without an answer within `keepalive_s` it closes the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast

from pydanube_core.grpc_wire import Unpacker
from pydanube_core.http2 import (
    ClientConnection,
    ConnectionEnded,
    DataReceived,
    GoingAway,
    HeadReceived,
    Limits,
    StreamReset,
)
from pydanube_core.http2.codes import ErrorCode

if TYPE_CHECKING:
    from pydanube_core.http2 import AnswerEvent, Stream
    from pydanube_core.http2.head import AnswerHead

HIGH_WATER_BYTES: Final = 256 << 10  # in the transport, before it pauses writing


class StreamUser(Protocol):
    """One call, as its link sees it (`Stream.user`)."""

    def on_head(self, head: AnswerHead, *, ended: bool) -> None:
        """Handle the answer's headers, or its trailers."""

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        """Handle data[start:end] of the answer. `ended`: the stream ended with it, without trailers."""

    def on_reset(self, code: int, why: str) -> None:
        """Handle the loss of the stream, by this code of its peer or with its connection. `why` may be empty."""

    def eased(self) -> None:
        """Resume writing: the stream has room again."""


class Http2Link(asyncio.Protocol):
    """One connection. Single user: the loop.

    Args:
        url: of the peer, for messages.
        message_bytes: the longest message after decompression.
    """

    #: whether the first write of a turn is not delayed to its end
    eager: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        *,
        limits: Limits,
        message_bytes: int,
        keepalive_s: float,
    ) -> None:
        self.url = url
        self.loop = loop
        self.http = ClientConnection(limits, now=loop.time())
        self.unpack = Unpacker(message_bytes, loop.time)
        self.greeting: asyncio.Future[None] = loop.create_future()  # done as well when the connection is lost
        self.closed: asyncio.Future[None] = loop.create_future()
        self.reason = ""  # why it ended
        self.failed_tls = False  # that is the reason
        self._secured = False
        self._keepalive_s = keepalive_s
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._blocked = False  # the transport takes no more
        self._reading = False  # writes leave together when the read is done
        self._turning = False  # a write at the end of this turn of the loop is scheduled
        self._timer: asyncio.TimerHandle | None = None
        self._probed_at: float | None = None

    @property
    def usable(self) -> bool:
        """Whether a call may start here."""
        return self._transport is not None and self._greeted and not self.http.going

    # -- of the calls ----------------------------------------------------------------------------------------

    def open_stream(self) -> Stream:
        """Open a stream. Requires `usable`, and not `http.full`. The caller sends its headers immediately."""
        stream = self.http.open()
        if self._timer is None:
            self._timer = self.loop.call_later(self._keepalive_s, self._look)
        return stream

    def send(self) -> None:
        """Schedule a write in this turn of the loop."""
        if self._reading or self._turning:
            return
        self._turning = True
        if self.eager:
            self._flush()
        self.loop.call_soon(self._turn)

    def send_later(self) -> None:
        """Schedule a write at the end of this turn of the loop, also where `eager`."""
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        http, out = self.http, self.http.out
        if out.held_bytes or out.turns or out.relieved or out.ended or http.going or http.control.pings:
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
            self.close("the connection was ended")

    def _look(self) -> None:
        """Close the connection if the peer shows no sign of life while calls are open."""
        self._timer = None
        http = self.http
        if self._transport is None or not http.streams:
            self._probed_at = None
            return
        now, patience = self.loop.time(), self._keepalive_s
        if self._probed_at is not None and http.heard_at < self._probed_at:
            self.abort(f"no sign of life for {now - http.heard_at:.0f} s")
            return
        wait = http.heard_at + patience - now
        if wait <= 0:
            self._probed_at, wait = now, patience
            http.probe()
            self.send()
        self._timer = self.loop.call_later(wait, self._look)

    # -- of the transport ------------------------------------------------------------------------------------

    def connection_made(self, given: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, given)  # uvloop's is none by type
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=HIGH_WATER_BYTES // 4)
        self._transport = transport
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._secured = secured is not None
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self.abort("the other side speaks no HTTP/2 in TLS")
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        http = self.http
        self._reading = True
        try:
            for event in http.receive(data, self.loop.time()):
                if type(event) is DataReceived:
                    user = event.stream.user
                    if user is not None:
                        user.on_data(event.data, event.start, event.end, ended=event.ended)
                else:
                    self._other(event)
        finally:
            self._reading = False
        if not self._greeted and http.greeted and not self.greeting.done():
            self._greeted = True
            self.greeting.set_result(None)
        out = http.out
        if out.held_bytes or out.turns or out.relieved or out.ended or http.going:
            self._flush()

    def _other(self, event: AnswerEvent) -> None:
        match event:
            case HeadReceived():
                user: StreamUser | None = event.stream.user
                if user is not None:
                    user.on_head(event.head, ended=event.ended)
            case StreamReset():
                user, event.stream.user = event.stream.user, None
                if user is not None:
                    user.on_reset(event.code, self.reason)
            case ConnectionEnded():  # the peer broke the protocol
                self.close(f"the connection failed: {event.why}")
            case GoingAway() if event.code != ErrorCode.NO_ERROR:
                self.failed_tls = event.code == ErrorCode.INADEQUATE_SECURITY
                self.reason = f"the broker ended the connection: {event.why or event.code}"
            case _:
                pass

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self.why_lost(error))
        if not self.closed.done():
            self.closed.set_result(None)

    def why_lost(self, error: Exception | None) -> str:
        """Return the reason for the loss of the connection, in words."""
        return str(error) if error is not None else "the connection was closed"

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Send the queued data, and close."""
        transport = self._transport
        if transport is not None:
            data = self.http.take(self.http.heard_at)
            if data:
                transport.write(data)
            transport.close()
        self._lost(why)

    def abort(self, why: str) -> None:
        """Close without sending the queued data."""
        if self._transport is not None:
            self._transport.abort()
        self._lost(why)

    def _lost(self, why: str) -> None:
        """Reset all streams because the connection is gone."""
        self.reason = self.reason or why
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.http.ended = self.http.going = True
        streams = tuple(self.http.streams.values())
        self.http.streams.clear()
        for stream in streams:
            user, stream.user = stream.user, None
            self.http.out.forget(stream)
            if user is not None:
                user.on_reset(ErrorCode.NO_ERROR, self.reason)
        if not self.greeting.done():
            self.greeting.set_result(None)
