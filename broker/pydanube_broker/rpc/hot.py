"""The shape of hot handlers (docs/design.md#7-grpc).

A hot stream is an object that is told what happens; nothing in it awaits between reading a publish and giving out
its offset. It answers through a `StreamReply`. A hot call is a function that takes the request and a `UnaryReply`, to be
answered in the same turn of the loop or later. A hot server stream is a hot stream that is told nothing: its one request
opens it, and it says itself when the response headers leave. `own_server` presents these to its clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.rpc.caller import Called


class CallRelay(Protocol):
    """Has another broker carry out calls that this one cannot serve."""

    def takes(self, call: Any, error: ClusterError) -> bool:
        """Take over a call (`calls.Call`) that would end with an error; return False if it has to end."""


class StreamReply(Called, Protocol):
    """Sends to the client of one stream."""

    def goes_elsewhere(self, error: ClusterError) -> bool:
        """Whether another broker has the stream from here on, instead of its ending with the error; then it is closed
        here. Asked before anything was sent."""

    def send(self, message: bytes) -> None:
        """Queue one message. Never waits; look at `writable` before sending what can wait."""

    def send_along(self, message: bytes) -> None:
        """Queue one message that leaves with the next one on its connection, or alone after some milliseconds."""

    @property
    def writable(self) -> bool:
        """Whether less than the buffer bound (1 MB) is queued; when it becomes true again, `on_credit` is called."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def end(self, error: ClusterError | None = None) -> None:
        """End the stream after what is queued, with OK or with the error's status."""


class HotStream(Protocol):
    """One open stream. Calls come from the loop, one at a time, and do not await."""

    def on_message(self, message: bytes) -> None: ...

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None:
        """The client sends no more."""

    def on_close(self) -> None:
        """The stream is gone, for whatever reason. Called exactly once, last."""


class UnaryReply(Called, Protocol):
    """Answers the client of one call. One of the two methods is called, once; later calls are ignored."""

    def send(self, message: bytes) -> None: ...

    def fail(self, error: ClusterError) -> None: ...


class ServerStreamReply(Called, Protocol):
    """Sends to the client of one server stream."""

    def begin(self) -> None:
        """Send the response headers. If the stream ends with an error before that, the response is trailers only."""

    def send(self, message: bytes) -> None:
        """Queue one message, as `StreamReply.send`; not before `begin`."""

    @property
    def writable(self) -> bool: ...

    @property
    def goes_on(self) -> bool:
        """Return whether the client has had answers on the stream from another broker or handler; to ask before `begin`."""

    def owes(self, count: int) -> None:
        """Count bytes, more or less, that wait in the handler; they count as queued."""

    @property
    def has_room(self) -> bool:
        """Return whether to send more of what is owed: `writable`, whatever is queued in and owed to other streams."""

    def end(self, error: ClusterError | None = None) -> None: ...


class HotServerStream(Protocol):
    """One open server stream, as the server sees it."""

    def on_credit(self) -> None: ...

    def on_close(self) -> None:
        """The stream is gone, for whatever reason. Called exactly once, last."""


StreamOpener = Callable[[StreamReply], HotStream]
ServerStreamOpener = Callable[[bytes, ServerStreamReply], HotServerStream]
#: may raise a `ClusterError` instead of calling `fail`
HotHandler = Callable[[bytes, UnaryReply], None]
ColdHandler = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The handlers of one port: full method path → handler.

    Args:
        open: paths for which nobody is asked who he is.
        carried: paths whose calls `elsewhere` may take.
    """

    streams: Mapping[str, StreamOpener] = field(default_factory=dict)
    cold: Mapping[str, ColdHandler] = field(default_factory=dict)
    hot: Mapping[str, HotHandler] = field(default_factory=dict)
    server_streams: Mapping[str, ServerStreamOpener] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    elsewhere: CallRelay | None = None
