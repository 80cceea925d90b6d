"""The interface between the SDK and the transport of its bytes.

A transport leads to one broker. Streams carry whole protobuf messages as bytes, in both directions, as
`danube_stream.proto` describes them. The only one is over HTTP/2. In tests, `pydanube.testing` wraps it with one that
can fail. One conformance suite runs over both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from pydanube_core.errors import ClusterError

END_S: Final = 0.5


class Stream(Protocol):
    """A bidirectional stream. Every failure is a `ClusterError`, a lost connection `Unavailable`."""

    async def write(self, message: bytes) -> None:
        """Send one message, and return when the transport has accepted it. One write at a time."""

    def write_at_once(self, message: bytes) -> bool:
        """Send one message now, in this turn of the loop. Return False, and do nothing, if that would have to wait."""

    async def read(self) -> bytes | None:
        """Return the next message, None when the other side ended the stream in order. One read at a time."""

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        """Call `take` with each message as soon as it arrives, until it returns False or raises.

        Return True if `take` ended it, False if the other side ended the stream in order. Not beside `read`.
        """

    async def finish(self) -> None:
        """Announce the end of writing. The other side then ends the stream. Never raises."""

    async def aclose(self) -> None:
        """End the stream. Never raises, may be called again."""


class Transport(Protocol):
    """A connection to one broker, made on demand."""

    @property
    def url(self) -> str: ...

    @property
    def renews(self) -> bool:
        """Whether each stream sends its own token, read when it begins."""

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        """Call `Resolve` with an encoded `ResolveRequest`, and return an encoded `ResolveResponse`."""

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        """Call any unary method by its full path, for example the schema registry's."""

    async def publish(self) -> Stream:
        """Begin a stream of a producer. Raises `Unavailable` if the broker cannot be reached."""

    async def consume(self) -> Stream:
        """Begin a stream of a consumer or reader. Raises as `publish`."""

    async def aclose(self) -> None: ...


class Passing:
    """A transport that passes everything on to another one. A subclass changes single calls."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def url(self) -> str:
        return self._transport.url

    @property
    def renews(self) -> bool:
        return self._transport.renews

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        return await self._transport.resolve(request, timeout_s=timeout_s)

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        return await self._transport.call(path, request, timeout_s=timeout_s)

    async def publish(self) -> Stream:
        return await self._transport.publish()

    async def consume(self) -> Stream:
        return await self._transport.consume()

    async def aclose(self) -> None:
        await self._transport.aclose()


#: makes the transport to the broker at a URL
TransportFactory = Callable[[str], Transport]
#: waits before a retry: (concrete topic, failure, seconds of delay, seconds until the retry gives up)
Pause = Callable[[str, ClusterError, float, float], Coroutine[Any, Any, None]]


async def sleep(topic: str, failure: ClusterError, delay_s: float, left_s: float) -> None:
    """Sleep: the `Pause` that ends early for no reason."""
    await asyncio.sleep(delay_s)


async def end_in_order(stream: Stream, reader: asyncio.Task[None]) -> None:
    """Half-close a stream before it is cancelled, so that the broker does not count a broken connection.

    The wait is bounded, because the broker may not answer.
    """
    await stream.finish()
    await asyncio.wait([reader], timeout=END_S)


def copy_of(error: ClusterError, **details: object) -> ClusterError:
    """Return a copy of an error for another waiter: one instance raised in many tasks would mix their tracebacks."""
    facts = ClusterError.from_dict(error.to_dict() | {"details": error.details | details})
    # without a context: a user is shown one error, not its path
    facts.__cause__ = error.__cause__
    return facts


def gave_up(error: ClusterError, waited_s: float) -> ClusterError:
    """Return the error at the end of an outage, with the time spent."""
    facts = error.to_dict()
    tried = f"{error.message} (tried for {waited_s:.0f} s)" if waited_s >= 1 else error.message
    return ClusterError.from_dict(facts | {"message": tried})
