"""Limits of an HTTP port's connections: their number, and how long one may be silent.

A full port closes the longest idle connection of the address that has most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from pydanube_broker.rpc.caller import Peer, address_of
from pydanube_broker.rpc.peer_memory import TLS_BYTES, PeerBuffer, PeerMemory
from pydanube_broker.rpc.places import MOST

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

TOO_MANY_OF_ADDRESS: Final = "too_many_of_address"
REQUEST_S: Final = 20.0  # seconds for the head of a request, and between two pieces of its body
_TOGETHER_BYTES: Final = 64 * 1024


def _nothing() -> None: ...


class OneWrite:
    """A transport that sends all writes of one turn of the loop together, such as the head of an answer and its body.

    Separate writes would each be a system call, and would each wake the peer.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, wrote: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._wrote = wrote
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size >= _TOGETHER_BYTES:  # flow control is in the transport, which must see the writes
            self._flush()

    def _flush(self) -> None:
        held, self._held, self._size = self._held, [], 0
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))
            self._wrote()

    def release(self) -> None:
        """Drop the reference to the callback for writes."""
        self._wrote = _nothing

    def close(self) -> None:
        self._flush()
        self._transport.close()


def patient_http(
    connections: int,
    request_s: float = REQUEST_S,
    *,
    of_address: int = MOST,
    memory: PeerMemory | None = None,
    closed: Counter[str] | None = None,
) -> type[H11Protocol]:
    """Return uvicorn's HTTP/1.1 protocol with limits: connections, connections per address, and time.

    Args:
        request_s: maximum time in which a peer must send the next part of a request, or read some of its answer.
        memory: counts unread answers, and the memory of TLS.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    here: dict[Patient, None] = {}

    class Patient(H11Protocol):
        """One HTTP connection that is closed when its peer is too slow."""

        host = ""
        quiet_since = 0.0
        look: asyncio.TimerHandle | None = None
        unread, unread_since = 0, 0.0  # bytes of answers, and since when the peer has read none
        in_tls = 0  # memory of its TLS state, bytes

        def connection_made(self, transport: Any) -> None:
            super().connection_made(cast("asyncio.Transport", OneWrite(transport, self.loop, self.note)))
            self.quiet_since = self.loop.time()
            peer = Peer(address=address_of(transport.get_extra_info("peername")))
            self.buffer = PeerBuffer(
                peer,
                self.quiet_since,
                holds=lambda: self.in_tls + transport.get_write_buffer_size(),
                give_up=transport.abort,
            )
            self.host = peer.host
            if sum(each.host == peer.host for each in here) >= of_address:
                if closed is not None:
                    closed[TOO_MANY_OF_ADDRESS] += 1
                transport.abort()
                return
            if len(here) >= connections:
                leaving = first_to_go(self.host)
                if leaving is None:
                    transport.abort()
                    return
                leaving.transport.close()
            here[self] = None
            if transport.get_extra_info("ssl_object") is not None:
                self.in_tls = TLS_BYTES
                self.note()
            self.look = self.loop.call_later(request_s, self.look_after)

        def connection_lost(self, exc: Exception | None) -> None:
            here.pop(self, None)
            if memory is not None:
                memory.note(self.buffer, 0)
            self.buffer.release()
            if self.look is not None:
                self.look.cancel()
                self.look = None
            super().connection_lost(exc)
            # Drop both references of the cycle, so that it does not stay behind.
            cast("OneWrite", self.transport).release()
            if self.working is None:
                self.cycle = None  # type: ignore[assignment]

        def data_received(self, data: bytes) -> None:
            self.buffer.passed += len(data)
            if self.in_tls and self.in_tls < TLS_BYTES + len(data):
                self.in_tls = TLS_BYTES + len(data)
                self.note()
            if self.working is not None:  # pieces of a body. Pieces of a head buy no time
                self.quiet_since = self.loop.time()
            super().data_received(data)

        def send_400_response(self, msg: str) -> None:
            """Answer malformed HTTP with 400, and end the connection. A request whose body it was gets no answer."""
            cycle = self.working
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
                if cycle.response_started:  # half an answer is sent, and no other can follow
                    self.transport.close()
                    return
            super().send_400_response(msg)

        def on_response_complete(self) -> None:
            self.quiet_since = self.loop.time()
            super().on_response_complete()

        def note(self) -> None:
            if memory is not None and (held := self.buffer.holds()) != self.buffer.held:
                memory.note(self.buffer, held)

        @property
        def working(self) -> Any:
            """The request under way, or None."""
            cycle = self.cycle
            return None if cycle is None or cycle.response_complete else cycle

        def look_after(self) -> None:
            """Close if the peer takes too long to send a request or the rest of one, or to read its answer."""
            self.buffer.look(self.loop.time())
            self.note()
            unread, now = self.transport.get_write_buffer_size(), self.loop.time()
            if unread != self.unread:
                self.unread, self.unread_since = unread, now
            elif unread and now - self.unread_since >= request_s:
                self.transport.abort()
                return
            cycle = self.working
            waits_for_us = cycle is not None and not cycle.more_body
            # After an answer uvicorn has a timer of its own, until data arrives.
            kept_alive = cycle is None and self.timeout_keep_alive_task is not None
            quiet_s = now - self.quiet_since
            if not waits_for_us and not kept_alive and quiet_s >= request_s:
                self.transport.abort()
                return
            left_s = request_s - quiet_s if not (waits_for_us or kept_alive) else request_s
            self.look = self.loop.call_later(max(left_s, 0.05), self.look_after)

    def first_to_go(host: str) -> Patient | None:
        """Return the connection to close for one of `host`: of the address with the most, the longest silent idle one.

        One that is at work is closed only if its address has more than `host` will have. None: all stay.
        """
        of = Counter(each.host for each in here)
        of[host] += 1
        return min(
            (each for each in here if each.working is None or of[each.host] > of[host]),
            key=lambda each: (-of[each.host], each.working is not None, each.quiet_since),
            default=None,
        )

    return cast("type[H11Protocol]", Patient)
