"""The client's side of one HTTP/2 connection, without I/O: the counterpart of `connection.ServerConnection`.

    stream = connection.open()
    connection.out.request(stream, headers, body)      # or .head(…), .data(…), .finish(…)
    transport.write(connection.take(now))
    …
    events = connection.receive(data, now)

The guarantees are those of `ServerConnection`: a frame is handled when it is complete, header blocks are decoded in order and as a
whole, the windows of both directions are respected, an error on a stream ends that stream, an error of the connection
ends the connection, `receive` never raises, and nothing is read after the event `ConnectionEnded`. A stream that has
ended on both sides, or was reset, is removed. Frames for it that arrive later are ignored.
"""

from __future__ import annotations

from itertools import takewhile
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
from pydanube_core.http2.events import AnswerEvent, GoingAway, HeadReceived, PingAcked, StreamReset
from pydanube_core.http2.head import AnswerHead, MalformedHead
from pydanube_core.http2.header_tables import HeaderReader
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.sending import Outbox
from pydanube_core.http2.side import Side
from pydanube_core.http2.streams import ACTS, NEXT, Act, Stream, StreamState

TABLE_BYTES: Final = 4096  # size of the server's header table, with which repeated headers take a byte or two
_DATA, _HEADERS, _WINDOW_UPDATE = int(FrameType.DATA), int(FrameType.HEADERS), int(FrameType.WINDOW_UPDATE)
_RECV_DATA, _RECV_END = int(Act.RECV_DATA), int(Act.RECV_END)
_CLOSED = StreamState.CLOSED
_unpack = frames.FRAME_HEADER.unpack_from


