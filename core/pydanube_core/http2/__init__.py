"""HTTP/2 (RFC 9113) without any I/O: bytes in, events out; commands in, bytes out.

`connection.ServerConnection` and `client.ClientConnection` are the two sides; the other modules each hold one piece that
both are made of: frames, header tables, the life of a stream, windows, what is waiting to be sent, and the budgets of a
peer's behaviour. The clock comes in as an argument. Nothing here knows gRPC.
"""

from pydanube_core.http2.client import ClientConnection
from pydanube_core.http2.connection import ServerConnection
from pydanube_core.http2.events import (
    AnswerEvent,
    ConnectionEnded,
    DataReceived,
    Event,
    GoingAway,
    HeadReceived,
    RequestReceived,
    StreamReset,
)
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.streams import Stream

__all__ = [
    "AnswerEvent",
    "ClientConnection",
    "ConnectionEnded",
    "DataReceived",
    "Event",
    "GoingAway",
    "HeadReceived",
    "Limits",
    "RequestReceived",
    "ServerConnection",
    "Stream",
    "StreamReset",
]
