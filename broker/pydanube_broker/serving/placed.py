"""Where topics are, of whichever broker: what clients are told before they are at a topic's owner.

A broker alone knows what it serves. Of several each knows all topics by the catalog's watch, moments after they were made;
a name that is unknown is read from the metadata store once, by a few at a time, before it counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from pydanube_core.names import TopicName

from pydanube_broker.cluster.keys import topic_key
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.serving.registry import Registry

_ASKING: Final = 8  # reads of unknown names at once
_PATIENCE_S: Final = 1.0  # for a topic on its way: then whoever asks tries it again
_MOST_ASKING: Final = 256  # that wait for one; a flood of unknown names is answered by what is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A concrete topic. `broker_url` is empty while nobody knows where its owner is."""

    topic: TopicName
    topic_id: int
    dispatch_strategy: str
    broker_url: str
    epoch: int
    max_message_bytes: int

    @property
    def name(self) -> str:
        """The full name, `/namespace/name`."""
        return str(self.topic)


class Placement:
    """See the module. Single user: the loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._asking = anyio.CapacityLimiter(_ASKING)

    def names(self) -> Iterable[TopicName]:
        """Every topic of the cluster by the name its users know; the partitions of one are one."""
        if not self._registry.ownership.several:
            return self._registry.names()
        index = self._registry.catalog.index
        plain = {record.topic for record in index.topics() if record.parent is None}
        return plain | {record.topic for record in index.all_partitioned() if index.partitions(record.topic)}

    def parts(self, name: TopicName) -> tuple[bool, Sequence[Placed]]:
        """Whether a topic is partitioned, and its concrete topics by index; none of an unknown one.

        Partitions that are being added are left out until all are there: whoever hashed keys to some of them only would
        part what belongs together.
        """
        index = self._registry.catalog.index
        if not self._registry.ownership.several:
            partitioned, topics = self._registry.parts(name)
            records = [topic.options for topic in topics]
        else:
            record = index.find_topic(name)
            partitioned, records = record is None, index.partitions(name) if record is None else [record]
        if (parent := index.partitioned(name)) is not None:
            records = [each for each in records if (each.partition or 0) < parent.spec.partitions]
        return partitioned, [self._placed(record) for record in records]

    def _placed(self, record: TopicRecord) -> Placed:
        registry = self._registry
        served, place = registry.find(record.topic), registry.ownership.office.place(record.topic_id)
        owner = registry.ownership.owner(record.topic_id)
        if served is not None:
            epoch, largest = served.state.epoch, served.max_message_bytes
        else:
            epoch = 0 if place is None else place.epoch
            largest = registry.policies.limits_of(record).max_message_size
        return Placed(
            topic=record.topic,
            topic_id=record.topic_id,
            dispatch_strategy=record.dispatch_strategy.value,
            broker_url="" if owner is None else owner.broker_url,
            epoch=epoch,
            max_message_bytes=largest,
        )

    async def reach(self, name: TopicName) -> None:
        """See that what other brokers have just made or assigned is known here, and served if it is this broker's.

        A topic that is being handed over is waited for, for a moment. Raises `StoreUnavailable`.
        """
        registry = self._registry
        ownership, index = registry.ownership, registry.catalog.index
        if not ownership.several or registry.find(name) is not None:
            return
        if index.find_topic(name) is None and index.partitioned(name) is None:
            if self._asking.statistics().tasks_waiting >= _MOST_ASKING:
                return
            async with self._asking:
                await registry.catalog.look_for(name)
        record = index.find_topic(name)
        records = [record] if record is not None else index.partitions(name)
        ours = [
            each
            for each in records
            if registry.find(each.topic) is None
            and (ownership.office.place(each.topic_id) is None or ownership.is_mine(each.topic_id))
            and topic_key(each.topic) not in registry.catalog.aside.found
        ]
        if ours:
            with anyio.CancelScope(shield=True):
                await ownership.acquire(ours)
        with anyio.move_on_after(_PATIENCE_S):
            for each in records:
                await ownership.until_placed(each.topic_id)
