"""The connection to one attached consumer, whatever kind of client it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.subscription.ranges import Range


class ConsumerLink(Protocol):
    """The connection to one attached consumer."""

    consumer_id: int
    connected_at_ms: int
    heard_at_ms: int | None  # when its client said anything last; None: not kept for this kind of client
    answered_at_ms: int | None  # when it acknowledged or gave back anything last
    said_goodbye: bool  # it left in good order; its connection did not just break

    @property
    def writable(self) -> bool: ...

    def frame(self, session: int) -> Any:
        """Return an empty `Frame` in the form that this consumer takes."""

    def deliver(self, frame: Any) -> None:
        """Send a frame that this link made."""

    def session_changed(self, session: int, offset: int, reason: str) -> None: ...

    def recall(self, session: int, ranges: Sequence[Range]) -> None:
        """Ask the client to give back those of these messages that its application has not taken."""

    def activated(self) -> None: ...

    def end(self, error: ClusterError) -> None: ...
