"""The states of a stream (RFC 9113 section 5.1) as a table, and the data of a stream.

Without server push there are five states on either side. An act that is not in the table is an error: the peer's if we
received it, ours if we send it. Priorities (sections 5.3, 6.3) are deprecated and ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from pydanube_core.http2.head import Headers
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.windows import ReceiveWindow


class StreamState(IntEnum):
    IDLE = 0
    OPEN = 1
    HALF_CLOSED_REMOTE = 2  # the peer has ended its side
    HALF_CLOSED_LOCAL = 3  # we have ended our side
    CLOSED = 4


class Act(IntEnum):
    RECV_HEADERS = 0
    RECV_HEADERS_END = 1
    RECV_DATA = 2
    RECV_END = 3  # DATA or trailers with END_STREAM
    RECV_RESET = 4
    SEND = 5  # HEADERS or DATA
    SEND_END = 6
    SEND_RESET = 7


_S, _A = StreamState, Act

#: (state, act) → state
TRANSITIONS: Final[Mapping[tuple[StreamState, Act], StreamState]] = MappingProxyType(
    {
        (_S.IDLE, _A.RECV_HEADERS): _S.OPEN,
        (_S.IDLE, _A.RECV_HEADERS_END): _S.HALF_CLOSED_REMOTE,
        (_S.IDLE, _A.SEND): _S.OPEN,
        (_S.IDLE, _A.SEND_END): _S.HALF_CLOSED_LOCAL,
        (_S.OPEN, _A.RECV_DATA): _S.OPEN,
        (_S.OPEN, _A.RECV_END): _S.HALF_CLOSED_REMOTE,
        (_S.OPEN, _A.RECV_RESET): _S.CLOSED,
        (_S.OPEN, _A.SEND): _S.OPEN,
        (_S.OPEN, _A.SEND_END): _S.HALF_CLOSED_LOCAL,
        (_S.OPEN, _A.SEND_RESET): _S.CLOSED,
        (_S.HALF_CLOSED_REMOTE, _A.RECV_RESET): _S.CLOSED,
        (_S.HALF_CLOSED_REMOTE, _A.SEND): _S.HALF_CLOSED_REMOTE,
        (_S.HALF_CLOSED_REMOTE, _A.SEND_END): _S.CLOSED,
        (_S.HALF_CLOSED_REMOTE, _A.SEND_RESET): _S.CLOSED,
        (_S.HALF_CLOSED_LOCAL, _A.RECV_DATA): _S.HALF_CLOSED_LOCAL,
        (_S.HALF_CLOSED_LOCAL, _A.RECV_END): _S.CLOSED,
        (_S.HALF_CLOSED_LOCAL, _A.RECV_RESET): _S.CLOSED,
        (_S.HALF_CLOSED_LOCAL, _A.SEND_RESET): _S.CLOSED,
    }
)

#: the same by number, `state * len(Act) + act`, for the path of every frame, with None for an invalid act
NEXT: Final = tuple(TRANSITIONS.get((state, act)) for state in StreamState for act in Act)
ACTS: Final = len(Act)


class Stream:
    """One stream of a connection. Its fields belong to the connection, except `user`, which belongs to the caller."""

    __slots__ = (
        "credit", "cut", "ending", "expected", "full", "head_bytes", "head_received", "head_sent", "id", "owed_bytes",
        "paused", "queue", "queued_bytes", "ready", "receive", "state", "user",
    )  # fmt: skip

    def __init__(self, stream_id: int, state: StreamState) -> None:
        self.id = stream_id
        self.state = state
        # Bytes that the peer granted for this stream, less the bytes sent. The window for sending is this plus
        # `Outbox.initial_window`, so that SETTINGS change all windows in one step.
        self.credit = 0
        self.receive: ReceiveWindow | None = None  # None until data arrives
        self.head_sent = False
        self.head_received = False  # of an answer
        self.head_bytes = 0  # of a request
        self.queue: deque[bytes | memoryview] | None = None  # created when data waits
        self.queued_bytes = 0
        self.owed_bytes = 0  # further bytes for the stream that its user holds
        self.ready = False  # waits for its turn
        self.full = False  # its user must wait
        self.paused = False  # its user does not read for now, so its window is not increased
        self.ending: tuple[Headers | None, bool] | None = None  # sent after the queue. See `Outbox.finish`
        self.expected: int | None = None  # bytes of the content-length that are still missing
        self.cut = False  # we ended it before the peer did, so frames for it may still arrive
        self.user: Any = None

    def open_window(self, limits: Limits) -> ReceiveWindow:
        """Create the receive window. Most streams have one small frame and need none."""
        self.receive = ReceiveWindow(limits.stream_window_bytes, limits.stream_window_max_bytes)
        return self.receive
