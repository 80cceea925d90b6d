"""A connection of our own server: an asyncio transport on one side, the calls on the other.

All data of one read is processed together, and the responses made during it leave in one write. Responses made between
reads (an answer that waited for the disk) leave when the loop turns, again in one write per connection.

If a peer reads slowly, the transport gets no more data than it can hold. The rest waits in its streams, whose users are
paused. When answers pile up too, the server stops reading from the peer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from contextvars import Context
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from pydanube_core.errors import ClusterError, GrpcStatus, QuotaExceeded
from pydanube_core.grpc_wire import Unpacker, WireError, timeout_s
from pydanube_core.http2 import ConnectionEnded, DataReceived, RequestReceived, ServerConnection, StreamReset
from pydanube_core.http2.codes import ErrorCode

from pydanube_broker.rpc.caller import Keeper, Peer, address_of, is_own_user
from pydanube_broker.rpc.calls import Call, UnidentifiedCall
from pydanube_broker.rpc.peer_memory import TLS_BYTES, PeerBuffer
from pydanube_broker.rpc.routing import CallHead

if TYPE_CHECKING:
    from pydanube_core.http2 import Event, Stream

    from pydanube_broker.rpc.call_host import ConnectionServer


log = logging.getLogger("pydanube.rpc")

# At DEBUG hpack logs every header, also `authorization`, with which a reader of the log could impersonate its owner.
logging.getLogger("hpack").setLevel(logging.INFO)

HIGH_WATER_BYTES: Final = 128 << 10  # held by the transport before it pauses writing
COMPANY_S: Final = 0.02  # seconds that a message may wait for others to leave with
LITTLE_BYTES: Final = 64 << 10  # up to this, a decrease of the held bytes is not reported right away
#: Maximum time of reading in one turn of the loop, in which uvloop would read up to 32 times 256 KiB. Then others read.
READ_S: Final = 0.01
NOTED_BYTES: Final = 4096  # a change of the held bytes is reported to the broker's budget from this size


class OwnConnection(asyncio.Protocol):
    """A server's side of one connection, as the module describes it."""

    def __init__(self, server: ConnectionServer) -> None:
        self.server = server
        self.loop = server.loop
        self.deadlines = server.deadlines
        self.now = self.loop.time()
        self.http = ServerConnection(server.limits, varying=b"grpc-timeout", now=self.now)
        self.message_bytes = server.times.message_bytes
        self.unpack = Unpacker(self.message_bytes, self.loop.time)
        self.peer = Peer(address="unknown")
        self.corked = False  # a read is being processed, and responses leave after it
        self.woken = False
        self._patient_bytes = 0  # bytes to be sent that wait for further messages
        self.since = self.now
        self.reason: str | None = None  # why it ended, unless the peer closed it
        self.probed_at: float | None = None
        self.buffer = PeerBuffer(self.peer, self.now, holds=self.holds, give_up=self.give_up)
        # Bytes that waited in it at the last look, and since when.
        self._stuck: dict[Stream, tuple[int, float]] = {}
        self._transport: asyncio.Transport | None = None
        self._blocked = False  # the transport takes no more
        self._reading = True
        self._read_s = 0.0  # seconds spent on the reads of this turn of the loop
        self._held = 0
        self._in_tls = 0  # memory of TLS, while no call is authenticated
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0  # in the transport, when last looked at
        # Ends its count for its principal. None: no call is authenticated.
        self._ended: Callable[[], None] | None = None

    # -- of the transport --------------------------------------------------------------------------------------

    def connection_made(self, given: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, given)  # uvloop's class is not a subclass
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=HIGH_WATER_BYTES // 4)
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.peer = Peer(
            address=address_of(transport.get_extra_info("peername")),
            certificate=(secured.getpeercert() or None) if secured is not None else None,
            local=is_own_user(transport.get_extra_info("socket")),
        )
        self.buffer = PeerBuffer(self.peer, self.now, holds=self.holds, give_up=self.give_up)
        if not self.server.admit(self):
            transport.abort()
            return
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self._count("no_h2_in_tls")  # RFC 9113 3.2: no other protocol is served here
            self.close("no_h2_in_tls")
            return
        if secured is not None and self.server.keeper is not None:
            self._in_tls = TLS_BYTES
            self._note_all()
        self.flush()

    def data_received(self, data: bytes) -> None:
        began, before = perf_counter(), self.now
        self.now = now = self.loop.time()
        self.buffer.passed += len(data)
        if self._in_tls:
            self._in_tls = max(self._in_tls, TLS_BYTES + len(data))
        self.corked = True
        try:
            for event in self.http.receive(data, now):
                if type(event) is DataReceived:
                    call = event.stream.user
                    if call is not None:
                        call.on_data(event.data, event.start, event.end, ended=event.ended)
                elif type(event) is RequestReceived:
                    self._request(event)
                else:
                    self._other(event)
        finally:
            self.corked = False
            http = self.http
            out = http.out
            if (
                out.held_bytes > self._patient_bytes
                or out.ended
                or (out.turns and not out.starved)
                or out.relieved
                or http.control.pings
                or self._blocked
            ):
                if len(http.streams) > len(out.ended) and not self._blocked:
                    # Other calls are open here. Their messages caused by this read in this turn (an acknowledgement
                    # is followed by the next message) leave with the answer, because a write costs more than a call.
                    self.wake()
                else:
                    self.flush()
            else:
                self._note()
            # uvloop's time stands still within a turn.
            self._read_s = perf_counter() - began + (self._read_s if now == before else 0.0)
            if self._read_s > READ_S:
                self._let_others_read()

    def _let_others_read(self) -> None:
        """Read nothing more in this turn of the loop."""
        transport = self._transport
        if self._reading and transport is not None and not transport.is_closing():
            self._read_s = 0.0
            transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        transport = self._transport
        if self._reading and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def _request(self, event: RequestReceived) -> None:
        head: CallHead | None = event.head.note
        if head is None:
            head = event.head.note = CallHead(event.head, self.server.methods, self.server.nothing)
            if head.relayed:
                self.http.out.shared = True
        method, stream = head.method, event.stream
        keeper = self.server.keeper
        unknown: ClusterError | None = None
        if keeper is not None and not method.open:
            unknown = head.unidentified(keeper, self.peer)
            if unknown is None and self._ended is None:
                unknown = self._counted(keeper, head)
        try:
            call: Call = (
                method.call(self, stream, method, head)
                if unknown is None
                else UnidentifiedCall(self, stream, method, head, unknown, self._wait_s())
            )
        except Exception:
            log.exception("stream_failed", extra={"method": method.path})
            self.http.reset(stream, ErrorCode.INTERNAL_ERROR)
            return
        stream.user = call
        wait = head.timeout_s
        if event.varying is not None:
            try:
                wait = timeout_s(event.varying)
            except WireError as error:
                call.refuse(error)
        if wait is not None and wait <= 0 and not call.over:
            call.expire()
        if event.ended:
            call.on_data(event.data, event.start, event.end, ended=True)
        if wait is not None and not call.over:  # most complete calls are answered by now
            self.deadlines.add(call, self.now, wait)

    def _counted(self, keeper: Keeper, head: CallHead) -> ClusterError | None:
        """Count the connection with its first caller. Return an error if the caller has too many."""
        assert head.identity is not None, "each call has an identity"
        try:
            self._ended = keeper.opened(head.identity)
        except QuotaExceeded as error:
            return error
        self._in_tls = 0
        return None

    def _wait_s(self) -> float:
        keeper = self.server.keeper
        return 0.0 if keeper is None else keeper.wait_s(self.peer)

    def _other(self, event: Event) -> None:
        match event:
            case StreamReset():
                call, event.stream.user = event.stream.user, None
                if call is not None:
                    call.gone()
            case ConnectionEnded():
                self._count(event.why)
                self.close(event.why)
            case _:
                self.probed_at = None

    def eof_received(self) -> bool:
        return False  # closes: a client that has ended its side of TCP does not read any more

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        self.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._ended is not None:
            self._ended()
        self.server.memory.note(self.buffer, 0)
        self.buffer.release()
        self.server.lost_connections.end(self._end_calls)

    def _end_calls(self) -> None:
        for stream in tuple(self.http.streams.values()):
            self._gone(stream)
        for stream in self.http.out.ended + self.http.finished:
            self._gone(stream)
        self.http.ended = True
        for task in self._tasks:
            task.cancel()
        self.server.lost(self)

    def _gone(self, stream: Any) -> None:
        call, stream.user = stream.user, None
        if call is not None:
            self.http.out.forget(stream)
            call.gone()

    # -- of the calls ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a flush in this turn of the loop."""
        if not self.corked and not self.woken:
            self.woken = True
            self.server.wake(self)

    def wake_later(self) -> None:
        """Schedule a flush within milliseconds, so that further messages leave with it."""
        self._patient_bytes = self.http.out.held_bytes
        self.server.flush_later(self, COMPANY_S)

    def flush(self) -> None:
        """Send as much as the windows allow, and notify the streams."""
        self.woken = False
        self._patient_bytes = 0
        http, transport = self.http, self._transport
        if transport is None:
            return
        now, out = self.now, http.out
        while not self._blocked and (data := http.take(now)):
            self.buffer.passed += len(data)
            transport.write(data)
            if not out.turns:
                break
        if http.finished:
            self._tell_finished()
        if out.relieved:
            relieved, out.relieved = out.relieved, []
            for stream in relieved:
                if stream.user is not None:
                    stream.user.eased()
        if out.overfull:
            self._end_largest()
        if self._blocked and self._reading and out.held_bytes > HIGH_WATER_BYTES:
            self._reading = False
            transport.pause_reading()
        if http.control.pings:
            self.server.flush_later(self, self.server.limits.ping_answer_s)
        self._note()
        if http.going and self.idle:
            self.close("stopped")

    def holds(self) -> int:
        """Return the approximate number of bytes held for this peer."""
        transport = self._transport
        if transport is None:
            return 0
        return self._held + self._in_tls + self.http.held_bytes + transport.get_write_buffer_size()

    def _note(self) -> None:
        """Report held bytes to the budget, if the change is worth it. Small changes wait for the next look."""
        http = self.http
        if self._held or self.buffer.held > LITTLE_BYTES or len(http.streams) > 8 or http.out.waiting_bytes:
            self._note_all()

    def _note_all(self) -> None:
        held = self.holds()
        if not -NOTED_BYTES < held - self.buffer.held < NOTED_BYTES:
            self.server.memory.note(self.buffer, held)

    def give_up(self) -> None:
        """Close immediately, to free the memory held for the peer."""
        self.fail(ErrorCode.ENHANCE_YOUR_CALM, "peer_memory")
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._abort()

    def _tell_finished(self) -> None:
        finished, self.http.finished = self.http.finished, []
        for stream in finished:
            call, stream.user = stream.user, None
            if call is not None:
                call.left()

    def hold(self, count: int) -> None:
        """Count messages, in bytes, that cannot be handed on yet.

        Raises `WireError`: the connection holds too much.
        """
        self._held += count
        if count > 0 and self._held > self.server.times.held_bytes:
            raise WireError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"this connection has {self._held} bytes under way that are no whole messages yet",
            )

    def release(self, count: int) -> None:
        self._held -= count

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
        """Run a cold handler. It ends with the connection at the latest."""
        task = self.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- of the server -----------------------------------------------------------------------------------------

    def look_after(self, now: float) -> None:
        """Close the connection if its peer is too slow or gone. Called periodically."""
        http, times = self.http, self.server.times
        if self._transport is None:
            return
        self.buffer.look(now)
        self._note_all()
        if http.out.parked or self._stuck:
            self._look_at_stuck(now)
        if not http.greeted:
            if now - self.since > times.handshake_s:
                self.fail(ErrorCode.SETTINGS_TIMEOUT, "slow_handshake")
            return
        if http.block_since is not None and now - http.block_since > times.headers_s:
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "slow_headers")
        elif http.partial_since is not None and now - http.partial_since > times.frame_s:
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "slow_frame")
        elif self._blocked:
            self._look_at_writing(now)
        elif self.probed_at is not None and http.heard_at < self.probed_at:
            if now - self.probed_at > times.ping_timeout_s:
                self._count("half_open")
                self._abort()
        elif now - http.heard_at > times.ping_after_s:
            self.probed_at = now
            http.probe()
            self.now = now
            self.flush()

    def look_at_requests(self, now: float) -> None:
        """End calls whose request stopped arriving."""
        patience = self.server.times.request_s
        for stream in tuple(self.http.streams.values()):
            call: Call | None = stream.user
            if call is not None and call.since and now - call.since > patience:
                call.finish(GrpcStatus.DEADLINE_EXCEEDED, f"the request did not arrive within {patience:g} s")

    def _look_at_stuck(self, now: float) -> None:
        """End streams whose client takes nothing, if others wait for the room that they hold."""
        http = self.http
        waiting = (
            [each for each in http.streams.values() if each.queue is not None and http.out.room(each) <= 0]
            if http.out.parked
            else []
        )
        before = self._stuck
        self._stuck = {}
        for stream in waiting:
            size, since = before.get(stream, (0, now))
            self._stuck[stream] = (stream.queued_bytes, since if size == stream.queued_bytes else now)
        for stream, (_, since) in sorted(self._stuck.items(), key=lambda item: item[1][1]):
            if not http.out.parked or now - since < self.server.times.stuck_s:
                break
            self._end_stuck(stream)

    def _end_largest(self) -> None:
        """End the largest stuck streams until some room is free. One look at all of them pays for several ends."""
        out, enough = self.http.out, self.server.limits.stuck_bytes * 15 // 16
        for stream in sorted(out.stuck, key=lambda each: each.queued_bytes, reverse=True):
            if out.stuck_bytes <= enough:
                break
            self._end_stuck(stream)

    def _end_stuck(self, stream: Stream) -> None:
        call: Call | None = stream.user
        stream.user = None
        self.http.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
        if call is not None:
            call.gone()
        self.wake()

    def _look_at_writing(self, now: float) -> None:
        """Close the connection if its peer has read nothing for too long. A slow reader stays."""
        assert self._transport is not None
        waiting = self._transport.get_write_buffer_size()
        if waiting != self._waiting_bytes:
            self._waiting_bytes, self.probed_at = waiting, now
        elif self.probed_at is None:
            self.probed_at = now
        elif now - self.probed_at > self.server.times.ping_after_s + self.server.times.ping_timeout_s:
            self._count("reads_nothing")
            self._abort()

    def fail(self, code: ErrorCode, why: str) -> None:
        """Close the connection because of an error of the peer."""
        self.corked = True
        for event in self.http.fail(code, why):
            self._other(event)
        self.corked = False

    def close(self, why: str) -> None:
        """Send the queued data, then close."""
        self.reason = self.reason or why
        transport = self._transport
        if transport is None:
            return
        data = self.http.take(self.now)
        if data:
            transport.write(data)
        transport.close()

    def end_calls(self) -> None:
        """End the calls under way as retryable, and take no more."""
        self.corked = True
        self.http.stop_taking()
        for stream in tuple(self.http.streams.values()):
            if stream.user is not None:
                stream.user.finish(GrpcStatus.UNAVAILABLE, "the broker is shutting down")
        self.corked = False
        self.flush()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _count(self, why: str) -> None:
        self.reason = why
        self.server.closed[why] += 1
        log.info("connection_closed", extra={"reason": why, "peer": self.peer.address})

    @property
    def known(self) -> bool:
        """Whether a call on it has been authenticated."""
        return self._ended is not None

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self.http.streams and not self.http.out.ended and not self.http.out.pending
