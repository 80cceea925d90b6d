"""A broker's view of the registry, in memory, as tables of the metadata store.

Subscriptions of a deleted topic stay until their keys are deleted, because the topic may be restored. Look-ups are by
exact name. Partitions are found by their parsed suffix, never by a text prefix, so `/default/orders` and
`/default/orders-eu` are not confused.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydanube_core.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    InvalidName,
    NamespaceNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.list_keys import LagKey
from pydanube_core.names import MAX_PARTITIONS, SYSTEM_NAMESPACE, TopicName
from pydanube_core.spelling import TopicNames
from pydanube_storage.metadata import KeyRange, KeyValue

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    FormatRecord,
    NamespaceRecord,
    PartitionedRecord,
    Stage,
    SubscriptionRecord,
    TopicRecord,
    TopicSettings,
)
from pydanube_broker.records import Table

_FORMAT_1: Final = FormatRecord(metadata_format=1)
_NOTHING: Final[Mapping[str, SubscriptionRecord]] = {}


class RegistryIndex:
    """Namespaces, topics, partitioned topics and subscriptions by name and by id.

    `Records` fills `tables`. Derived structures are updated with each change.
    """

    def __init__(self) -> None:
        # Records of whole topics are read before those of partitions, which may be left of a conversion.
        self.format_table = Table(KeyRange.only(keys.FORMAT), _format_of, changed=self._counted)
        self.namespace_table = Table(keys.NAMESPACES, NamespaceRecord.of, changed=self._counted)
        self.partitioned_table = Table(keys.PARTITIONED, PartitionedRecord.of, changed=self._put_partitioned)
        self.subscription_table = Table(
            keys.SUBSCRIPTIONS, SubscriptionRecord.of, changed=self._put_subscription
        )
        self.topic_table = Table(keys.TOPICS, TopicRecord.of, changed=self._put_topic)
        self.tables: Sequence[Table[Any]] = (
            self.format_table,
            self.namespace_table,
            self.partitioned_table,
            self.subscription_table,
            self.topic_table,
        )
        self.changes = 0  # number of applied changes
        self.dropped: set[TopicId] = set()  # partitions that a whole topic's record named, for the sweep
        self.changed_parts: set[TopicName] = set()  # changed by records of whole topics, until passed on
        self.spelled = TopicNames()  # topic names for users: a partitioned topic's own, not its partitions'
        self._topics: dict[TopicName, TopicRecord] = {}
        self._names: dict[TopicId, TopicName] = {}
        self._partitioned: dict[TopicName, PartitionedRecord] = {}
        self._parts: dict[TopicName, dict[int, TopicName]] = {}
        self._subscriptions: dict[TopicId, dict[str, SubscriptionRecord]] = {}
        # Subscriptions of existing topics in list order, so that a page is found without reading the others
        self._lag: list[tuple[tuple[str, str, int], LagKey]] = []

    @property
    def format(self) -> FormatRecord:
        """The metadata's format."""
        return self.format_table.get(keys.FORMAT) or _FORMAT_1

    # -- filling -------------------------------------------------------------------------------------------------

    def _counted(self, key: str, before: object, after: object) -> None:
        self.changes += 1

    def _put_topic(self, key: str, before: TopicRecord | None, after: TopicRecord | None) -> None:
        self.changes += 1
        if after is not None:
            if after.partition is None or not self.is_left_over(after.topic):
                self._add(after)
        elif before is not None:
            topic = self._topics.get(before.topic)
            if topic is not None and topic.key == key:
                self._drop(topic.topic)

    def _put_subscription(
        self, key: str, before: SubscriptionRecord | None, after: SubscriptionRecord | None
    ) -> None:
        self.changes += 1
        topic_id, name = keys.subscription_of_key(key)
        beside = self._subscriptions.setdefault(topic_id, {})
        owner = self.topic_by_id(topic_id)
        if after is None:
            beside.pop(name, None)
            if owner is not None:
                self._unlist(owner, (name,))
            if not beside:
                del self._subscriptions[topic_id]
            return
        if owner is not None and name not in beside:
            self._list(owner, name)
        beside[name] = after

    def _put_partitioned(
        self, key: str, before: PartitionedRecord | None, after: PartitionedRecord | None
    ) -> None:
        self.changes += 1
        if after is not None:
            self._partitioned[after.topic] = after
            if after.is_whole:
                self._set_parts(after)
        elif before is not None:
            del self._partitioned[before.topic]
            if before.is_whole:
                for part in list(self._parts.get(before.topic, {}).values()):
                    self._drop_named(part)

    def is_left_over(self, part: TopicName) -> bool:
        """Return whether a partition's record is left of a conversion of its topic to format 2. Then it is ignored."""
        parent = self._partitioned.get(part.base)
        return parent.is_whole if parent is not None else self.format.metadata_format > 1

    def _add(self, topic: TopicRecord) -> None:
        former = self._topics.get(topic.topic)
        is_new = former is None or former.topic_id != topic.topic_id
        if former is not None and is_new:  # deleted and created again between two reads
            self._names.pop(former.topic_id, None)
            self._unlist(former, self._subscriptions.get(former.topic_id, _NOTHING))
        if former is None and not topic.partition:  # the first partition represents its topic
            self.spelled.add(str(topic.topic.base))
        self._topics[topic.topic] = topic
        self._names[topic.topic_id] = topic.topic
        if is_new:
            for name in self._subscriptions.get(topic.topic_id, _NOTHING):
                self._list(topic, name)
        if topic.partition is not None:
            self._parts.setdefault(topic.topic.base, {})[topic.partition] = topic.topic

    def _drop(self, name: TopicName) -> None:
        topic = self._topics.pop(name)
        self._names.pop(topic.topic_id, None)
        self._unlist(topic, self._subscriptions.get(topic.topic_id, _NOTHING))
        if not topic.partition:
            self.spelled.discard(str(topic.topic.base))
        if topic.partition is not None:
            parts = self._parts[topic.topic.base]
            del parts[topic.partition]
            if not parts:
                del self._parts[topic.topic.base]

    def _set_parts(self, parent: PartitionedRecord) -> None:
        """Replace the partitions of a topic by those that its record names. Unchanged ones keep their records."""
        known = self._parts.get(parent.topic, {})
        for index in [each for each in known if each >= len(parent.spec.ids or ())]:
            self._drop_named(known[index])
        for index, topic_id in enumerate(parent.spec.ids or ()):
            name = known.get(index)
            former = None if name is None else self._topics[name]
            if topic_id is None:
                if former is not None:
                    self._drop_named(former.topic)
            elif (
                former is None
                or former.topic_id != topic_id
                or former.key in keys.TOPICS
                or former.settings != parent.spec.settings
            ):
                if former is not None and former.topic_id != topic_id:
                    self._drop_named(former.topic)
                part = parent.part(index, topic_id)
                self._add(part)
                self.changed_parts.add(part.topic)

    def _drop_named(self, name: TopicName) -> None:
        self.dropped.add(self._topics[name].topic_id)
        self.changed_parts.add(name)
        self._drop(name)

    def _list(self, topic: TopicRecord, name: str) -> None:
        key = _lag_key(topic, name)
        insort(self._lag, (key.place, key))

    def _unlist(self, topic: TopicRecord, names: Iterable[str]) -> None:
        for name in names:
            key = _lag_key(topic, name)
            at = bisect_left(self._lag, (key.place, key))
            if self._lag[at : at + 1] == [(key.place, key)]:
                del self._lag[at]

    # -- looking up ----------------------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> TopicRecord:
        """Return a topic that has a log. Raises `TopicNotFound`, with a hint for a partitioned parent."""
        found = self._topics.get(name)
        if found is None:
            hint = f". Use its partitions: {name.part(0)}" if name in self._partitioned else ""
            raise TopicNotFound(f"topic {name} does not exist{hint}", topic=str(name))
        return found

    def find_topic(self, name: TopicName) -> TopicRecord | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicRecord | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def topics(self) -> list[TopicRecord]:
        """Return all topics with a log, by name. O(topics)."""
        return [self._topics[name] for name in sorted(self._topics)]

    def count_topics(self, namespace: str) -> int:
        """Return the number of topics with a log in a namespace. O(topics)."""
        return sum(name.namespace == namespace for name in self._topics)

    def count_of_users(self) -> int:
        """Return the number of topics with a log, without those of the system. O(topics)."""
        return sum(name.namespace != SYSTEM_NAMESPACE for name in self._topics)

    def count_subscriptions(self, namespace: str) -> int:
        """Return the number of subscriptions in a namespace, counted for each partition. O(topics)."""
        return sum(
            len(self._subscriptions.get(topic.topic_id, _NOTHING))
            for name, topic in self._topics.items()
            if name.namespace == namespace
        )

    def partitioned(self, name: TopicName) -> PartitionedRecord | None:
        return self._partitioned.get(name)

    def whole(self, name: TopicName) -> TopicRecord | PartitionedRecord | None:
        """Return the record of a topic. For a partitioned topic, this is the record of all its partitions."""
        return self._partitioned.get(name) or self._topics.get(name)

    def all_partitioned(self) -> list[PartitionedRecord]:
        """Return all partitioned parents, by name."""
        return [self._partitioned[name] for name in sorted(self._partitioned)]

    def partitions(self, base: TopicName) -> list[TopicRecord]:
        """Return the existing partitions of a topic, by index. Empty for a plain or unknown topic."""
        parts = self._parts.get(base, {})
        return [self._topics[parts[index]] for index in sorted(parts)]

    def logs(self, name: TopicName) -> list[TopicRecord]:
        """Return the topic itself if it has a log, else its partitions by index. Empty for an unknown topic."""
        record = self._topics.get(name)
        return self.partitions(name) if record is None else [record]

    def subscriptions_of_parts(self, base: TopicName) -> dict[str, SubscriptionRecord]:
        """Return the subscriptions that any partition of a topic has, by name. O(partitions)."""
        found: dict[str, SubscriptionRecord] = {}
        for name in self._parts.get(base, {}).values():
            found |= self._subscriptions.get(self._topics[name].topic_id, _NOTHING)
        return found

    def subscribed_ids(self) -> set[TopicId]:
        """Return the ids of topics with subscriptions, also of those that do not exist. O(topics)."""
        return set(self._subscriptions)

    def namespace(self, name: str) -> NamespaceRecord:
        """Return the record of a namespace. Raises `NamespaceNotFound`."""
        found = self.find_namespace(name)
        if found is None:
            raise NamespaceNotFound(
                f"namespace {name} does not exist. Create it: danube namespaces create {name}",
                field="namespace",
                value=name,
            )
        return found

    def find_namespace(self, name: str) -> NamespaceRecord | None:
        return self.namespace_table.get(keys.namespace_key(name))

    def namespaces(self) -> list[NamespaceRecord]:
        return sorted(self.namespace_table, key=lambda namespace: namespace.name)

    def is_empty(self, namespace: str) -> bool:
        """Return whether the namespace has no topic and no partitioned parent."""
        names: Iterable[TopicName] = (*self._topics, *self._partitioned)
        return all(name.namespace != namespace for name in names)

    def subscriptions(self, topic_id: TopicId) -> list[SubscriptionRecord]:
        """Return the topic's subscriptions, by name."""
        found = self._subscriptions.get(topic_id, _NOTHING)
        return [found[name] for name in sorted(found)]

    def lag_keys(self, topic: TopicName | None = None) -> list[LagKey]:
        """Return all subscriptions of all logs, or of a topic's logs, in the order of `LagKey.place`."""
        if topic is None:
            return [key for _, key in self._lag]
        record = self._topics.get(topic)
        logs = self.partitions(topic) if record is None else [record]
        found = [_lag_key(log, name) for log in logs for name in self._subscriptions.get(log.topic_id, ())]
        return sorted(found, key=lambda key: key.place)

    def find_subscription(self, topic_id: TopicId, name: str) -> SubscriptionRecord | None:
        return self._subscriptions.get(topic_id, _NOTHING).get(name)

    def subscription(self, topic: TopicRecord, name: str) -> SubscriptionRecord:
        """Return the record of a topic's subscription. Raises `SubscriptionNotFound`."""
        found = self.find_subscription(topic.topic_id, name)
        if found is None:
            raise SubscriptionNotFound(
                f"topic {topic.name} has no subscription {name!r}", topic=topic.name, subscription=name
            )
        return found

    # Checks before creation (docs/research/behaviours.md#81-creation)

    def check_topic_is_free(self, name: TopicName, *, partitions: int, settings: TopicSettings) -> None:
        """Check that a topic may be created: plain or one partition (`partitions=0`), or partitioned.

        A partitioned topic whose creation was interrupted is free for the same number and settings: creating it again
        finishes it.

        Raises:
            NamespaceNotFound, InvalidName, InvalidArgument, AlreadyExists: with the names in `details`.
            Conflict: the namespace or the partitioned topic is being deleted, or the topic is being restored.
        """
        if self.namespace(name.namespace).spec.stage is not Stage.READY:
            raise Conflict(f"namespace {name.namespace} is being deleted", namespace=name.namespace)
        if name.base.partition is not None or (partitions and name.partition is not None):
            raise InvalidName(
                f"{name}: a partition cannot have partitions. Choose a name that does not end in -part-<number>",
                field="topic",
                value=str(name),
            )
        if not 0 <= partitions <= MAX_PARTITIONS:
            raise InvalidArgument(
                f"{name}: 1 to {MAX_PARTITIONS} partitions (0 for a plain topic), not {partitions}",
                field="partitions",
                value=partitions,
                limit=MAX_PARTITIONS,
            )
        if name.partition is not None and name.partition >= MAX_PARTITIONS:
            raise InvalidArgument(
                f"{name}: a topic has at most {MAX_PARTITIONS} partitions",
                field="topic",
                value=str(name),
                limit=MAX_PARTITIONS,
            )
        if name in self._topics:
            raise AlreadyExists(f"topic {name} exists", topic=str(name))
        if name.partition is not None and name.base in self._topics:
            raise AlreadyExists(
                f"{name} cannot be made: {name.base} exists and has no partitions",
                topic=str(name),
                existing=str(name.base),
            )
        parent = self._partitioned.get(name.base)
        if parent is None:
            return
        if parent.spec.stage is Stage.DELETING:
            raise Conflict(f"partitioned topic {parent.name} is being deleted", topic=parent.name)
        if parent.spec.stage is Stage.RESTORING:  # the name belongs to a partition that is yet to be restored
            raise Conflict(f"topic {parent.name} is being restored: try again", topic=parent.name)
        if name.partition is not None:
            return
        is_same = (parent.spec.partitions, parent.spec.settings) == (partitions, settings)
        if parent.spec.stage is Stage.READY or not is_same:
            raise AlreadyExists(
                f"topic {name} exists with {parent.spec.partitions} partitions",
                topic=str(name),
                partitions=parent.spec.partitions,
            )


def _format_of(item: KeyValue) -> FormatRecord:
    return FormatRecord.from_json(item.value, key=item.key)


def _lag_key(topic: TopicRecord, subscription: str) -> LagKey:
    return LagKey(str(topic.parent or topic.topic), topic.name, topic.partition, subscription)
