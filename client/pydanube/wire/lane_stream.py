"""One stream of a lane, from opening to end, for publishing and consuming.

Two tasks share a stream: the lane writes, and a reader task reads. A failed write shows only that the stream is over.
The reader gets the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pydanube_core.errors import ClusterError, Internal, Retryable, Unauthenticated, Unavailable

from pydanube.facts import ClientEventKind
from pydanube.tasks import TaskOwner
from pydanube.wire.transport import Stream, Transport, end_in_order

_REASON_S: Final = 1.0  # maximum time that a failed write waits for the reader's reason


class LaneStream:
    """The current stream of a lane, and the url and error of the one before.

    Args:
        topic: for errors, as the application names it.
        concrete_topic: the log.
        locate: the transport to the broker that owns a log now.
        take: called with each message, returns whether to read on. An exception of it ends the stream.
        ended: called when the reader has ended. `error` is the reason, None if `take` ended it.
    """

    __slots__ = ("_concrete_topic", "_emit", "_ended", "_locate", "_take", "_topic", "error", "url")

    def __init__(
        self,
        topic: str,
        concrete_topic: str,
        *,
        locate: Callable[[str], Coroutine[Any, Any, Transport]],
        take: Callable[[bytes], bool],
        ended: Callable[[], None],
        emit: Callable[[ClientEventKind, str, int, str], None],
    ) -> None:
        self._topic = topic
        self._concrete_topic = concrete_topic
        self._locate = locate
        self._take = take
        self._ended = ended
        self._emit = emit
        self.url = ""  # of the broker the lane was connected to last
        self.error: ClusterError | None = None  # why the reader of the stream has ended

    async def run(
        self,
        begin: Callable[[Transport], Coroutine[Any, Any, Stream]],
        *,
        opening: Callable[[Stream], Coroutine[Any, Any, None]],
        writing: Callable[[Stream], Coroutine[Any, Any, None]],
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """Open a stream, and read from it until `writing` ends or fails. `over` is called at the end.

        Raises:
            ClusterError: why the stream is over.
        """
        transport = await self._locate(self._concrete_topic)
        if self.url and transport.url != self.url:
            self._emit(ClientEventKind.MOVED, transport.url, 0, "the topic has another owner")
        self.url = transport.url
        stream = await begin(transport)
        tasks = TaskOwner()
        try:
            await opening(stream)
            self._emit(ClientEventKind.CONNECTED, self.url, 0, "")
            self.error = None
            reader = tasks.start(self._read(stream), name=f"read {self._concrete_topic}")
            try:
                await writing(stream)
            except Retryable as error:
                await asyncio.wait([reader], timeout=_REASON_S)
                raise self.error or error from None
            except Unauthenticated as error:  # it was accepted before, so its token has expired
                if not transport.renews:
                    raise
                raise Unavailable(
                    f"the token of the stream of {self._concrete_topic} has ended. The next shows a new one",
                    topic=self._topic,
                ) from error
            except asyncio.CancelledError:
                await end_in_order(stream, reader)
                raise
        finally:
            over()
            await tasks.aclose()
            await stream.aclose()

    async def _read(self, stream: Stream) -> None:
        try:
            if not await stream.listen(self._take):
                raise Unavailable(f"the broker ended the stream of {self._concrete_topic}", topic=self._topic)
        except ClusterError as error:
            self.error = error
        except Exception as error:
            self.error = Internal(f"an answer of the broker could not be read: {error!r}", topic=self._topic)
        self._ended()
