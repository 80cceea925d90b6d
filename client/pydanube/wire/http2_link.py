"""One connection to a broker: our own HTTP/2 (`pydanube_core.http2`) on an asyncio transport.

What is said first in a turn of the loop leaves at once, so that a lone message does not wait; what is said after that in
the same turn leaves together at its end. Towards a broker that reads slowly, what does not fit into the transport waits
in its stream, and its writer waits.

A broker that is stopped or whose machine is gone closes nothing. While calls are open and nothing has come for
`keepalive_s`, it is asked for a sign of life; without an answer for as long again the connection is given up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from typing import TYPE_CHECKING, Final, cast

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

from pydanube.wire.endpoint import UNIX
from pydanube.wire.http2_call import MESSAGE_BYTES, Call
from pydanube.wire.statuses import not_reached
from pydanube.wire.tls import CLOSED_AFTER_HANDSHAKE, tls_failure

if TYPE_CHECKING:
    from pydanube_core.http2 import AnswerEvent, Stream


# It would write every header down where somebody wants to see all logs: also `authorization`, whose owner anybody could be.
logging.getLogger("hpack").setLevel(logging.INFO)

#: a consumer's credit bounds what is sent to it, so windows have only to be out of the way
LIMITS: Final = Limits(
    stream_window_bytes=4 << 20,
    stream_window_max_bytes=4 << 20,
    connection_window_bytes=16 << 20,
    connection_window_max_bytes=16 << 20,
    out_bytes=512 << 10,
    buffer_bytes=768 << 10,
    ping_answer_s=0.0,
)
HIGH_WATER_BYTES: Final = 256 << 10  # held by the transport before it says so
CLOSE_S: Final = 0.5  # for the goodbye to leave, and TLS to end
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


async def open_link(
    url: str, host: str, port: int, *, tls: ssl.SSLContext | None, patience_s: float, keepalive_s: float
) -> Link:
    """Connect, and wait for the broker's HTTP/2 settings.

    Raises:
        Unavailable: it did not within `patience_s`, or there is none.
    """
    loop = asyncio.get_running_loop()
    link = Link(url, loop, keepalive_s)
    why, failed_tls = "", False
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
    except OSError as error:  # those of ssl are such too
        why, failed_tls = _reason(error), isinstance(error, ssl.SSLError)
    except asyncio.CancelledError:
        link.abort()
        raise
    why = why or link.reason
    if why:
        link.abort()
        raise not_reached(url, why, tls=failed_tls or link.failed_tls)
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


class Link(asyncio.Protocol):
    """The protocol of one connection, as the module describes it."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop, keepalive_s: float) -> None:
        self.url = url
        self.loop = loop
        self.http = ClientConnection(LIMITS, now=loop.time())
        self.greeting: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.unpack = Unpacker(MESSAGE_BYTES, loop.time)
        self.reason = ""  # why it ended
        self.failed_tls = False  # that is the reason
        self._secured = False
        self._keepalive_s = keepalive_s
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._blocked = False  # the transport takes no more
        self._reading = False  # what is said now leaves when the read is done with
        self._turning = False  # something was sent in this turn of the loop already
        self._timer: asyncio.TimerHandle | None = None
        self._probed_at: float | None = None

    @property
    def usable(self) -> bool:
        """Whether a call may begin here."""
        return self._transport is not None and not self.http.going

    # -- of the calls ----------------------------------------------------------------------------------------

    def start(self, headers: tuple[tuple[bytes, bytes], ...]) -> Call:
        """Begin a call.

        Raises:
            Unavailable: the broker allows no more on this connection.
        """
        stream, call = self._open()
        self.http.out.head(stream, headers)
        if not self._turning:
            # At the end of this turn of the loop: whoever begins a stream writes to it at once.
            self._turning = True
            self.loop.call_soon(self._turn)
        return call

    def ask(self, headers: tuple[tuple[bytes, bytes], ...], request: bytes) -> Call:
        """Begin a call with its only message."""
        stream, call = self._open()
        self.http.out.request(stream, headers, request)
        self.send()
        return call

    def _open(self) -> tuple[Stream, Call]:
        if not self.usable or self.http.full:
            raise not_reached(self.url, self.reason or "it allows no more streams on this connection")
        stream = self.http.open()
        stream.user = call = Call(self, stream)
        if self._timer is None:
            self._timer = self.loop.call_later(self._keepalive_s, self._look)
        return stream, call

    def _look(self) -> None:
        """Close the connection if the broker shows no sign of life while calls are under way."""
        self._timer = None
        http = self.http
        if self._transport is None or not http.streams:
            self._probed_at = None
            return
        now, patience = self.loop.time(), self._keepalive_s
        if self._probed_at is not None and http.heard_at < self._probed_at:
            self.reason = f"no sign of life for {now - http.heard_at:.0f} s"
            self.abort()
            return
        wait = http.heard_at + patience - now
        if wait <= 0:
            self._probed_at, wait = now, patience
            http.probe()
            self.send()
        self._timer = self.loop.call_later(wait, self._look)

    def send(self) -> None:
        """Schedule a write in this turn of the loop."""
        if self._reading:
            return
        if not self._turning:
            self._turning = True
            self._flush()
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        out = self.http.out
        if out.held_bytes or out.turns or out.ended or self.http.going or self.http.control.pings:
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

    # -- of the transport ------------------------------------------------------------------------------------

    def connection_made(self, given: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, given)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=HIGH_WATER_BYTES // 4)
        self._transport = transport
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._secured = secured is not None
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self._lost("the other side speaks no HTTP/2 in TLS")
            transport.abort()
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        http = self.http
        self._reading = True
        try:
            for event in http.receive(data, self.loop.time()):
                if type(event) is DataReceived:
                    call = event.stream.user
                    if call is not None:
                        call.on_data(event.data, event.start, event.end, ended=event.ended)
                else:
                    self._other(event)
        finally:
            self._reading = False
        if not self._greeted and http.greeted and not self.greeting.done():
            self._greeted = True
            self.greeting.set_result(None)
        out = http.out
        if out.held_bytes or out.turns or http.going or out.ended:
            self._flush()

    def _other(self, event: AnswerEvent) -> None:
        match event:
            case HeadReceived():
                call: Call | None = event.stream.user
                if call is not None:
                    call.on_head(event.head, ended=event.ended)
            case StreamReset():
                call, event.stream.user = event.stream.user, None
                if call is not None:
                    call.on_reset(event.code, self.reason)
            case ConnectionEnded():
                # What the broker sent is no HTTP/2, or not as it must be.
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
        why = _reason(error) if isinstance(error, OSError) else "the connection was closed"
        self.failed_tls = self.failed_tls or isinstance(error, ssl.SSLError)
        if self._secured and not self._greeted and not self.failed_tls:
            # asyncio sends no alert when a server refuses a certificate: it closes.
            self.failed_tls, why = True, CLOSED_AFTER_HANDSHAKE
        self._lost(why)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Send what is queued, and close."""
        transport = self._transport
        if transport is not None:
            data = self.http.take(self.http.heard_at)
            if data:
                transport.write(data)
            transport.close()
        self._lost(why)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lost("given up")

    async def aclose(self) -> None:
        """Send GOAWAY and close the connection; waits at most `CLOSE_S` for the other side."""
        transport = self._transport
        if transport is not None:
            self.http.say_goodbye()
            self.close("the client closed the connection")
            await asyncio.wait([self.closed], timeout=CLOSE_S)
            transport.abort()  # where the other side does not take its part in closing; else it does nothing

    def _lost(self, why: str) -> None:
        self.reason = self.reason or why
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.http.ended = self.http.going = True
        streams = tuple(self.http.streams.values())
        self.http.streams.clear()
        for stream in streams:
            call, stream.user = stream.user, None
            self.http.out.forget(stream)
            if call is not None:
                call.on_reset(ErrorCode.NO_ERROR, self.reason)
        if not self.greeting.done():
            self.greeting.set_result(None)
