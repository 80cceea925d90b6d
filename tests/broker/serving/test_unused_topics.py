"""A topic that is closed for its deletion opens again when the deletion does not come about, and its owner leaves it open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.serving.data_changes import MOST_WAITING, DataChanges
from pydanube_broker.serving.unused_holds import UnusedHolds
from pydanube_broker.serving.unused_topics import UnusedTopics
from pydanube_core.errors import Conflict
from pydanube_core.facts import DataChange, DataChangesTaken
from pydanube_core.names import TopicName

pytestmark = pytest.mark.anyio

NAME = TopicName.parse("t")
PARTITIONED = TopicName.parse("p")


def unused_topic(name: TopicName = NAME) -> Any:
    settings = SimpleNamespace(options={"unused_ttl_s": 1e-9})
    return SimpleNamespace(
        name=str(name), closed=None, state=SimpleNamespace(start_offset=0, next_offset=0), subscriptions={},
        readers=0, producers_connected=0, messages_in=0, messages_out=0,
        options=SimpleNamespace(topic=name, settings=settings),
    )  # fmt: skip


class Bench:
    """Holds, and the topics whose records were rewritten, so that a late deletion fails."""

    def __init__(self) -> None:
        self.touched: list[TopicName] = []
        catalog: Any = SimpleNamespace(deciding_revision=lambda name: 1, touch=self._touch)
        ownership: Any = SimpleNamespace(me=SimpleNamespace(broker_id="1"), incarnation=1)
        self.holds = UnusedHolds(catalog, ownership)

    async def _touch(self, name: TopicName) -> None:
        self.touched.append(name)


async def test_a_released_topic_is_open_and_its_late_deletion_fails() -> None:
    bench, topic = Bench(), unused_topic()
    await bench.holds.release(NAME)
    assert bench.touched == [], "it was not held"
    bench.holds.hold_topic(NAME, [topic])
    assert isinstance(topic.closed, Conflict)
    await bench.holds.release(NAME)
    assert (topic.closed, bench.touched) == (None, [NAME])


@pytest.mark.parametrize("held", [PARTITIONED, PARTITIONED.part(1)], ids=str)
async def test_a_partition_that_leaves_this_broker_is_held_neither_alone_nor_with_its_siblings(
    held: TopicName,
) -> None:
    bench, part = Bench(), unused_topic(PARTITIONED.part(1))
    bench.holds.hold_topic(held, [part])
    await bench.holds.let_go(PARTITIONED.part(1))
    assert (part.closed, bench.touched) == (None, [held])


async def test_a_topic_whose_deletion_for_disuse_is_refused_is_open_again() -> None:
    bench, topic, changes = Bench(), unused_topic(), DataChanges()

    async def refused(name: TopicName, *, held: Any) -> None:
        assert topic.closed is not None
        raise Conflict("a producer came")

    registry: Any = SimpleNamespace(
        topics=[topic], unused=bench.holds, delete=refused, known_parts=lambda name: [topic],
        catalog=SimpleNamespace(index=SimpleNamespace(partitions=lambda name: [topic])),
    )  # fmt: skip
    unused = UnusedTopics(registry, changes)
    await unused.delete()  # the first look, from which the time counts
    assert bench.touched == []
    await unused.delete()
    assert (topic.closed, bench.touched) == (None, [NAME])
    assert changes.take() == DataChangesTaken(changes=(), left_out=0)


def test_changes_beyond_the_most_are_counted_each_once() -> None:
    changes = DataChanges()
    for number in range(MOST_WAITING + 2):
        changes.note(
            DataChange(
                operation="topics.create", at_ms=1, principal=None, client="", address="", topic=str(number)
            )
        )
    assert changes.take().left_out == 2
    assert changes.take() == DataChangesTaken(changes=(), left_out=0)
