"""Events that an HTTP/2 connection reports to its owner: requests, answers, data, resets, and the end of the connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube_core.http2.codes import ErrorCode
    from pydanube_core.http2.head import AnswerHead, RequestHead
    from pydanube_core.http2.streams import Stream


# Not frozen, because creating a frozen dataclass takes three times as long, and these are created for every frame.


@dataclass(slots=True, eq=False)
class RequestReceived:
    """A stream began.

    The usual request, one HEADERS frame directly followed by its only DATA frame, is this event alone.

    Args:
        varying: the value of the header that is kept out of `head` (`HeaderReader`), None if there is none.
        ended: nothing follows, and `data[start:end]` is the whole body, as in `DataReceived`.
    """

    stream: Stream
    head: RequestHead
    varying: bytes | None
    ended: bool
    data: bytes = b""
    start: int = 0
    end: int = 0


@dataclass(slots=True, eq=False)
class HeadReceived:
    """The head of an answer, its trailers (`head.status` is None then), or an answer of trailers only.

    Args:
        ended: nothing follows.
    """

    stream: Stream
    head: AnswerHead
    ended: bool


@dataclass(slots=True, eq=False)
class DataReceived:
    """Data on a stream: `data[start:end]`, a range of the received bytes, which avoids a copy.

    Empty with `ended` if a stream ended by trailers or an empty frame.
    """

    stream: Stream
    data: bytes
    start: int
    end: int
    ended: bool


@dataclass(slots=True, eq=False)
class StreamReset:
    """A stream ended without an answer: reset by the peer, or by us because of an error of the peer."""

    stream: Stream
    code: ErrorCode | int


@dataclass(slots=True, eq=False)
class PingAcked:
    """The peer has answered a PING."""


@dataclass(slots=True, eq=False)
class GoingAway:
    """The peer accepts no more streams. Open streams that it has received continue."""

    code: ErrorCode | int
    why: str


@dataclass(slots=True, eq=False)
class ConnectionEnded:
    """The connection has ended. Send the bytes of `take`, then close.

    Args:
        code: the code in our GOAWAY.
        why: reason for the log and the metrics, such as the name of an exceeded budget.
    """

    code: ErrorCode
    why: str


Event = RequestReceived | DataReceived | StreamReset | PingAcked | ConnectionEnded
#: events of a client
AnswerEvent = HeadReceived | DataReceived | StreamReset | PingAcked | GoingAway | ConnectionEnded
