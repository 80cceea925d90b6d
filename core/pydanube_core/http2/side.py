"""The base of both sides of an HTTP/2 connection: windows, header blocks, stream errors, commands to a stream."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from pydanube_core.http2 import frames
from pydanube_core.http2.budgets import BudgetKind, Budgets
from pydanube_core.http2.codes import ConnectionFailure, ErrorCode, FrameType, StreamFailure
from pydanube_core.http2.control import Control
from pydanube_core.http2.events import ConnectionEnded, DataReceived, StreamReset
from pydanube_core.http2.header_blocks import PartialBlock, unwrapped
from pydanube_core.http2.header_tables import HeaderReader
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.sending import WINDOW_LIMIT, Outbox
from pydanube_core.http2.streams import ACTS, NEXT, Act, Stream, StreamState
from pydanube_core.http2.windows import ReceiveWindow

#: bytes. A smaller window increment is worth less than its frame. It counts only if data waits for the window, because
#: grpcio answers each small message with an increment of its size.
TINY_INCREMENT: Final = 32

# Plain globals for the path of every call, because an enum member is looked up in its class each time, 50 ns.
_END_STREAM, _END_HEADERS, _PADDED = frames.END_STREAM, frames.END_HEADERS, frames.PADDED
_RECV_DATA, _RECV_END = int(Act.RECV_DATA), int(Act.RECV_END)

EventT = TypeVar("EventT")


class Side(Generic[EventT]):
    """One side of a connection. `EventT` is the type of the events of `receive`."""

    def __init__(
        self, limits: Limits, out: Outbox, reader: HeaderReader, *, greeting: bytes, now: float
    ) -> None:
        self.limits = limits
        self.out = out
        self.streams: dict[int, Stream] = {}
        self.ended = False  # nothing is read any more
        self.going = False  # no new stream is accepted, here or by the server
        self.heard_at = now
        self.block_since: float | None = None  # start of the incomplete header block
        self._reader = reader
        self._budgets = Budgets()
        self.control = Control(limits, out, self.streams, reader, self._budgets, now, greeting=greeting)
        self._window = ReceiveWindow(limits.connection_window_bytes, limits.connection_window_max_bytes)
        self._partial = b""
        self._settled = False  # the peer's first SETTINGS was received
        self._block: PartialBlock | None = None
        self._last_id = 0  # of the streams that the client has opened

    @property
    def greeted(self) -> bool:
        """Whether the peer has sent valid HTTP/2 so far."""
        return self._settled

    # -- commands ----------------------------------------------------------------------------------------------

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream without an event for its user."""
        if stream.state is not StreamState.CLOSED:
            self.out.reset(stream, code)

    def pause(self, stream: Stream) -> None:
        """Pause a stream. The peer may send only as much as its current window allows."""
        stream.paused = True

    def resume(self, stream: Stream, now: float) -> None:
        stream.paused = False
        receive = stream.receive
        open_there = stream.state in (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)
        if receive is not None and open_there and receive.used * 2 >= receive.size:
            self.out.control(frames.window_update(stream.id, receive.update(now)))

    def probe(self) -> None:
        """Send a PING. Its answer is the event `PingAcked`."""
        self.control.probe()

    def fail(self, code: ErrorCode, why: str) -> list[EventT]:
        """End the connection for a reason outside of the protocol (a timeout)."""
        events: list[EventT] = []
        if not self.ended:
            self._end(code, why, events)
        return events

    def take(self, now: float) -> bytes:
        """Return the bytes to be sent now."""
        if self.control.pings:
            self.control.answer_pings(now)
        data = self.out.take()
        if self.out.ended:
            self._forget_ended()
        return data

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[EventT]:
        """Process received bytes and return the resulting events in order."""
        events: list[EventT] = []
        if self.ended:
            return events
        if self.out.ended:
            self._forget_ended()
        self.heard_at = now
        try:
            self._read(data, now, events)
        except ConnectionFailure as failure:
            self._end(failure.code, failure.why, events)
        return events

    def _read(self, data: bytes, now: float, events: list[Any]) -> None:
        raise NotImplementedError

    def _complete(self, stream_id: int, flags: int, block: bytes, now: float, events: list[Any]) -> None:
        """Handle a complete header block."""
        raise NotImplementedError

    def _forget_ended(self) -> None:
        raise NotImplementedError

    def _guarded(
        self, kind: int, flags: int, stream_id: int, payload: bytes, now: float, events: list[Any]
    ) -> None:
        """Handle a frame where only one kind is permitted: the first SETTINGS, or the rest of a header block."""
        block = self._block
        if block is None:
            if kind != FrameType.SETTINGS or flags & frames.ACK:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "no_settings_first")
            self.control.settings(flags, stream_id, payload, now)
            self._settled = True
            return
        whole = block.add(kind, flags, stream_id, payload, self.limits)
        if whole is not None:
            self._block = self.block_since = None
            self._complete(block.stream_id, block.flags, whole, now, events)

    def _known_id(self, stream_id: int) -> None:
        """Check the stream id of a frame. Late frames of closed streams are permitted, those of unopened streams are not."""
        if stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_on_idle_stream")

    def _data(
        self, stream: Stream, flags: int, data: bytes, start: int, end: int, now: float, events: list[Any]
    ) -> None:
        length = end - start
        ended = flags & _END_STREAM
        state = NEXT[stream.state * ACTS + (_RECV_END if ended else _RECV_DATA)]
        if state is None:
            raise StreamFailure(stream.id, ErrorCode.STREAM_CLOSED, "DATA after the end")
        receive = stream.receive or stream.open_window(self.limits)
        receive.left -= length
        if receive.left < 0:
            raise StreamFailure(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "stream window overrun")
        if flags & _PADDED:
            padding = data[start] if length else 0
            if padding >= length:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "padding_too_large")
            start, end = start + 1, end - padding
        if start == end and not ended:
            self._budgets.spend(BudgetKind.EMPTY_DATA, now)
        if stream.expected is not None:
            stream.expected -= end - start
            if stream.expected < 0 or (ended and stream.expected):
                raise StreamFailure(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is another")
        stream.state = state
        receive.used += length
        if not ended and not stream.paused and receive.used * 2 >= receive.size:
            self.out.control(frames.window_update(stream.id, receive.update(now)))
        events.append(DataReceived(stream, data, start, end, bool(ended)))

    def _headers(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Any]) -> None:
        if flags & (_PADDED | frames.PRIORITIZED):
            payload = unwrapped(flags, stream_id, payload)
        if flags & _END_HEADERS:
            self._complete(stream_id, flags, payload, now, events)
            return
        self._block = PartialBlock(stream_id, flags, payload)
        self.block_since = now

    def _window_update(self, stream_id: int, increment: int, now: float) -> None:
        if stream_id == 0:
            if not increment:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "window_update_of_zero")
            if increment < TINY_INCREMENT and self.out.starved:
                self._budgets.spend(BudgetKind.TINY_WINDOWS, now)
            self.out.window += increment
            if self.out.window > WINDOW_LIMIT:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "window_too_large")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._known_id(stream_id)
            return
        if not increment:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
        if not self.out.grant(stream, increment):
            raise StreamFailure(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "window too large")
        if stream.queue is not None:
            if increment < TINY_INCREMENT:
                self._budgets.spend(BudgetKind.TINY_WINDOWS, now)
            self.out.opened(stream)

    # -- the end -----------------------------------------------------------------------------------------------

    def _end(self, code: ErrorCode, why: str, events: list[Any], *, last: int = 0) -> None:
        """End the connection and stop reading. `last` is the stream in GOAWAY."""
        self.ended = self.going = True
        self._partial = b""
        for stream in self.streams.values():
            self.out.forget(stream)
            events.append(StreamReset(stream, code))
        self.streams.clear()
        self.out.clear()
        self.out.control(frames.goaway(last, code, why))
        events.append(ConnectionEnded(code, why))
