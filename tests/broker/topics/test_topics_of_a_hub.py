"""What the hub says to its topics and to the broker about the journal and the object store."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import ClusterError, Internal


def a_topic(hub: Hub, *, messages: int) -> Topic:
    state = LogState(7, next_offset=messages)
    topic = Topic(
        "/default/t", state, hub, options=None, limits=Limits.of(), epoch=Epoch(1), durability="stored"
    )
    hub.add(topic)
    return topic


def test_a_failed_journal_fails_whoever_waits_and_is_told_to_the_broker() -> None:
    hub, told, answered = Hub(), list[ClusterError](), list[ClusterError | None]()
    hub.on_failure = told.append
    journal: Any = SimpleNamespace(read_only=None)
    hub.journal = journal
    topic = a_topic(hub, messages=0)
    topic.position = 5
    topic.when_safe(5, answered.append)
    error = Internal("the disk is gone")
    hub.failed(error)
    assert (told, answered, hub.failure) == ([error], [error], error)


def test_a_topic_awaits_the_store_only_for_what_may_be_in_the_journal_alone() -> None:
    hub = Hub()
    hub.stores = lambda: True
    topic = a_topic(hub, messages=0)
    assert not topic.awaits_store, "no start without the store"
    hub.await_store(10)
    assert not topic.awaits_store, "it has no messages"
    topic = a_topic(hub, messages=3)
    hub.await_store(10)
    assert (topic.awaits_store, topic.commit) == (True, 0)
    hub.stored(10)
    assert (topic.awaits_store, topic.commit) == (False, 3)


def test_records_of_topics_whose_level_changes_stay_in_the_order_of_the_journal() -> None:
    hub, answered = Hub(), list[int]()
    hub.stores = lambda: True
    journal: Any = SimpleNamespace(read_only=None)
    hub.journal = journal
    moved, other = a_topic(hub, messages=0), a_topic(hub, messages=0)
    hub.set_stored(other, in_store=False)

    def safe(position: int, error: ClusterError | None) -> None:
        assert error is None
        answered.append(position)

    for position, topic in ((5, moved), (10, other), (15, moved)):
        topic.position = position
        hub.appended(position, topic)
        topic.when_safe(position, partial(safe, position))
    hub.set_stored(moved, in_store=False)
    for held, expected in ((4, []), (5, [5]), (9, [5]), (10, [5, 10]), (15, [5, 10, 15])):
        hub.durable(held)
        assert answered == expected