class ClientConnection(Side[AnswerEvent]):
    """The client's side of one connection. See the module."""

    def __init__(self, limits: Limits, *, now: float) -> None:
        greeting = PREFACE + frames.settings(
            (
                (SettingId.ENABLE_PUSH, 0),
                (SettingId.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
                (SettingId.MAX_FRAME_SIZE, limits.max_frame_bytes),
                (SettingId.MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
            )
        )
        reader = HeaderReader(table_bytes=TABLE_BYTES, list_bytes=limits.header_list_bytes)
        super().__init__(limits, Outbox(limits, answering=False), reader, greeting=greeting, now=now)
        self._last_id = -1

    @property
    def full(self) -> bool:
        """Whether the server allows no more streams for now."""
        return len(self.streams) >= self.control.peer_streams

    # -- commands ----------------------------------------------------------------------------------------------

    def open(self) -> Stream:
        """Open a stream. Its headers must be sent before another one is opened.

        Not to be called when `going`, `full` or `ended`.
        """
        assert not self.going, "this connection takes no more streams"
        self._last_id += 2
        stream = Stream(self._last_id, StreamState.IDLE)
        self.streams[stream.id] = stream
        if self._last_id >= LARGEST_ID - 1:
            self.going = True  # section 5.1.1: no identifiers are left
        return stream

    def send_goaway(self) -> None:
        """Send GOAWAY: no more streams are opened. Close afterwards."""
        self.going = True
        self.out.control(frames.goaway(0, ErrorCode.NO_ERROR, ""))

    def _forget_ended(self) -> None:
        for stream in self.out.ended:
            self.streams.pop(stream.id, None)
        self.out.ended.clear()

    # -- receiving ---------------------------------------------------------------------------------------------

    def _read(self, data: bytes, now: float, events: list[AnswerEvent]) -> None:
        if self._partial:
            data = self._partial + data
        if not self._settled and data[:5] == b"HTTP/":
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "not_http2")
        position, size, largest = 0, len(data), self.limits.max_frame_bytes
        streams, window = self.streams, self._window
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
                    self._guarded(kind, flags, stream_id, data[start:end], now, events)
                elif kind == _DATA:
                    window.left -= length
                    if window.left < 0:
                        raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "connection_window_overrun")
                    window.used += length
                    if window.used * 2 >= window.size and (increment := window.update(now)):
                        self.out.control(frames.window_update(0, increment))
                    stream = streams.get(stream_id)
                    if stream is None:
                        self._known_id(stream_id)
                    elif not stream.head_received:
                        raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "DATA before the head")
                    else:
                        self._data(stream, flags, data, start, end, now, events)
                        if flags & frames.END_STREAM:
                            self._answered(stream)
                elif kind == _HEADERS:
                    self._headers(flags, stream_id, data[start:end], now, events)
                elif kind == _WINDOW_UPDATE and length == 4:
                    self._window_update(stream_id, int.from_bytes(data[start:end], "big") & LARGEST_ID, now)
                else:
                    self._other(kind, flags, stream_id, data[start:end], now, events)
            except StreamFailure as failure:
                self._fault(failure, now, events)
        self._partial = b"" if position == size else data[position:]

    def _headers(
        self, flags: int, stream_id: int, payload: bytes, now: float, events: list[AnswerEvent]
    ) -> None:
        self._known_id(stream_id)
        super()._headers(flags, stream_id, payload, now, events)

    def _complete(
        self, stream_id: int, flags: int, block: bytes, now: float, events: list[AnswerEvent]
    ) -> None:
        """Handle a complete header block: the head of an answer, or its trailers."""
        if len(block) > self.limits.header_block_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_block_too_large")
        try:
            head, _ = self._reader.read(block, AnswerHead)
        except MalformedHead as error:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        ended = bool(flags & frames.END_STREAM)
        act = Act.RECV_END if ended else Act.RECV_DATA
        state = NEXT[stream.state * ACTS + act]
        begins = not stream.head_received
        if state is None or begins is (head.status is None) or not (begins or ended):
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "HEADERS where none may be")
        if begins and head.status[:1] == b"1":  # informational (section 8.1): the head follows
            if ended:
                raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "no answer follows")
            return
        if begins:
            stream.head_received = True
            stream.expected = head.content_length
        if ended and stream.expected:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length is another")
        events.append(HeadReceived(stream, head, ended))
        stream.state = state
        if ended:
            self._answered(stream)

    def _answered(self, stream: Stream) -> None:
        """End the stream: the answer is complete, and the rest of the request no longer matters (section 8.1)."""
        if stream.state is _CLOSED:
            self.out.forget(stream)
            self.streams.pop(stream.id, None)
        else:
            self.out.reset(stream, ErrorCode.NO_ERROR)

    def _other(
        self, kind: int, flags: int, stream_id: int, payload: bytes, now: float, events: list[AnswerEvent]
    ) -> None:
        if kind == FrameType.RST_STREAM:
            if len(payload) != 4:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
            self._known_id(stream_id)
            stream = self.streams.pop(stream_id, None)
            if stream is not None:
                self.out.forget(stream)
                events.append(StreamReset(stream, int.from_bytes(payload, "big")))
        elif kind == FrameType.PING and flags & frames.ACK:
            self.control.acked(stream_id, payload)
            events.append(PingAcked())
        else:
            self.control.frame(kind, flags, stream_id, payload, now)
            if kind == FrameType.GOAWAY:
                self._going_away(payload, events)

    def _going_away(self, payload: bytes, events: list[AnswerEvent]) -> None:
        """Handle GOAWAY (section 6.8): streams above the last one that the server names were not processed."""
        self.going = True
        last = int.from_bytes(payload[:4], "big") & LARGEST_ID
        # Streams are in order of opening
        for stream_id in tuple(takewhile(lambda each: each > last, reversed(self.streams))):
            stream = self.streams.pop(stream_id)
            self.out.forget(stream)
            events.append(StreamReset(stream, ErrorCode.REFUSED_STREAM))
        why = payload[8:208].decode("utf-8", "replace")
        events.append(GoingAway(int.from_bytes(payload[4:8], "big"), why))

    # -- the end -----------------------------------------------------------------------------------------------

    def _fault(self, failure: StreamFailure, now: float, events: list[AnswerEvent]) -> None:
        """End a stream because of an error of the server."""
        self._budgets.spend(BudgetKind.FAULTS, now)
        stream = self.streams.pop(failure.stream_id, None)
        if stream is not None:
            self.out.forget(stream)
            events.append(StreamReset(stream, failure.code))
        self.out.control(frames.rst_stream(failure.stream_id, failure.code))
