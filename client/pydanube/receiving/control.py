"""A consumer's requests to the broker: one queue, one writer, and the answers that are awaited.

The queue is short by construction: acks and credit are gathered before they come here, and senders of other messages
wait until those are written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pydanube_core.errors import ClusterError
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.wire.transport import Stream, copy_of


class ControlQueue:
    """Control messages of one consumer's stream. It survives reconnects, its contents do not.

    Without a connection (`connected`) messages are dropped: they were for a session that has ended.
    """

    __slots__ = ("_last_request", "_outbox", "_requests", "_sleeper", "_then", "_written", "connected")

    def __init__(self) -> None:
        self._outbox: deque[bytes] = deque()
        self._sleeper: asyncio.Future[None] | None = None
        self._written: list[asyncio.Future[None]] = []
        self._requests: dict[int, asyncio.Future[None]] = {}
        self._then: dict[int, Callable[[], None]] = {}
        self._last_request = 0
        self.connected = False

    def post(self, message: pb.ConsumeRequest) -> None:
        """Queue a message if there is a connection. It leaves at the end of this loop tick."""
        if self.connected:
            self.queue(message)

    def queue(self, message: pb.ConsumeRequest) -> None:
        """Queue a message, also for a stream that is just being opened."""
        self._outbox.append(message.SerializeToString())
        self.nudge()

    async def written(self, *messages: pb.ConsumeRequest) -> None:
        """Queue messages, and wait until they are written or the stream is lost, which ends their session."""
        if not self.connected:
            return
        for message in messages:
            self.queue(message)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.append(written)
        await written

    def new_request(self) -> int:
        """Return a number for a message that the broker answers."""
        self._last_request += 1
        return self._last_request

    async def send_and_wait(self, request: int, message: pb.ConsumeRequest) -> None:
        """Queue a message that carries `request` and wait for its answer.

        Raises:
            ClusterError: the broker's refusal. `Unavailable` if the stream is lost before the answer.
        """
        answer = self._requests[request] = asyncio.get_running_loop().create_future()
        self.queue(message)
        try:
            await answer
        finally:
            self._requests.pop(request, None)

    def when_answered(self, request: int, then: Callable[[], None]) -> None:
        """Call `then` once the broker has answered the message with this number, with success or an error.

        If the stream is lost first, `then` is not called.
        """
        self._then[request] = then

    def answered(self, request: int, error: ClusterError | None) -> None:
        if (then := self._then.pop(request, None)) is not None:
            then()
        answer = self._requests.get(request)
        if answer is not None and not answer.done():
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    def lost(self, error: ClusterError) -> None:
        """Handle a lost stream: drop the queue, and fail everything that waits for an answer."""
        self._outbox.clear()
        self._then.clear()
        self._release()
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(copy_of(error))

    def nudge(self) -> None:
        """Wake the task that writes, since something was queued."""
        sleeper = self._sleeper
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    async def write_out(self, stream: Stream, over: Callable[[], bool]) -> None:
        """Write until `over` returns True or raises, or a write fails."""
        outbox = self._outbox
        while not over():
            if outbox:
                await stream.write(outbox.popleft())
                continue
            self._release()
            self._sleeper = asyncio.get_running_loop().create_future()
            try:
                await self._sleeper
            finally:
                self._sleeper = None

    def _release(self) -> None:
        for waiter in self._written:
            if not waiter.done():
                waiter.set_result(None)
        self._written.clear()
