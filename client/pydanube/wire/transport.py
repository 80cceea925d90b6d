"""The seam between the SDK and what carries its bytes.

A transport leads to one broker. Streams carry whole protobuf messages as bytes, in both directions, as
`danube_stream.proto` describes them. There is one, over HTTP/2, and around it in tests the one of `pydanube.testing`,
which can fail; one conformance suite runs over both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from pydanube_core.errors import ClusterError

GOODBYE_S: Final = 0.5


class Stream(Protocol):
    """A bidirectional stream. Every failure is a `ClusterError`; a lost connection is `Unavailable`."""

    async def write(self, message: bytes) -> None:
        """Send one message; returns when the transport took it. One write at a time."""

    def write_at_once(self, message: bytes) -> bool:
        """Send one message now, in this turn of the loop; False, and nothing done, where that takes waiting."""

    async def read(self) -> bytes | None:
        """The next message, None when the other side ended the stream in order. One read at a time."""

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        """Call `take` with each message that comes, as early as it is there, until it says False or raises.

        True when `take` has said so, False when the other side ended the stream in order. Not beside `read`.
        """

    async def finish(self) -> None:
        """Say that nothing more is written; the other side then ends the stream. Never raises."""

    async def aclose(self) -> None:
        """End the stream. Never raises, may be called again."""


class Transport(Protocol):
    """A way to one broker."""

    @property
    def url(self) -> str: ...

    @property
    def renews(self) -> bool:
        """Whether a stream shows a token of its own, asked for when it begins."""

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        """Call `Resolve` with an encoded `ResolveRequest`; returns an encoded `ResolveResponse`."""

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        """Call any unary method by its full path: the schema registry's, for one."""

    def publish(self) -> Stream: ...

    def consume(self) -> Stream: ...

    async def aclose(self) -> None: ...


class TransportFactory(Protocol):
    """Makes the transport to the broker at this url."""

    def __call__(self, url: str, /) -> Transport: ...


async def say_goodbye(stream: Stream, reader: asyncio.Task[None]) -> None:
    """End a stream in good order before it is cancelled: the broker then knows that nobody died.

    Not for long: whoever leaves does not wait for a broker that does not answer.
    """
    await stream.finish()
    await asyncio.wait([reader], timeout=GOODBYE_S)


def copy_of(error: ClusterError, **details: object) -> ClusterError:
    """The same error again, for another waiter: one instance raised in many tasks would mix their tracebacks."""
    facts = ClusterError.from_dict(error.to_dict() | {"details": error.details | details})
    # And nothing else: what a person is shown is one error, not how it travelled
    facts.__cause__ = error.__cause__
    return facts


def gave_up(error: ClusterError, waited_s: float) -> ClusterError:
    """The error that ended an outage, saying how long it was tried."""
    facts = error.to_dict()
    tried = f"{error.message} (tried for {waited_s:.0f} s)" if waited_s >= 1 else error.message
    return ClusterError.from_dict(facts | {"message": tried})
