"""Sending: control frames and whole answers immediately, streams in turns within the peer's windows.

A stream's data waits in the stream. When the data taken before has left, the next stream gets a turn of up to 64 KiB. So
a stream with much data delays another one by at most a turn, and an answer to a call or to a PING only waits for the data
that the transport already has. While calls are open, streams leave the last `RESERVE_BYTES` of the connection's window to
answers.

A header block is encoded together with its frame, because each block may depend on the previous one.
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
# Plain globals for the path of every answer, as in `connection`.
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
        answering: this is the server's side, on which a stream that we end is complete.
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
        self.turns: OrderedDict[Stream, None] = OrderedDict()  # streams that wait for their turn
        self.stuck: dict[Stream, None] = {}  # streams with queued data whose own window is used up
        self._waiting = 0  # number of streams with queued data
        self.waiting_bytes = 0  # queued in streams
        self.stuck_bytes = 0  # of these, in `stuck` streams
        #: the streams belong to several clients, of which one that does not read must not block the others
        self.shared = False
        self.answers_open = 0  # calls that will be answered as a whole
        # of the last whole answer, and the fronts of their frames
        self._blocks: tuple[bytes, bytes] | None = None
        self._fronts = (b"", b"")
        #: streams that ended here, to be removed by the connection
        self.ended: list[Stream] = []
        #: streams whose users may continue
        self.relieved: list[Stream] = []
        # Streams whose users wait because the connection as a whole has too much queued
        self.parked: dict[Stream, None] = {}

    # -- sent immediately --------------------------------------------------------------------------------------

    def control(self, frame: bytes) -> None:
        self._out.append(frame)
        self.held_bytes += len(frame)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream immediately and drop its queue."""
        self.forget(stream)
        stream.cut = True
        self.control(frames.rst_stream(stream.id, code))
        self.ended.append(stream)

    def head(self, stream: Stream, headers: Headers) -> None:
        """Send the headers of a response or request alone."""
        if stream.state is _CLOSED:  # closed concurrently, and its user gets the event
            return
        self._step(stream, Act.SEND)
        stream.head_sent = True
        block = self.writer.write(headers)
        self.control(frames.headers(stream.id, block, end=False, max_frame_bytes=self.max_frame_bytes))

    def request(self, stream: Stream, headers: Headers, body: bytes) -> None:
        """Send a whole request, in one piece if it fits into the windows."""
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
        """Send a whole response of which nothing was sent before, in one piece if it fits into the windows."""
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
            # the bytes of both frames before the stream's number
            self._fronts = (
                _pack(len(head) >> 8, len(head) & 0xFF, _HEADERS, _END_HEADERS, 0)[:5],
                _pack(len(tail) >> 8, len(tail) & 0xFF, _HEADERS, _LAST_HEADERS, 0)[:5],
            )
        number = stream.id.to_bytes(4, "big")
        # size << 16 is three bytes of length, the type DATA, which is 0, and no flags
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

    # -- sent in turns -----------------------------------------------------------------------------------------

    def data(self, stream: Stream, body: bytes) -> None:
        """Queue data of a stream, or send it immediately if nothing is queued and it fits into the windows."""
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
        """Count bytes that the stream's user holds for it as queued, or with a negative count no longer."""
        stream.owed_bytes += count
        if stream in self.stuck:
            self.stuck_bytes += count
        self.release(-count)

    def admits(self, stream: Stream) -> bool:
        """Return whether a stream accepts more data. If not, it is `relieved` when there is room again.

        The limit per stream is not enough, because many streams with one whole frame each could hold any amount.
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
        """The queued bytes that count against the limit of all streams."""
        return self.waiting_bytes - (min(self.stuck_bytes, self._limits.stuck_bytes) if self.shared else 0)

    @property
    def overfull(self) -> bool:
        """Whether a stuck stream of a shared connection must be ended, so that it does not block the others."""
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
        """End a stream after its data, by trailers, or without trailers by a last DATA frame.

        Args:
            repeats: the trailers will repeat, so cache their block.
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
                return  # the answer will follow
            # The response is complete before the request: the peer need not send the rest (section 8.1).
            self._step(stream, Act.SEND_RESET)
            stream.cut = True
            self.control(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
        self.ended.append(stream)

    # -- the peer's windows ------------------------------------------------------------------------------------

    def room(self, stream: Stream) -> int:
        """Return the stream's window, which is below 0 after the peer has reduced it."""
        return self.initial_window + stream.credit

    def grant(self, stream: Stream, increment: int) -> bool:
        """Increase the stream's window and return whether it is within the limit."""
        stream.credit += increment
        self.most_credit = max(self.most_credit, stream.credit)
        return self.room(stream) <= WINDOW_LIMIT

    def opened(self, stream: Stream) -> None:
        """Let a stream continue whose window has grown."""
        if stream in self.stuck and self.room(stream) > 0:
            del self.stuck[stream]
            self.stuck_bytes -= stream.queued_bytes + stream.owed_bytes
            self._line_up(stream)

    def _line_up(self, stream: Stream) -> None:
        """Add a stream with queued data to those that wait for their turn, or for their window."""
        if self.room(stream) > 0:
            stream.ready = True
            self.turns[stream] = None
        else:
            self.stuck[stream] = None
            self.stuck_bytes += stream.queued_bytes + stream.owed_bytes

    def forget(self, stream: Stream) -> None:
        """Close a stream and drop its queue."""
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
        """Drop all streams, because the connection has ended."""
        self.turns.clear()
        self.parked.clear()

    @property
    def overdue(self) -> bool:
        """Whether the queue is over its limit, because the peer sends requests and does not read answers."""
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
        """Return the bytes that may be sent now."""
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
        """Give streams turns until enough is queued or the window is used up."""
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
        """Take at most `room` bytes of a stream, in whole pieces of its queue if they fit into a frame."""
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
