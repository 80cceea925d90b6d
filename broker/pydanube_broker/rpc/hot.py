"""The shape of hot handlers (docs/design.md#7-grpc).

A hot stream is an object with callbacks. It does not await between reading a publish and assigning its offset. It
answers through a `StreamReply`. A hot call is a function that takes the request and a `UnaryReply`, which it answers in
the same turn of the loop or later. A hot server stream is opened by its one request and gets no further messages. It
decides when the response headers leave. `own_server` connects these to its clients.
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
        """Take over a call (`calls.Call`) that would end with an error. Return False if it has to end."""


class StreamReply(Called, Protocol):
    """Sends to the client of one stream."""

    def goes_elsewhere(self, error: ClusterError) -> bool:
        """Return whether another broker continues the stream. Then it is closed here. If not, it ends with the error.

        Called before anything was sent.
        """

    def send(self, message: bytes) -> None:
        """Queue one message. Never waits. Check `writable` before sending messages that can wait."""

    def send_along(self, message: bytes) -> None:
        """Queue one message that leaves with the next one on its connection, or alone after some milliseconds."""

    @property
    def writable(self) -> bool:
        """Whether less than the buffer bound (1 MB) is queued. When it becomes true again, `on_credit` is called."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def end(self, error: ClusterError | None = None) -> None:
        """End the stream after all queued messages, with OK or with the error's status."""


class HotStream(Protocol):
    """One open stream. Calls come from the loop, one at a time, and do not await."""

    def on_message(self, message: bytes) -> None: ...

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None:
        """The client sends no more."""

    def on_close(self) -> None:
        """The stream is gone, for any reason. Called exactly once, last."""


class UnaryReply(Called, Protocol):
    """Answers the client of one call. One of the two methods is called, once. Later calls are ignored."""

    def send(self, message: bytes) -> None: ...

    def fail(self, error: ClusterError) -> None: ...


class ServerStreamReply(Called, Protocol):
    """Sends to the client of one server stream."""

    def begin(self) -> None:
        """Send the response headers. If the stream ends with an error before that, the response is trailers only."""

    def send(self, message: bytes) -> None:
        """Queue one message, as `StreamReply.send`. Not before `begin`."""

    @property
    def writable(self) -> bool: ...

    @property
    def goes_on(self) -> bool:
        """Return whether the client has answers on the stream from another broker or handler. Check before `begin`."""

    def owes(self, count: int) -> None:
        """Count the approximate bytes that wait in the handler. They count as queued."""

    @property
    def has_room(self) -> bool:
        """Return whether to send more of the bytes owed: `writable`, regardless of the bytes of other streams."""

    def end(self, error: ClusterError | None = None) -> None: ...


class HotServerStream(Protocol):
    """One open server stream, as the server sees it."""

    def on_credit(self) -> None: ...

    def on_close(self) -> None:
        """The stream is gone, for any reason. Called exactly once, last."""


StreamOpener = Callable[[StreamReply], HotStream]
ServerStreamOpener = Callable[[bytes, ServerStreamReply], HotServerStream]
#: May raise a `ClusterError` instead of calling `fail`.
HotHandler = Callable[[bytes, UnaryReply], None]
ColdHandler = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The handlers of one port: full method path → handler.

    Args:
        open: paths that need no authentication.
        carried: paths whose calls `elsewhere` may take.
    """

    streams: Mapping[str, StreamOpener] = field(default_factory=dict)
    cold: Mapping[str, ColdHandler] = field(default_factory=dict)
    hot: Mapping[str, HotHandler] = field(default_factory=dict)
    server_streams: Mapping[str, ServerStreamOpener] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    elsewhere: CallRelay | None = None
