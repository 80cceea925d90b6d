"""The server's side of one HTTP/2 connection, without I/O: `receive` bytes and get events, send commands, `take` bytes.

    events = connection.receive(data, now)
    …                                          # connection.out.answer(stream, …), .data(…), .finish(…)
    transport.write(connection.take(now))

A frame is handled when it is complete. Header blocks are decoded in order and as a whole, also those of refused requests,
because the header table must stay in step. The windows of both directions are respected. An error on a stream ends that
stream, an error of the connection ends the connection, and `receive` never raises. `ConnectionEnded` is always the last
event. Nothing is read after it.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from pydanube_core.http2 import frames
from pydanube_core.http2.budgets import BudgetKind
from pydanube_core.http2.codes import (
    PREFACE,
    ConnectionFailure,
    ErrorCode,
    FrameType,
    SettingId,
    StreamFailure,
)
from pydanube_core.http2.control import LARGEST_ID
from pydanube_core.http2.events import DataReceived, Event, PingAcked, RequestReceived, StreamReset
from pydanube_core.http2.head import MalformedHead, RequestHead, check_trailers
from pydanube_core.http2.header_tables import HeaderReader
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.sending import Outbox
from pydanube_core.http2.side import Side
from pydanube_core.http2.streams import ACTS, NEXT, Act, Stream, StreamState

STREAM_BYTES: Final = 2048  # approximate memory of an open stream with its call
_REMEMBERED: Final = 256  # closed streams that are kept, because frames for them may still arrive
_MOST: Final = 320  # number of closed streams at which the oldest are removed
_TLS_HANDSHAKE: Final = 0x16  # the first byte of a TLS connection
# Plain globals for the path of every call, because an enum member is looked up in its class each time, 50 ns.
_DATA, _HEADERS, _WINDOW_UPDATE = int(FrameType.DATA), int(FrameType.HEADERS), int(FrameType.WINDOW_UPDATE)
_END_STREAM, _END_HEADERS, _PADDED = frames.END_STREAM, frames.END_HEADERS, frames.PADDED
_OPENS = _END_HEADERS | _END_STREAM  # END_HEADERS alone means a whole head, with data to follow
_SHAPE = _END_HEADERS | _PADDED | frames.PRIORITIZED  # of a HEADERS frame
_RECV_DATA, _RECV_END = int(Act.RECV_DATA), int(Act.RECV_END)
_OPEN, _HALF_CLOSED = StreamState.OPEN, StreamState.HALF_CLOSED_REMOTE
_unpack = frames.FRAME_HEADER.unpack_from


def _greeting(limits: Limits) -> bytes:
    return frames.settings(
        (
            (SettingId.HEADER_TABLE_SIZE, 0),
            (SettingId.MAX_CONCURRENT_STREAMS, limits.max_streams),
            (SettingId.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (SettingId.MAX_FRAME_SIZE, limits.max_frame_bytes),
            (SettingId.MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
        )
    )


class ServerConnection(Side[Event]):
    """See the module.

    Args:
        varying: the request header that changes with every call, kept out of the shared heads.
    """

    def __init__(self, limits: Limits, *, varying: bytes = b"", now: float) -> None:
        reader = HeaderReader(table_bytes=0, list_bytes=limits.header_list_bytes, varying=varying)
        super().__init__(limits, Outbox(limits), reader, greeting=_greeting(limits), now=now)
        #: streams with a user that ended on our side. The caller of `take` notifies the users
        self.finished: list[Stream] = []
        self._head_bytes = 0  # of open streams
        self.partial_since: float | None = None  # start of the incomplete frame
        self._greeted = False  # the preface was received
        self._closed: dict[int, bool] = {}  # id → whether we reset it

    @property
    def held_bytes(self) -> int:
        """The approximate number of bytes held for the peer: incomplete frames, open streams, and data to be sent."""
        return (
            len(self._partial)
            + (0 if self._block is None else self._block.size)
            + self._reader.remembered_bytes
            + self._head_bytes
            + len(self.streams) * STREAM_BYTES
            + self.out.held_bytes
            + self.out.waiting_bytes
        )

    # -- receiving ---------------------------------------------------------------------------------------------

    def _read(self, data: bytes, now: float, events: list[Event]) -> None:
        if self._partial:
            data = self._partial + data
        position, size, largest = 0, len(data), self.limits.max_frame_bytes
        if not self._greeted:
            greeting = data[: len(PREFACE)]
            if greeting != PREFACE[: len(greeting)]:
                what = "tls_on_plain_port" if data[0] == _TLS_HANDSHAKE else "not_http2"
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, what)
            if len(greeting) < len(PREFACE):
                self._partial = data
                return  # the caller's handshake has a timeout
            self._greeted, position = True, len(PREFACE)
        streams, window, whole = self.streams, self._window, self.limits.stream_window_bytes
        begun: Stream | None = None  # the stream of the last event if that is the head of a request
        while size - position >= 9:
            high, low, kind, flags, stream_id = _unpack(data, position)
            length = high << 8 | low
            if length > largest:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_too_large")
            start = position + 9
            end = start + length
            if end > size:
                break
            position = end
            stream_id &= LARGEST_ID
            try:
                if self._block is not None or not self._settled:
                    begun = None
                    self._guarded(kind, flags, stream_id, data[start:end], now, events)
                elif kind == _DATA:
                    stream = streams.get(stream_id)
                    window.left -= length
                    if window.left < 0:
                        raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "connection_window_overrun")
                    window.used += length
                    if window.used * 2 >= window.size and (increment := window.update(now)):
                        self.out.control(frames.window_update(0, increment))
                    if stream is None:
                        self._stray(stream_id, "DATA")
                    elif (
                        flags == _END_STREAM
                        and stream is begun
                        and stream.receive is None
                        and stream.expected is None
                        and length <= whole
                    ):
                        # The whole body directly after the head: add it to the head's event.
                        stream.state = _HALF_CLOSED
                        request = events[-1]
                        assert type(request) is RequestReceived
                        request.data, request.start, request.end, request.ended = data, start, end, True
                        begun = None
                    else:
                        begun = None
                        self._data(stream, flags, data, start, end, now, events)
                elif kind == _HEADERS:
                    begun = None
                    if flags & _SHAPE == _END_HEADERS and stream_id & 1:
                        self._complete(stream_id, flags, data[start:end], now, events)
                    else:
                        self._headers(flags, stream_id, data[start:end], now, events)
                    if flags & _OPENS == _END_HEADERS and events and type(events[-1]) is RequestReceived:
                        begun = events[-1].stream
                elif kind == _WINDOW_UPDATE and length == 4:
                    increment = int.from_bytes(data[start:end], "big") & LARGEST_ID
                    self._window_update(stream_id, increment, now)
                else:
                    begun = None
                    self._other(kind, flags, stream_id, data[start:end], now, events)
            except StreamFailure as failure:
                self._fault(failure, now, events)
        if position == size:
            self._partial, self.partial_since = b"", None
        else:
            self._partial = data[position:] if position else data
            if position or self.partial_since is None:
                self.partial_since = now

    # -- streams -----------------------------------------------------------------------------------------------

    def _headers(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "bad_stream_id")
        super()._headers(flags, stream_id, payload, now, events)

    def _complete(self, stream_id: int, flags: int, block: bytes, now: float, events: list[Event]) -> None:
        """Handle a complete header block: a request, or its trailers."""
        if len(block) > self.limits.header_block_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_block_too_large")
        ended = bool(flags & _END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._trailers(stream, block, ended=ended, events=events)
            return
        if stream_id <= self._last_id:
            self._late_headers(stream_id, block)
            return
        self._last_id = stream_id
        try:
            head, varying = self._reader.read(block, RequestHead)
        except MalformedHead as error:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        too_many = len(self.streams) >= self.limits.max_streams
        if self.going or too_many or self.out.waiting_bytes * 2 > self.limits.unsent_bytes:
            raise StreamFailure(stream_id, ErrorCode.REFUSED_STREAM, "no more streams")
        if ended and head.content_length:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length is another")
        stream = Stream(stream_id, _HALF_CLOSED if ended else _OPEN)
        stream.expected = head.content_length
        stream.head_bytes = head.size
        self._head_bytes += head.size
        self.streams[stream_id] = stream
        events.append(RequestReceived(stream, head, varying, ended))

    def _trailers(self, stream: Stream, block: bytes, *, ended: bool, events: list[Event]) -> None:
        headers = self._reader.read_once(block)
        state = NEXT[stream.state * ACTS + Act.RECV_END]
        if state is None:
            raise StreamFailure(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        try:
            check_trailers(headers)
        except MalformedHead as error:
            raise StreamFailure(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if not ended or stream.expected:
            raise StreamFailure(
                stream.id, ErrorCode.PROTOCOL_ERROR, "HEADERS in the middle, or too little DATA"
            )
        stream.state = state
        events.append(DataReceived(stream, b"", 0, 0, True))

    def _late_headers(self, stream_id: int, block: bytes) -> None:
        """Handle HEADERS of a stream that is no longer open."""
        reset_by_us = self._closed.get(stream_id)
        if reset_by_us is None:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "stream_id_used_before")
        if not reset_by_us:
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, "headers_after_end")
        self._reader.read_once(block)  # sent before our reset arrived. It may change the table

    def _stray(self, stream_id: int, what: str) -> None:
        """Handle a frame of a stream that is not open."""
        self._known_id(stream_id)
        if not self._closed.get(stream_id, False):  # otherwise it was sent before our reset arrived
            raise StreamFailure(stream_id, ErrorCode.STREAM_CLOSED, f"{what} after the end")

    # -- the rarer frames --------------------------------------------------------------------------------------

    def _other(
        self, kind: int, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]
    ) -> None:
        if kind == FrameType.RST_STREAM:
            self._rst_stream(stream_id, payload, now, events)
        elif kind == FrameType.PING and flags & frames.ACK:
            if self.control.acked(stream_id, payload):
                self.stop_taking()
            events.append(PingAcked())
        else:
            self.control.frame(kind, flags, stream_id, payload, now)

    def _rst_stream(self, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        self._known_id(stream_id)
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
        self._budgets.spend(BudgetKind.RESETS, now)
        stream = self._pop(stream_id)
        if stream is not None:
            self.out.forget(stream)
            self._note_closed(stream_id, by_us=False)
            events.append(StreamReset(stream, int.from_bytes(payload, "big")))

    # -- commands ----------------------------------------------------------------------------------------------

    def announce_end(self) -> None:
        """Request that the peer opens no more streams. Those opened before it reads that are accepted (section 6.8)."""
        self.control.announce_end()

    def stop_taking(self) -> None:
        """Refuse new streams. Called automatically once the peer has read `announce_end`."""
        if self.control.announced:
            self.leave("shutting down")

    def leave(self, why: str) -> None:
        """Name the last stream that is accepted, so that clients send later ones elsewhere (section 6.8)."""
        if not self.going and not self.ended:
            self.going = True
            self.out.control(frames.goaway(self._last_id, ErrorCode.NO_ERROR, why))

    def _forget_ended(self) -> None:
        streams, closed = self.streams, self._closed
        for stream in self.out.ended:
            if streams.pop(stream.id, None) is not None:
                self._head_bytes -= stream.head_bytes
                closed[stream.id] = stream.cut
                if stream.user is not None:
                    self.finished.append(stream)
        self.out.ended.clear()
        if len(closed) > _MOST:
            self._drop_oldest()

    # -- the end -----------------------------------------------------------------------------------------------

    def _fault(self, failure: StreamFailure, now: float, events: list[Event]) -> None:
        """End a stream because of an error of the peer."""
        stream_id, code = failure.stream_id, failure.code
        self._budgets.spend(BudgetKind.RESETS if code == ErrorCode.REFUSED_STREAM else BudgetKind.FAULTS, now)
        stream = self._pop(stream_id)
        if stream is not None:
            self.out.forget(stream)
            events.append(StreamReset(stream, code))
        self.out.control(frames.rst_stream(stream_id, code))
        self._note_closed(stream_id, by_us=True)

    def _pop(self, stream_id: int) -> Stream | None:
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self._head_bytes -= stream.head_bytes
        return stream

    def _note_closed(self, stream_id: int, *, by_us: bool) -> None:
        self._closed[stream_id] = by_us
        if len(self._closed) > _MOST:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Remove the oldest entries, many together so that it is rarely needed. A dict keeps its order."""
        for stream_id in tuple(islice(self._closed, len(self._closed) - _REMEMBERED)):
            del self._closed[stream_id]

    def _end(self, code: ErrorCode, why: str, events: list[Event], *, last: int = 0) -> None:
        super()._end(code, why, events, last=self._last_id)
        self._head_bytes = 0
