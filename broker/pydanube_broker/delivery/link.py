"""The connection to one attached consumer of any kind of client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.subscription.ranges import Range


class ConsumerLink(Protocol):
    """The connection to one attached consumer."""

    consumer_id: int
    connected_at_ms: int
    heard_at_ms: int | None  # time its client last sent anything, None if not kept for this kind of client
    answered_at_ms: int | None  # time of its last ack, nack or terminate
    left_cleanly: bool  # the stream was closed, rather than its connection broken

    def client(self) -> ClientSeen | None:
        """Return the client at the other end. None for an absent consumer whose place is reserved."""

    @property
    def writable(self) -> bool: ...

    def frame(self, session: int) -> Any:
        """Return an empty `Frame` in the form that this consumer takes."""

    def deliver(self, frame: Any) -> None:
        """Send a frame that this link made."""

    def session_changed(self, session: int, offset: int, reason: str) -> None: ...

    def recall(self, session: int, ranges: Sequence[Range]) -> None:
        """Request back those of these messages that the client's application has not taken."""

    def activated(self) -> None: ...

    def end(self, error: ClusterError) -> None: ...
