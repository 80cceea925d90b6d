"""HTTP/2 (RFC 9113) as a server speaks it, without any I/O: bytes in, events out; commands in, bytes out.

`connection.ServerConnection` is the whole of it; the other modules each hold one piece: frames, header tables, the
life of a stream, windows, what is waiting to be sent, and the budgets of a peer's behaviour. The clock comes in as an
argument. Nothing here knows gRPC.
"""

from pydanube_broker.rpc.http2.connection import ServerConnection
from pydanube_broker.rpc.http2.events import (
    ConnectionEnded,
    DataReceived,
    Event,
    PingAcked,
    RequestReceived,
    StreamReset,
)
from pydanube_broker.rpc.http2.limits import Limits
from pydanube_broker.rpc.http2.streams import Stream

__all__ = [
    "ConnectionEnded",
    "DataReceived",
    "Event",
    "Limits",
    "PingAcked",
    "RequestReceived",
    "ServerConnection",
    "Stream",
    "StreamReset",
]
