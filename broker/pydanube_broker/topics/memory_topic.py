"""One concrete non-reliable topic: nothing is stored, a batch goes straight to the connected consumers.

It has the interface of `Topic`, so that publish and consume streams are the same for both. A receipt has durability
`memory`: the batch was handed to the queues, and nothing more. Offsets begin at 0 with each start of the broker.
Producers' ids do not, so that no two sessions have one id. A producer that opened its session before a restart of the
broker, or at the former broker of the topic, continues with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from pydanube_core.batch import ProducerPart, broker_part
from pydanube_core.errors import ClusterError
from pydanube_core.positions import Position

from pydanube_broker.cluster.ids import Epoch, numbers_of
from pydanube_broker.journal import CachedBatch, RecordKind
from pydanube_broker.outcome import OutcomeCallback
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.producers import Appended, ProducerSession
from pydanube_broker.topics.topic import Topic, TopicHub, now_ms
from pydanube_broker.wall_clock import append_time


class LiveSink(Protocol):
    """A plain reader of a non-reliable topic."""

    def offer(self, batch: CachedBatch) -> None:
        """Take a batch, or the part with room for it. The reader counts dropped messages."""


class MemoryTopic(Topic):
    """See the module. Single user: the loop."""

    stores: ClassVar[bool] = False

    __slots__ = ("live_readers",)

    def __init__(
        self, name: str, topic_id: int, hub: TopicHub, *, options: Any, limits: Limits, epoch: Epoch
    ) -> None:
        state = LogState(topic_id)  # a state of its own: the hub does not keep it, so no head has it
        state.producers.next_id = next(numbers_of(epoch))
        super().__init__(name, state, hub, options=options, limits=limits, epoch=epoch, durability="memory")
        self.live_readers: set[LiveSink] = set()

    # -- write -----------------------------------------------------------------------------------------------

    def append(
        self, data: bytes | memoryview, part: ProducerPart, *, limited: bool = True, system: bool = False
    ) -> tuple[Appended, bool]:
        """Pass a validated batch on, or return the answer that a retry got before. As `Topic.append`."""
        if (known := self.stored(part, system=system)) is not None:
            return known, True
        state = self.state
        if limited:
            self.gate.take(part.count)
        base, end = state.next_offset, state.next_offset + part.count
        time_ms = append_time(now_ms(), state.append_time_ms)
        head = broker_part(
            base_offset=base, last_offset=end - 1, epoch=self.assigned_epoch, append_time_ms=time_ms
        )
        stored_bytes = len(head) + len(data)
        state.appended(base, end, part.count, time_ms, stored_bytes)
        state.producers.appended(
            part.producer_id, part.producer_epoch, part.first_sequence, part.count, base, time_ms
        )
        self.commit = state.start_offset = end
        self.messages_in += part.count
        self.bytes_in += stored_bytes
        self.changes.note(self.name)
        batch = CachedBatch(base, end, part.count, time_ms, stored_bytes, (head, data))
        for pump in self.subscriptions.values():
            pump.offer(batch)
        for reader in tuple(self.live_readers):
            reader.offer(batch)
        return Appended(part.first_sequence, part.count, base, time_ms), False

    def resume_producer(self, producer_id: int, epoch: int, token: int) -> ProducerSession:
        """Accept the session of another start or broker: nothing is stored, so nothing can be stored twice."""
        return self.state.producers.resume_foreign(producer_id, epoch, token)

    def when_room(self, done: Callable[[], None]) -> None:
        """Call `done` immediately: there is always room."""
        done()

    def when_committed(self, end_offset: int, done: OutcomeCallback) -> None:
        """Call `done` immediately: messages appended were passed on already."""
        done(None)

    def when_safe(self, position: int, done: OutcomeCallback) -> None:
        """Call `done` immediately: nothing more was promised."""
        done(None)

    def append_record(self, kind: RecordKind, body: bytes) -> int:
        """Do nothing: nothing of this topic is stored."""
        return 0

    def check_writable(self) -> None:
        """Do nothing: nothing prevents a write."""

    def trim(self, start_offset: int) -> None:
        """Do nothing: nothing is kept."""

    def recovered(self) -> None:
        """Do nothing: nothing is kept, so nothing was recovered."""

    def fail(self, error: ClusterError) -> None:
        """Do nothing: no publish of a non-reliable topic waits for storage."""

    # -- read ------------------------------------------------------------------------------------------------

    def read(self, offset: int, end: int, max_bytes: int) -> list[CachedBatch] | None:
        """Return no batches: nothing is kept."""
        return []

    def plan_cold_read(self, offset: int, end: int, max_bytes: int) -> Callable[[], Sequence[CachedBatch]]:
        """Return work that reads nothing: nothing is kept."""
        return lambda: ()

    def resolve(self, position: Position) -> int:
        """Return the present end: every position means now."""
        return self.commit
