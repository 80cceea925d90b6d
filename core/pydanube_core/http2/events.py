"""Events that an HTTP/2 connection reports to its owner: requests, answers, data, resets, and the end of the connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube_core.http2.codes import ErrorCode
    from pydanube_core.http2.head import AnswerHead, RequestHead
    from pydanube_core.http2.streams import Stream


# Not frozen: a frozen dataclass takes three times as long to make, and these are made for every frame.


@dataclass(slots=True, eq=False)
class RequestReceived:
    """A stream began.

    A request that is one HEADERS and one last DATA frame behind it, the common one, is this event alone.

    Args:
        varying: the value of the header that is kept out of `head` (`HeaderReader`), if it was there.
        ended: nothing follows; `data[start:end]` is all of the body then, as in `DataReceived`.
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
    """The head of an answer, or trailers: then `head.status` is None. Or an answer that is trailers only.

    Args:
        ended: nothing follows.
    """

    stream: Stream
    head: AnswerHead
    ended: bool


@dataclass(slots=True, eq=False)
class DataReceived:
    """Data on a stream: `data[start:end]`, a part of what was received, so that nothing is copied unless needed.

    Empty with `ended` where a stream ended by trailers or an empty frame.
    """

    stream: Stream
    data: bytes
    start: int
    end: int
    ended: bool


@dataclass(slots=True, eq=False)
class StreamReset:
    """A stream ended without an answer: reset by the peer, or by us for an error of the peer."""

    stream: Stream
    code: ErrorCode | int


@dataclass(slots=True, eq=False)
class PingAcked:
    """The peer has answered a PING."""


@dataclass(slots=True, eq=False)
class GoingAway:
    """The peer accepts no more streams; open ones that it had seen continue."""

    code: ErrorCode | int
    why: str


@dataclass(slots=True, eq=False)
class ConnectionEnded:
    """Nothing is read any more; send what `take` returns, then close.

    Args:
        code: as it stands in our GOAWAY.
        why: for the log and for counting: a budget's name where the peer overstepped one.
    """

    code: ErrorCode
    why: str


Event = RequestReceived | DataReceived | StreamReset | PingAcked | ConnectionEnded
#: what a client sees
AnswerEvent = HeadReceived | DataReceived | StreamReset | PingAcked | GoingAway | ConnectionEnded
