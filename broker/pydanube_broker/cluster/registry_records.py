"""The registry's records: topics, subscriptions, namespaces and tombstones as tables that follow the store.

`namespace_operations`, `subscription_operations`, `tombstones`, `whole_topics` and `topic_catalog` change them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from pydanube_core.errors import TopicNotFound
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Absent, Guard, MetadataStore, ModRevision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.deleting.restorable import Restorable
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import PartitionedRecord, SubscriptionRecord, TopicRecord
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.records import Quarantine, Records

WHOLE: Final = 2  # the metadata format in which a partitioned topic is one record


class RegistryRecords(Records):
    """See the module. `wall_ms` returns milliseconds since 1970."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        quarantine = Quarantine()
        self.index = RegistryIndex()
        self.restorable = Restorable(self.index, quarantine)
        self.wall_ms = wall_ms
        # Called with each key that changed in the tables
        self.on_key: Callable[[str], None] = lambda key: None
        self.finishing = False  # whether the step to format 2 finishes interrupted changes of format 1
        super().__init__(
            store, [*self.index.tables, *self.restorable.tables], changed=self._pass_on, quarantine=quarantine
        )

    def _pass_on(self, changed: Sequence[str]) -> None:
        """Pass on the keys that changed, and each partition that changed with the record of its whole topic."""
        for key in changed:
            self.on_key(key)
        parts, self.index.changed_parts = self.index.changed_parts, set()
        for part in parts:
            self.on_key(keys.topic_key(part))
        gone, self.restorable.gone_parts = self.restorable.gone_parts, set()
        for topic_id in gone:
            self.on_key(keys.topic_tombstone_key(topic_id))

    # -- guards --------------------------------------------------------------------------------------------------

    def topic_by_id(self, topic_id: TopicId) -> TopicRecord:
        """Return a topic. Raises `TopicNotFound`."""
        topic = self.index.topic_by_id(topic_id)
        if topic is None:
            raise TopicNotFound(
                f"the topic with id {topic_id} does not exist any more", topic_id=str(topic_id)
            )
        return topic

    def as_known(self, record: TopicRecord | PartitionedRecord | SubscriptionRecord) -> ModRevision:
        """Return the guard that the record is still at the revision which the index has."""
        match record:
            case TopicRecord() if record.is_named_by_parent:  # which may be newer than its record
                parent = self.index.partitioned(record.topic.base)
                return ModRevision(record.key, record.revision if parent is None else parent.revision)
            case TopicRecord():
                key = record.key
            case PartitionedRecord():
                key = keys.partitioned_key(record.topic)
            case SubscriptionRecord():
                key = keys.subscription_key(record.topic_id, record.name)
            case _:
                assert_never(record)
        return ModRevision(key, record.revision)

    def namespace_is(self, namespace: str) -> Guard:
        """Return the guard that the namespace is unchanged. Raises `NamespaceNotFound`."""
        return ModRevision(keys.namespace_key(namespace), self.index.namespace(namespace).revision)

    def format_1(self) -> list[Guard]:
        """Return the guard of each write of format 1: it fails once the metadata have format 2."""
        return [] if self.finishing else [Absent(keys.FORMAT)]

    def format_of(self, record: TopicRecord | PartitionedRecord) -> list[Guard]:
        """Return the guard of a write of a topic's record, if it is one of format 1."""
        if isinstance(record, PartitionedRecord):
            return [] if record.is_whole else self.format_1()
        return self.format_1() if record.partition is not None and not record.is_named_by_parent else []

    # -- looking for another broker's changes --------------------------------------------------------------------

    async def look_for(self, name: TopicName) -> None:
        """Bring the index up to date with the store about a topic's name. Raises `StoreUnavailable`."""
        await self.refresh(keys.topic_key(name), keys.partitioned_key(name))

    async def until_known(self, topic_id: TopicId) -> None:
        """Wait until the index has an assigned topic, or its deletion. Raises `StoreUnavailable`."""
        if self.index.topic_by_id(topic_id) is not None:
            return
        key = keys.assignment_key(topic_id)
        item = await self._store.get(key)
        if item is None:
            return  # it went with the topic, which was deleted for good: no record will come
        topic = Assignment.of(key, item.value).topic
        await self.look_for(topic)
        await self.look_for(topic.base)
