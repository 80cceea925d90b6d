"""The client's side of one HTTP/2 connection, without I/O: the counterpart of `connection.ServerConnection`.

    stream = connection.open()
    connection.out.request(stream, headers, body)      # or .head(…), .data(…), .finish(…)
    transport.write(connection.take(now))
    …
    events = connection.receive(data, now)

What holds is what holds there: a frame is acted on when all of it is there, header blocks are read in order and in one
piece, the windows of both directions are kept to, a fault of one stream costs that stream, a fault of the connection
costs the connection, `receive` never raises, and after the event `ConnectionEnded` nothing is read any more. A stream
that has ended on both sides, or was reset, is forgotten; frames of it that are still under way are read past.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.http2 import frames
from pydanube_core.http2.budgets import Budgets, Kind
from pydanube_core.http2.codes import (
    PREFACE,
    ConnectionFailure,
    ErrorCode,
    FrameType,
    SettingId,
    StreamFailure,
)
from pydanube_core.http2.control import LARGEST_ID, Control
from pydanube_core.http2.events import (
    AnswerEvent,
    ConnectionEnded,
    DataReceived,
    GoingAway,
    HeadReceived,
    PingAcked,
    StreamReset,
)
from pydanube_core.http2.head import AnswerHead, MalformedHead
from pydanube_core.http2.header_blocks import PartialBlock, unwrapped
from pydanube_core.http2.header_tables import HeaderReader
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.sending import WINDOW_LIMIT, Outbox
from pydanube_core.http2.streams import ACTS, NEXT, Act, Stream, StreamState
from pydanube_core.http2.windows import ReceiveWindow

TABLE_BYTES: Final = 4096  # of the server's header table: what answers repeat becomes a byte or two
_DATA, _HEADERS, _WINDOW_UPDATE = int(FrameType.DATA), int(FrameType.HEADERS), int(FrameType.WINDOW_UPDATE)
_RECV_DATA, _RECV_END = int(Act.RECV_DATA), int(Act.RECV_END)
_CLOSED = StreamState.CLOSED
_unpack = frames.FRAME_HEADER.unpack_from


class ClientConnection:
    """See the module."""

    def __init__(self, limits: Limits, *, now: float) -> None:
        self.limits = limits
        self.out = Outbox(limits, answering=False)
        self.streams: dict[int, Stream] = {}
        self.ended = False  # nothing is read any more
        self.going = False  # the server takes no new stream
        self.heard_at = now
        self._reader = HeaderReader(table_bytes=TABLE_BYTES, list_bytes=limits.header_list_bytes)
        self._budgets = Budgets()
        greeting = PREFACE + frames.settings(
            (
                (SettingId.ENABLE_PUSH, 0),
                (SettingId.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
                (SettingId.MAX_FRAME_SIZE, limits.max_frame_bytes),
                (SettingId.MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
            )
        )
        self.control = Control(
            limits, self.out, self.streams, self._reader, self._budgets, now, greeting=greeting
        )
        self._window = ReceiveWindow(limits.connection_window_bytes, limits.connection_window_max_bytes)
        self._partial = b""
        self._settled = False  # the server's first SETTINGS is there
        self._block: PartialBlock | None = None
        self._last_id = -1  # of the streams we opened

    @property
    def greeted(self) -> bool:
        """Whether the server has spoken HTTP/2 so far."""
        return self._settled

    @property
    def full(self) -> bool:
        """Whether the server allows no more streams for now."""
        return len(self.streams) >= self.control.peer_streams

    # -- commands ----------------------------------------------------------------------------------------------

    def open(self) -> Stream:
        """A new stream; its headers are to be sent next, before another is opened.

        Not to be called when `going`, `full` or `ended`.
        """
        assert not self.going, "this connection takes no more streams"
        self._last_id += 2
        stream = Stream(self._last_id, StreamState.IDLE, self.control.initial_send_window)
        self.streams[stream.id] = stream
        if self._last_id >= LARGEST_ID - 1:
            self.going = True  # section 5.1.1: no identifiers are left
        return stream

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Give a stream up; its user is not told."""
        if stream.state is not _CLOSED:
            self.out.reset(stream, code)

    def pause(self, stream: Stream) -> None:
        """Let the server send what the stream's window has room for, and no more."""
        stream.paused = True

    def resume(self, stream: Stream, now: float) -> None:
        stream.paused = False
        receive = stream.receive
        if receive is not None and stream.state is not _CLOSED and receive.used * 2 >= receive.size:
            self.out.control(frames.window_update(stream.id, receive.update(now)))

    def probe(self) -> None:
        """Ask for a sign of life: `PingAcked`."""
        self.control.probe()

    def say_goodbye(self) -> None:
        """GOAWAY; to be followed by closing."""
        self.going = True
        self.out.control(frames.goaway(0, ErrorCode.NO_ERROR, ""))

    def fail(self, code: ErrorCode, why: str) -> list[AnswerEvent]:
        """End the connection for a reason seen from outside (time)."""
        events: list[AnswerEvent] = []
        if not self.ended:
            self._end(code, why, events)
        return events

    def take(self, now: float) -> bytes:
        """What is to be sent now."""
        if self.control.pings:
            self.control.answer_pings(now)
        data = self.out.take()
        if self.out.ended:
            self._forget_ended()
        return data

    def _forget_ended(self) -> None:
        for stream in self.out.ended:
            self.streams.pop(stream.id, None)
        self.out.ended.clear()

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[AnswerEvent]:
        """What the bytes mean; in the order in which they say it."""
        events: list[AnswerEvent] = []
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
                    else:
                        self._data(stream, flags, data, start, end, now, events)
                elif kind == _HEADERS:
                    self._headers(flags, stream_id, data[start:end], now, events)
                elif kind == _WINDOW_UPDATE and length == 4:
                    self._window_update(stream_id, int.from_bytes(data[start:end], "big") & LARGEST_ID, now)
                else:
                    self._other(kind, flags, stream_id, data[start:end], now, events)
            except StreamFailure as failure:
                self._fault(failure, now, events)
        self._partial = b"" if position == size else data[position:]

    def _guarded(
        self, kind: int, flags: int, stream_id: int, payload: bytes, now: float, events: list[AnswerEvent]
    ) -> None:
        """A frame where only one kind may come: the first SETTINGS, or the rest of a header block."""
        block = self._block
        if block is None:
            if kind != FrameType.SETTINGS or flags & frames.ACK:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "no_settings_first")
            self.control.settings(flags, stream_id, payload)
            self._settled = True
            return
        whole = block.add(kind, flags, stream_id, payload, self.limits)
        if whole is not None:
            self._block = None
            self._complete(block.stream_id, block.flags, whole, events)

    def _known_id(self, stream_id: int) -> None:
        """Frames of streams that are over were under way; of streams that never were, they are a fault."""
        if stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_on_idle_stream")

    def _data(
        self,
        stream: Stream,
        flags: int,
        data: bytes,
        start: int,
        end: int,
        now: float,
        events: list[AnswerEvent],
    ) -> None:
        length = end - start
        ended = bool(flags & frames.END_STREAM)
        state = NEXT[stream.state * ACTS + (_RECV_END if ended else _RECV_DATA)]
        if state is None or not stream.head_received:
            raise StreamFailure(stream.id, ErrorCode.PROTOCOL_ERROR, "DATA where none may be")
        receive = stream.receive or stream.open_window(self.limits)
        receive.left -= length
        if receive.left < 0:
            raise StreamFailure(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "stream window overrun")
        if flags & frames.PADDED:
            padding = data[start] if length else 0
            if padding >= length:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "padding_too_large")
            start, end = start + 1, end - padding
        if start == end and not ended:
            self._budgets.spend(Kind.EMPTY_DATA, now)
        if stream.expected is not None:
            stream.expected -= end - start
            if stream.expected < 0 or (ended and stream.expected):
                raise StreamFailure(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is another")
        receive.used += length
        if not ended and not stream.paused and receive.used * 2 >= receive.size:
            self.out.control(frames.window_update(stream.id, receive.update(now)))
        events.append(DataReceived(stream, data, start, end, ended))
        stream.state = state
        if ended:
            self._answered(stream)

    def _headers(
        self, flags: int, stream_id: int, payload: bytes, now: float, events: list[AnswerEvent]
    ) -> None:
        self._known_id(stream_id)
        if flags & (frames.PADDED | frames.PRIORITIZED):
            payload = unwrapped(flags, stream_id, payload)
        if flags & frames.END_HEADERS:
            self._complete(stream_id, flags, payload, events)
        else:
            self._block = PartialBlock(stream_id, flags, payload)

    def _complete(self, stream_id: int, flags: int, block: bytes, events: list[AnswerEvent]) -> None:
        """A header block is whole: the head of an answer, or its trailers."""
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
        if begins and head.status[:1] == b"1":  # informational (section 8.1): the head is to come
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
        """The server has said all. What we had to say still does not matter any more (section 8.1)."""
        if stream.state is _CLOSED:
            self.out.forget(stream)
            self.streams.pop(stream.id, None)
        else:
            self.out.reset(stream, ErrorCode.NO_ERROR)

    def _window_update(self, stream_id: int, increment: int, now: float) -> None:
        if stream_id == 0:
            if not increment:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "window_update_of_zero")
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
        stream.send_window += increment
        if stream.send_window > WINDOW_LIMIT:
            raise StreamFailure(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "window too large")
        self.out.opened(stream)

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
        """Section 6.8: streams above the last that the server names were not looked at."""
        self.going = True
        last = int.from_bytes(payload[:4], "big") & LARGEST_ID
        for stream in [each for each in self.streams.values() if each.id > last]:
            del self.streams[stream.id]
            self.out.forget(stream)
            events.append(StreamReset(stream, ErrorCode.REFUSED_STREAM))
        why = payload[8:208].decode("utf-8", "replace")
        events.append(GoingAway(int.from_bytes(payload[4:8], "big"), why))

    # -- the end -----------------------------------------------------------------------------------------------

    def _fault(self, failure: StreamFailure, now: float, events: list[AnswerEvent]) -> None:
        """End a stream for what the server did on it."""
        self._budgets.spend(Kind.FAULTS, now)
        stream = self.streams.pop(failure.stream_id, None)
        if stream is not None:
            self.out.forget(stream)
            events.append(StreamReset(stream, failure.code))
        self.out.control(frames.rst_stream(failure.stream_id, failure.code))

    def _end(self, code: ErrorCode, why: str, events: list[AnswerEvent]) -> None:
        self.ended = self.going = True
        self._partial = b""
        for stream in self.streams.values():
            self.out.forget(stream)
            events.append(StreamReset(stream, code))
        self.streams.clear()
        self.out.clear()
        self.out.control(frames.goaway(0, code, why))
        events.append(ConnectionEnded(code, why))
