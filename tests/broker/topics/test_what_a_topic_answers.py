"""What a topic refuses, commits and returns, on a journal in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.batch_columns import DecodedBatch
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.reading import read_once
from pydanube_broker.topics.stored_messages import append_durably, messages_between
from pydanube_broker.topics.topic import Topic
from pydanube_core.batch import encode_batch, read_producer_part
from pydanube_core.errors import ClusterError, FailedOver

pytestmark = pytest.mark.anyio
NAME = "/default/t"


class MemoryJournal:
    """A journal that keeps batches in a list, and has each record on its disk in the next turn of the loop."""

    read_only = None

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.records = 0
        self.batches: list[CachedBatch] = []
        self.cache = SimpleNamespace(read=self.read)

    def check_room(self, size: int) -> None: ...

    def append(self, *record: Any) -> int:
        self.records += 1
        asyncio.get_running_loop().call_soon(self.hub.durable, self.records)
        return self.records

    def append_batch(
        self, topic_id: int, head: bytes, data: bytes, *, base: int, end: int, count: int, time_ms: int
    ) -> int:
        self.batches.append(CachedBatch(base, end, count, time_ms, len(head) + len(data), (head, data)))
        return self.append()

    def read(self, topic_id: int, start: int, end: int, max_bytes: int) -> list[CachedBatch]:
        return [each for each in self.batches if each.base < end and start < each.end]


def a_topic(durability: str = "fsynced") -> tuple[Topic, MemoryJournal]:
    hub = Hub()
    journal: Any = MemoryJournal(hub)
    hub.journal = journal
    topic = Topic(
        NAME, LogState(7), hub, options=None, limits=Limits.of(), epoch=Epoch(1), durability=durability
    )
    hub.add(topic)
    return topic, journal


def publish(topic: Topic, count: int) -> None:
    data = encode_batch([b"x"] * count)
    topic.append(data, read_producer_part(data))


async def test_a_topic_that_another_cluster_writes_stores_no_message_and_no_session_here() -> None:
    topic, journal = a_topic()
    topic.failed_over_to = "paris"
    with pytest.raises(FailedOver, match="paris"):
        topic.check_open()
    with pytest.raises(FailedOver, match="paris"):
        publish(topic, 1)
    with pytest.raises(FailedOver, match="paris"):
        await topic.open_producer("p")
    assert journal.records == 0
    topic.failed_over_to = None
    publish(topic, 1)
    assert topic.state.next_offset == 1


async def test_messages_of_the_broker_carry_their_producers_name_and_no_id() -> None:
    topic, journal = a_topic()
    assert await append_durably(topic, [b"a", b"b"], producer="administration") == 0
    threads: Any = None
    found = await messages_between(
        topic, start=0, end=2, max_messages=9, max_bytes=99, worker_threads=threads
    )
    assert [(each.payload, each.producer) for each in found] == [
        (b"a", "administration"),
        (b"b", "administration"),
    ]
    (batch,) = journal.batches
    assert [DecodedBatch(batch).producer(i) for i in range(2)] == [(0, "administration")] * 2


async def test_only_a_lone_uncommitted_message_is_read_ahead() -> None:
    topic, journal = a_topic()
    assert topic.read_ahead() is None
    publish(topic, 1)
    assert topic.read_ahead() == journal.batches[0]
    publish(topic, 1)
    assert topic.read_ahead() is None, "there are two"


@pytest.mark.parametrize("stored", [[1, 2], []])
async def test_a_reading_from_the_disk_returns_its_batches_and_none_if_the_topic_changed(
    stored: list[int],
) -> None:
    def fill(
        start: int, end: int, size: int, threads: Any, done: Callable[[Sequence[Any] | BaseException], None]
    ) -> None:
        done(stored)
        done(RuntimeError("the first outcome counts"))

    topic: Any = SimpleNamespace(read=lambda *_: None, fill=fill)
    threads: Any = None
    found: Sequence[Any] | None = await read_once(topic, 0, 9, 1, threads)
    assert found == (stored or None)


async def test_a_reader_that_comes_or_goes_is_a_change_of_the_topics_row() -> None:
    topic, _ = a_topic()
    topic.reader_attached()
    mark = topic.changes.mark()
    topic.reader_detached()
    assert topic.changes.since(mark) == [NAME]


@pytest.mark.parametrize("in_store", [True, False])
async def test_records_under_way_count_by_the_level_that_was_set_since(in_store: bool) -> None:
    topic, journal = a_topic(durability="fsynced" if in_store else "stored")
    hub, answered = journal.hub, list[ClusterError | None]()
    hub.stores = lambda: True
    topic.position = 5
    hub.appended(5, topic)
    topic.when_safe(5, answered.append)
    hub.set_stored(topic, in_store=in_store)
    assert topic.durability == ("stored" if in_store else "fsynced")
    other, own = (hub.durable, hub.stored) if in_store else (hub.stored, hub.durable)
    other(5)
    assert answered == []
    own(5)
    assert answered == [None]
