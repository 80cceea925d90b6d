"""HTTP/2 (RFC 9113) without I/O: from received bytes to events, and from commands to bytes to be sent.

`connection.ServerConnection` and `client.ClientConnection` are the two sides. The other modules are their common parts:
frames, header tables, stream states, windows, the queue of data to be sent, and budgets for a peer's behaviour. The time
is an argument. The package is independent of gRPC.
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
