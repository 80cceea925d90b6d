"""Faults between a real client and a real broker: connections cut, answers delayed, lost or replaced.

`FaultyTransport` wraps the real transport and passes everything on, except for the faults set in `Faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pydanube_core.batch import read_producer_part
from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.frames import PUBLISH_BATCH_FIELD, read_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.wire.transport import Passing, Stream, Transport, copy_of


class Faults:
    """The faults to cause. A test sets them from any thread; the streams read them in their own loops."""

    def __init__(self) -> None:
        self.down = False
        self.refusals: deque[ClusterError] = deque()
        self.cuts = 0  # how many receipts are still to be lost with their connections
        self.held: list[tuple[FaultyStream, bytes]] | None = None
        self.streams: set[FaultyStream] = set()
        self._revoked: dict[int, ClusterError] = {}  # producer id → error of its session from now on

    def check_up(self) -> None:
        """Raise `Unavailable` while the cluster is stopped."""
        if self.down:
            raise Unavailable("the in-memory cluster is stopped")

    def drop_connections(self) -> None:
        """Cut every stream that is open now."""
        for stream in tuple(self.streams):
            stream.soon(partial(stream.end, Unavailable("the connection was cut by the test")))

    def revoke_producers(self, error: ClusterError) -> None:
        """Answer everything that open producer sessions send with this error."""
        self._revoked |= {stream.producer_id: error for stream in tuple(self.streams) if stream.producer_id}

    @contextmanager
    def answers_held(self) -> Iterator[None]:
        """Context in which receipts are held back until it ends."""
        self.held = []
        try:
            yield
        finally:
            held, self.held = self.held, None
            for stream, message in held:
                stream.soon(partial(stream.hand_over, message))

    # -- called by the streams -------------------------------------------------------------------------------------

    def refused(self, stream: FaultyStream, message: bytes) -> bytes | None:
        """Return the answer to a producer's message that is kept from the broker. None: pass it on."""
        batch = read_bytes_field(PUBLISH_BATCH_FIELD, message)
        if batch is None:
            revoked = self._revoked.get(pb.PublishRequest.FromString(message).open.producer_id)
            return None if revoked is None else _failure(revoked)
        error = self._revoked.get(stream.producer_id)
        if error is None and self.refusals:
            error = self.refusals.popleft()
        if error is None:
            return None
        part = read_producer_part(batch)
        return _failure(error, first_sequence=part.first_sequence, count=part.count)

    def swallowed(self, stream: FaultyStream, message: bytes) -> bool:
        """Return whether an answer to a producer is held back, for now or for good."""
        answer = pb.PublishResponse.FromString(message)
        if answer.HasField("opened"):
            stream.producer_id = answer.opened.producer_id
        if not answer.HasField("receipt"):
            return False
        if self.cuts:
            self.cuts -= 1
            stream.end(Unavailable("the connection was cut by the test"))
            return True
        if self.held is not None:
            self.held.append((stream, message))
            return True
        return False


class FaultyStream:
    """A stream whose messages are subject to `Faults`."""

    def __init__(self, faults: Faults, stream: Stream, *, publishes: bool) -> None:
        self.producer_id = 0
        self._faults = faults
        self._stream = stream
        self._publishes = publishes
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[bytes] = deque()
        self._take: Callable[[bytes], bool] | None = None
        # Of `read` and `listen`. True: `take` has ended it
        self._waiting: asyncio.Future[bool] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._over = False
        self._error: ClusterError | None = None
        faults.streams.add(self)

    # -- called by the client --------------------------------------------------------------------------------------

    async def write(self, message: bytes) -> None:
        self._check()
        if self._over:
            raise Unavailable("the stream is closed")
        if not self._answered(message):
            await self._stream.write(message)

    def write_at_once(self, message: bytes) -> bool:
        return not self._over and (self._answered(message) or self._stream.write_at_once(message))

    async def read(self) -> bytes | None:
        while not self._arrived:
            if self._over:
                self._check()
                return None
            await self._wait()
        return self._arrived.popleft()

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        while self._arrived:
            if not take(self._arrived.popleft()):
                return True
        while not self._over:
            self._take = take
            if await self._wait():
                return True
        self._check()
        return False

    async def finish(self) -> None:
        if not self._over:
            await self._stream.finish()

    async def aclose(self) -> None:
        self._faults.streams.discard(self)
        self._over = True
        await self._stream.aclose()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _check(self) -> None:
        if self._error is not None:
            raise copy_of(self._error)

    async def _wait(self) -> bool:
        """Wait until something has arrived, `take` has enough, or the stream is over."""
        self._reading = self._reading or self._loop.create_task(self._read())
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = self._take = None

    def _answered(self, message: bytes) -> bool:
        answer = self._faults.refused(self, message) if self._publishes else None
        if answer is not None:  # in a later turn, as from behind a network
            self._loop.call_soon(self.hand_over, answer)
        return answer is not None

    # -- messages of the broker ------------------------------------------------------------------------------------

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the stream's loop, immediately if that is the running one."""
        with contextlib.suppress(RuntimeError):  # no loop runs here
            if asyncio.get_running_loop() is self._loop:
                call()
                return
        with contextlib.suppress(RuntimeError):  # it has ended, and its streams with it
            self._loop.call_soon_threadsafe(call)

    def end(self, error: ClusterError | None) -> None:
        """End the stream. Messages that arrived before are still delivered."""
        if not self._over:
            self._over, self._error = True, error
            self._wake(done=False)

    def hand_over(self, message: bytes) -> None:
        """Give a message to the client."""
        if self._over:
            return
        if self._take is None:
            self._arrived.append(message)
            self._wake(done=False)
            return
        try:
            more = self._take(message)
        except Exception as error:
            self._take = None
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(error)
        else:
            if not more:
                self._take = None
                self._wake(done=True)

    def _wake(self, *, done: bool) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(done)

    async def _read(self) -> None:
        try:
            await self._stream.listen(self._came)
        except ClusterError as error:
            self.end(error)
        else:
            self.end(None)

    def _came(self, message: bytes) -> bool:
        if not (self._over or (self._publishes and self._faults.swallowed(self, message))):
            self.hand_over(message)
        return not self._over


class FaultyTransport(Passing):
    """A transport around the real one."""

    def __init__(self, transport: Transport, faults: Faults) -> None:
        super().__init__(transport)
        self._faults = faults

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        self._faults.check_up()
        return await super().resolve(request, timeout_s=timeout_s)

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        self._faults.check_up()
        return await super().call(path, request, timeout_s=timeout_s)

    async def publish(self) -> FaultyStream:
        self._faults.check_up()
        return FaultyStream(self._faults, await self._transport.publish(), publishes=True)

    async def consume(self) -> FaultyStream:
        self._faults.check_up()
        return FaultyStream(self._faults, await self._transport.consume(), publishes=False)


def _failure(error: ClusterError, **batch: int) -> bytes:
    failure = pb.Failure(error=error.to_json().encode(), **batch)
    return pb.PublishResponse(failure=failure).SerializeToString()
