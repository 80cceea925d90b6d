"""The shape of hot handlers, whatever server stands in front of them (DESIGN chapter 7).

A hot stream is an object that is told what happens; nothing in it awaits between reading a publish and giving out
its offset. It answers through a `StreamReply`. A server runtime presents these to its clients: `grpcio_server`
now, our own server later, and the same service suite runs on both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pydanube_core.errors import ClusterError

__all__ = ["ColdHandler", "HotStream", "Route", "StreamOpener", "StreamReply"]


class StreamReply(Protocol):
    """The way back to the client of one stream."""

    def send(self, message: bytes) -> None:
        """Queue one message. Never waits; look at `writable` before sending what can wait."""
        ...

    @property
    def writable(self) -> bool:
        """Whether less than the buffer bound (1 MB) is queued; when it becomes true again, `on_credit` is called."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def end(self, error: ClusterError | None = None) -> None:
        """End the stream once what is queued has left, with OK or with the error's status."""
        ...


class HotStream(Protocol):
    """One open stream. Calls come from the loop, one at a time, and do not await."""

    def on_message(self, message: bytes) -> None: ...

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None:
        """The client sends no more."""
        ...

    def on_close(self) -> None:
        """The stream is gone, whatever ended it. Called exactly once, last."""
        ...


StreamOpener = Callable[[StreamReply], HotStream]
ColdHandler = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a server serves on one port: full method path → handler."""

    streams: Mapping[str, StreamOpener]
    cold: Mapping[str, ColdHandler]
