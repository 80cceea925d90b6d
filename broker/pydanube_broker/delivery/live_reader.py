"""A plain reader of a non-reliable topic."""

from __future__ import annotations

from pydanube_broker.delivery.link import ConsumerLink
from pydanube_broker.delivery.non_reliable import LiveConsumer
from pydanube_broker.delivery.turns import Turns
from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.live_queue import all_of
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.topics.memory_topic import MemoryTopic


class LiveReader:
    """A plain reader of a non-reliable topic: it gets messages published from now on, if it keeps up."""

    def __init__(self, topic: MemoryTopic, link: ConsumerLink, *, session: int, turns: Turns) -> None:
        self.queued = False
        self._topic = topic
        self._turns = turns
        self._consumer = LiveConsumer(link, "", session, ConsumerTerms())
        topic.live_readers.add(self)
        topic.reader_attached()

    @property
    def dropped(self) -> int:
        return self._consumer.dropped

    def offer(self, batch: CachedBatch) -> None:
        """Queue a published batch. Count those of its messages for which there is no room."""
        self._consumer.dropped += batch.count - self._consumer.queue.offer(batch, all_of(batch))
        self._turns.wake(self)

    def grant(self, messages: int, size_bytes: int) -> None:
        self._consumer.credit_messages += messages
        self._consumer.credit_bytes += size_bytes
        self._turns.wake(self)

    def seek(self, position: int, session: int) -> None:
        for _ in self._consumer.queue.drain():
            pass
        self._consumer.session = session

    def wake(self) -> None:
        self._turns.wake(self)

    def step(self) -> bool:
        if self not in self._topic.live_readers or not self._consumer.ready:
            return False
        self._consumer.send(self._topic)
        return self._consumer.ready

    def close(self) -> None:
        if self in self._topic.live_readers:
            self._topic.live_readers.discard(self)
            self._topic.reader_detached()
