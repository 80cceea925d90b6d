"""Sending: control frames and whole answers at once, streams in turn as the peer's windows allow.

A stream's data waits in the stream. It is taken from there when what was handed out before has left, 64 KiB a turn, one
stream after the other: so a stream that has much to say delays no other by more than a turn, and an answer to a call, or
to a PING, is behind what the transport holds already and nothing else. Streams leave the last `RESERVE_BYTES` of the
connection's window to answers while calls are open.

Header blocks are written when their frame is, because each may depend on the one before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from pydanube_core.http2 import frames
from pydanube_core.http2.codes import ErrorCode, FrameType
from pydanube_core.http2.head import Headers
from pydanube_core.http2.header_tables import HeaderWriter
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.streams import ACTS, NEXT, Act, Stream, StreamState

INITIAL_WINDOW_BYTES: Final = 65_535  # section 6.9.2
WINDOW_LIMIT: Final = (1 << 31) - 1
RESERVE_BYTES: Final = 4096
# Plain globals for what every answer passes, as in `connection`.
_DATA: Final = int(FrameType.DATA)
_HEADERS: Final = int(FrameType.HEADERS)
_END_HEADERS: Final = frames.END_HEADERS
_LAST_HEADERS: Final = frames.END_HEADERS | frames.END_STREAM
_CLOSED: Final = StreamState.CLOSED
_HALF_CLOSED: Final = StreamState.HALF_CLOSED_REMOTE
_pack = frames.FRAME_HEADER.pack


class Outbox:
    """Everything queued for one peer.

    Args:
        answering: the peer asks and we answer, so a stream that we end is over.
    """

    def __init__(self, limits: Limits, *, answering: bool = True) -> None:
        self._limits = limits
        self._answering = answering
        self.writer = HeaderWriter()
        self.window = INITIAL_WINDOW_BYTES  # the connection's
        self.initial_window = INITIAL_WINDOW_BYTES  # of each stream, by the peer's SETTINGS
        self.most_credit = 0  # no stream's `credit` is above it
        self.max_frame_bytes = 1 << 14  # the peer's
        self._out: list[bytes | memoryview] = []
        self.held_bytes = 0  # of control frames and answers that were not taken yet
        self.turns: OrderedDict[Stream, None] = OrderedDict()  # streams that wait for theirs
        self.stuck: dict[Stream, None] = {}  # streams with something queued whose own window is used up
        self._waiting = 0  # streams that have something queued
        self.waiting_bytes = 0  # queued in streams
        self.stuck_bytes = 0  # of these, in `stuck` streams
        #: its streams are of several clients: what one of them does not read must not stop the others
        self.shared = False
        self.answers_open = 0  # calls that will be answered as a whole
        # of the last whole answer, and the fronts of their frames
        self._blocks: tuple[bytes, bytes] | None = None
        self._fronts = (b"", b"")
        #: streams that ended here, to be forgotten by the connection
        self.ended: list[Stream] = []
        #: streams whose users may go on
        self.relieved: list[Stream] = []
        self.parked: dict[
            Stream, None
        ] = {}  # told to wait because the connection as a whole has too much waiting

    # -- what leaves at once -----------------------------------------------------------------------------------

    def control(self, frame: bytes) -> None:
        self._out.append(frame)
        self.held_bytes += len(frame)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once; what is queued in it is dropped."""
        self.forget(stream)
        stream.cut = True
        self.control(frames.rst_stream(stream.id, code))
        self.ended.append(stream)

    def head(self, stream: Stream, headers: Headers) -> None:
        """Send the headers of a response or request alone."""
        if stream.state is _CLOSED:  # gone meanwhile; its user will be told
            return
        self._step(stream, Act.SEND)
        stream.head_sent = True
        block = self.writer.write(headers)
        self.control(frames.headers(stream.id, block, end=False, max_frame_bytes=self.max_frame_bytes))

    def request(self, stream: Stream, headers: Headers, body: bytes) -> None:
        """Send a whole request, in one piece if the windows have room."""
        size = len(body)
        self.head(stream, headers)
        if stream.state is _CLOSED:
            return
        if size > self.max_frame_bytes or size > self.window or size > self.initial_window + stream.credit:
            self.data(stream, body)
            self.finish(stream, None, repeats=False)
            return
        self.window -= size
        stream.credit -= size
        self._step(stream, Act.SEND_END)
        self.control(frames.data_header(stream.id, size, end=True) + body)

    def answer(self, stream: Stream, headers: Headers, body: bytes, trailers: Headers) -> None:
        """Send a whole response, of which nothing was sent before; at once if the windows have room."""
        size = len(body)
        if (
            size > self.max_frame_bytes
            or size > self.window
            or size > self.initial_window + stream.credit
            or stream.head_sent
            or stream.state is not _HALF_CLOSED
        ):
            if stream.state is _CLOSED:
                return
            if not stream.head_sent:
                self.head(stream, headers)
            self.data(stream, body)
            self.finish(stream, trailers, repeats=True)
            return
        blocks = self.writer.write_pair(headers, trailers)
        if blocks is not self._blocks:
            head, tail = self._blocks = blocks
            # of both frames what stands before the stream's number
            self._fronts = (
                _pack(len(head) >> 8, len(head) & 0xFF, _HEADERS, _END_HEADERS, 0)[:5],
                _pack(len(tail) >> 8, len(tail) & 0xFF, _HEADERS, _LAST_HEADERS, 0)[:5],
            )
        number = stream.id.to_bytes(4, "big")
        # size << 16: three bytes of length, DATA is 0, and no flag
        frame = b"".join(
            (
                self._fronts[0], number, blocks[0],
                (size << 16).to_bytes(5, "big"), number, body,
                self._fronts[1], number, blocks[1],
            )
        )  # fmt: skip
        self.window -= size
        self._out.append(frame)
        self.held_bytes += len(frame)
        stream.state = _CLOSED
        self.ended.append(stream)

    # -- what leaves in turns ----------------------------------------------------------------------------------

    def data(self, stream: Stream, body: bytes) -> None:
        """Queue data of a stream; it is sent at once if nothing is queued and there is room."""
        size = len(body)
        if stream.state is _CLOSED:
            return
        if (
            stream.queue is None
            and size <= self.max_frame_bytes
            and size <= self.initial_window + stream.credit
            and size <= self.window - (RESERVE_BYTES if self.answers_open else 0)
            and self.held_bytes < self._limits.out_bytes
        ):
            self._out.append(_pack(size >> 8, size & 0xFF, _DATA, 0, stream.id) + body)
            self.held_bytes += size + 9
            self.window -= size
            stream.credit -= size
            return
        if stream.queue is None:
            stream.queue = deque()
            self._waiting += 1
        stream.queue.append(body)
        stream.queued_bytes += size
        self.waiting_bytes += size
        if stream.queued_bytes * self._waiting >= self._limits.buffer_bytes:
            stream.full = True
        if stream.ready:
            return
        if stream in self.stuck:
            self.stuck_bytes += size
        else:
            self._line_up(stream)

    def owe(self, stream: Stream, count: int) -> None:
        """Count bytes that the stream's user has for it as queued, or no longer."""
        stream.owed_bytes += count
        if stream in self.stuck:
            self.stuck_bytes += count
        self.release(-count)

    def admits(self, stream: Stream) -> bool:
        """Return whether a stream may be given more; if not, it is `relieved` when there is room again.

        A stream's own share is not enough: many streams, each handed one whole frame, would hold any amount.
        """
        if stream.full:
            return False
        if self._in_the_way < self._limits.queued_bytes:
            return True
        stream.full = True
        self.parked[stream] = None
        return False

    @property
    def _in_the_way(self) -> int:
        """What is queued and counts against all streams, in bytes."""
        return self.waiting_bytes - (min(self.stuck_bytes, self._limits.stuck_bytes) if self.shared else 0)

    @property
    def overfull(self) -> bool:
        """Whether a stream of a shared connection that takes nothing has to go, so that the others are not stopped."""
        return self.shared and self.stuck_bytes > self._limits.stuck_bytes

    def release(self, count: int) -> None:
        """Count bytes as no longer queued."""
        self.waiting_bytes -= count
        if self.parked and self._in_the_way < self._limits.queued_bytes // 2:
            parked, self.parked = self.parked, {}
            for stream in parked:
                stream.full = False
            self.relieved += parked

    def finish(self, stream: Stream, trailers: Headers | None, *, repeats: bool) -> None:
        """End a stream after its data: with trailers, or without any by a last DATA frame.

        Args:
            repeats: the trailers are worth remembering.
        """
        if stream.state is _CLOSED:
            return
        if stream.queue is not None:
            stream.ending = (trailers, repeats)
            return
        self._end(stream, trailers, repeats=repeats)

    def _end(self, stream: Stream, trailers: Headers | None, *, repeats: bool) -> None:
        self._step(stream, Act.SEND_END)
        if trailers is None:
            self.control(frames.data_header(stream.id, 0, end=True))
        else:
            block = self.writer.write(trailers) if repeats else self.writer.write_once(trailers)
            self.control(frames.headers(stream.id, block, end=True, max_frame_bytes=self.max_frame_bytes))
        if stream.state is not _CLOSED:
            if not self._answering:
                return  # the answer is to come
            # The whole response is there before the request is: the peer need not go on (section 8.1).
            self._step(stream, Act.SEND_RESET)
            stream.cut = True
            self.control(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
        self.ended.append(stream)

    # -- the peer's windows ------------------------------------------------------------------------------------

    def room(self, stream: Stream) -> int:
        """Return the stream's window; below 0 after the peer has made it smaller."""
        return self.initial_window + stream.credit

    def grant(self, stream: Stream, increment: int) -> bool:
        """Let the stream's window grow; return whether it may be so large."""
        stream.credit += increment
        self.most_credit = max(self.most_credit, stream.credit)
        return self.room(stream) <= WINDOW_LIMIT

    def opened(self, stream: Stream) -> None:
        """The stream's window has grown."""
        if stream in self.stuck and self.room(stream) > 0:
            del self.stuck[stream]
            self.stuck_bytes -= stream.queued_bytes + stream.owed_bytes
            self._line_up(stream)

    def _line_up(self, stream: Stream) -> None:
        """Give a stream with something queued a place among those that wait for their turn, or for their window."""
        if self.room(stream) > 0:
            stream.ready = True
            self.turns[stream] = None
        else:
            self.stuck[stream] = None
            self.stuck_bytes += stream.queued_bytes + stream.owed_bytes

    def forget(self, stream: Stream) -> None:
        """Drop a stream that is gone: nothing of it is sent any more."""
        stream.state = _CLOSED
        stream.ending = None
        if stream.full:
            self.parked.pop(stream, None)
        if stream.queue is not None:
            stream.queue = None
            self._waiting -= 1
            if stream in self.stuck:
                del self.stuck[stream]
                self.stuck_bytes -= stream.queued_bytes + stream.owed_bytes
            self.release(stream.queued_bytes)
            stream.queued_bytes = 0
        if stream.ready:
            stream.ready = False
            self.turns.pop(stream, None)

    def clear(self) -> None:
        """Drop all streams: the connection is over."""
        self.turns.clear()
        self.parked.clear()

    @property
    def overdue(self) -> bool:
        """Whether so much is queued that nothing may be added: the peer sends requests, and does not read."""
        return self.waiting_bytes > self._limits.unsent_bytes

    @property
    def pending(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._out) or (bool(self.turns) and self._room() > 0)

    @property
    def starved(self) -> bool:
        """Whether streams wait for the connection's window."""
        return bool(self.turns) and self._room() <= 0

    def _room(self) -> int:
        return self.window - (RESERVE_BYTES if self.answers_open else 0)

    def take(self) -> bytes:
        """Return bytes that may be sent now."""
        if self.turns:
            self._fill()
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        self.held_bytes = 0
        assert isinstance(data, bytes)
        return data

    def _fill(self) -> None:
        """Give streams their turns, until enough is queued or the window is used up."""
        ready, limit, turn = self.turns, self._limits.out_bytes, self._limits.turn_bytes
        while ready and self.held_bytes < limit:
            room = self._room()
            if room <= 0:
                return
            stream, _ = ready.popitem(last=False)
            stream.ready = False
            self._turn(stream, min(turn, room, self.room(stream)))
            if stream.queue is not None:
                self._line_up(stream)
                if not stream.ready:
                    self.release(0)  # others may have room now
            elif stream.ending is not None:
                trailers, repeats = stream.ending
                stream.ending = None
                self._end(stream, trailers, repeats=repeats)
            if stream.full and stream.queued_bytes * max(1, self._waiting) < self._limits.buffer_bytes // 2:
                stream.full = False
                self.relieved.append(stream)

    def _turn(self, stream: Stream, room: int) -> None:
        """Take a stream's turn: at most so many bytes, whole pieces of its queue if they fit into a frame."""
        queue, out, largest = stream.queue, self._out, self.max_frame_bytes
        assert queue is not None, "only streams that wait have turns"
        sent = 0
        while queue and (sent < room):
            frame: list[bytes | memoryview] = []
            size, space = 0, min(largest, room - sent)
            while queue and size < space:
                piece = queue[0]
                if len(piece) <= space - size:
                    queue.popleft()
                else:
                    rest = memoryview(piece)
                    piece, queue[0] = rest[: space - size], rest[space - size :]
                frame.append(piece)
                size += len(piece)
            out.append(_pack(size >> 8, size & 0xFF, _DATA, 0, stream.id))
            out += frame
            self.held_bytes += size + 9
            sent += size
        self.window -= sent
        stream.credit -= sent
        stream.queued_bytes -= sent
        self.release(sent)
        if not queue:
            stream.queue = None
            self._waiting -= 1

    def _step(self, stream: Stream, act: Act) -> None:
        state = NEXT[stream.state * ACTS + act]
        assert state is not None, f"{act.name} on a stream that is {stream.state.name}"
        stream.state = state
