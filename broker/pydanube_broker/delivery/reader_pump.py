"""Deliver to a plain reader: no subscription, no acknowledgements, no trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pydanube_core.errors import ClusterError, Internal

from pydanube_broker.delivery.frame_builder import FrameBuilder
from pydanube_broker.delivery.turns import Turns
from pydanube_broker.journal import CachedBatch
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

FRAME_BYTES: Final = 256 * 1024  # stored bytes of one frame, unless a single batch is larger


class ReaderLink(Protocol):
    """The connection to one plain reader."""

    @property
    def writable(self) -> bool: ...

    def deliver(self, frame: FrameBuilder) -> None:
        """Send a frame of batches to the reader's client."""


class ReaderPump:
    """Sends the log from `position` to `stop`, as far as credit and the connection allow.

    Args:
        stop: exclusive. None for a reader that follows the log for ever.
        ended: called once when `stop` is reached.
        failed: called once when the log cannot be read.
    """

    def __init__(
        self,
        topic: Topic,
        link: ReaderLink,
        *,
        position: int,
        stop: int | None,
        session: int,
        turns: Turns,
        worker_threads: WorkerThreads,
        ended: Callable[[int], None],
        failed: Callable[[ClusterError], None],
    ) -> None:
        self.queued = False
        self.position = position
        self._topic = topic
        self._link = link
        self._stop = stop
        self._session = session
        self._turns = turns
        self._worker_threads = worker_threads
        self._ended = ended
        self._failed = failed
        self.credit_messages = 0
        self.credit_bytes = 0
        self.delivered = 0
        self._reading = False
        self._closed = False
        topic.listeners.add(self)
        topic.reader_attached()

    def grew(self) -> None:
        if self.credit_messages > 0:
            self._turns.wake(self)

    def wake(self) -> None:
        self._turns.wake(self)

    def grant(self, messages: int, size_bytes: int) -> None:
        self.credit_messages += messages
        self.credit_bytes += size_bytes
        self._turns.wake(self)

    def seek(self, position: int, session: int) -> None:
        self.position, self._session = position, session
        self._turns.wake(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._topic.listeners.discard(self)
            self._topic.reader_detached()

    def step(self) -> bool:
        if self._closed or self._reading or not self._link.writable:
            return False
        topic, stop = self._topic, self._stop
        if topic.closed is not None:
            self._give_up(topic.closed)
            return False
        self.position = max(self.position, topic.start_offset)
        if stop is not None and self.position >= stop:
            self.close()
            self._ended(self.position)
            return False
        if self.credit_messages <= 0 or self.credit_bytes <= 0 or self.position >= topic.commit:
            return False
        end = topic.commit if stop is None else min(stop, topic.commit)
        try:
            batches = topic.read(self.position, end, FRAME_BYTES)
        except ClusterError as error:
            self._give_up(error)
            return False
        if batches is None:
            self._read_cold(end)
            return False
        self._send(batches, end)
        return True

    def _read_cold(self, end: int) -> None:
        self._reading = True
        session = self._session

        def done(result: Sequence[CachedBatch] | BaseException) -> None:
            self._reading = False
            if self._closed:
                return
            if isinstance(result, ClusterError):
                self._give_up(result)
            elif isinstance(result, BaseException):
                self._give_up(Internal(f"the log of {self._topic.name} could not be read: {result}"))
            else:
                # An empty result means that the planned messages have moved: read again
                if session == self._session and result:
                    self._send(result, end)
                self._turns.wake(self)

        self._topic.fill(self.position, end, FRAME_BYTES, self._worker_threads, done)

    def _send(self, batches: Sequence[CachedBatch], end: int) -> None:
        frame = FrameBuilder(self._session)
        for batch in batches:
            if self.credit_messages <= 0 or (self.credit_bytes <= 0 and frame.messages):
                break
            taken = frame.add(
                batch, max(self.position, batch.base), min(end, batch.end), self.credit_messages, 1
            )
            self.credit_messages -= taken.messages
            self.credit_bytes -= taken.stored_bytes
            self.position = taken.end
            if taken.end < batch.end:
                break
        else:
            if not batches:
                self.position = end  # no message is left before `end`
        if frame.messages:
            self.delivered += frame.messages
            self._topic.sent(frame.messages, frame.stored_bytes)
            self._link.deliver(frame)

    def _give_up(self, error: ClusterError) -> None:
        self.close()
        self._failed(error)
