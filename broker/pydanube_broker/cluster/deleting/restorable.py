"""Deleted topics and subscriptions that can still be restored, as one broker holds them in memory.

`tombstones` has the transactions that change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydanube_core.errors import Conflict
from pydanube_core.facts import QuarantinedKey
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Guard, KeyValue, ModRevision, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstone_records import (
    DeletionDecision,
    ParentTombstone,
    SubscriptionTombstone,
    TopicTombstone,
    stranded_partition,
)
from pydanube_broker.cluster.ids import SubscriptionId, TopicId
from pydanube_broker.cluster.records import TopicRecord, named_part
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.records import Quarantine, Table

K = TypeVar("K")
V = TypeVar("V", TopicTombstone, SubscriptionTombstone)


class Restorable:
    """Deleted topics and subscriptions by id: `topics`, with partitions of `parents`, and `subscriptions`.

    `tables` are filled by `Records`. `decisions`: call id of a deletion → True if it is restored, False if it is final.
    """

    def __init__(self, index: RegistryIndex, quarantine: Quarantine) -> None:
        self._index = index
        self._quarantine = quarantine
        self._parent_table = Table(keys.PARENT_TOMBSTONES, _parent_of, changed=self._put_parent)
        self._subscription_table = Table(
            keys.SUBSCRIPTION_TOMBSTONES, _subscription_of, changed=self._put_subscription
        )
        self.topic_table = Table(keys.TOPIC_TOMBSTONES, _topic_of, changed=self._put_topic)
        self._decision_table = Table(keys.DELETION_DECISIONS, _decision_of, changed=self._put_decision)
        self.tables: Sequence[Table[Any]] = (
            self._parent_table,
            self._subscription_table,
            self.topic_table,
            self._decision_table,
        )
        self.topics: dict[TopicId, TopicTombstone] = {}
        self.parents: dict[TopicId, ParentTombstone] = {}
        self.subscriptions: dict[SubscriptionId, SubscriptionTombstone] = {}
        self.decisions: dict[str, bool] = {}
        # Partitions whose parent's tombstone was deleted. `RegistryRecords` notifies its listener of them
        self.gone_parts: set[TopicId] = set()
        self._in_wholes: set[int] = set()  # partitions that the tombstone of a whole topic names

    # -- filling -------------------------------------------------------------------------------------------------

    def _put_topic(self, key: str, before: TopicTombstone | None, after: TopicTombstone | None) -> None:
        topic_id = TopicId(keys.number_in_key(key))
        if topic_id in self._in_wholes:
            return  # a partition's own tombstone, which a conversion to format 2 has not deleted yet
        if after is None:
            self.topics.pop(topic_id, None)
            return
        record = self._index.topic_by_id(topic_id)
        if record is None or not record.is_named_by_parent:
            self.topics[topic_id] = after

    def _put_parent(self, key: str, before: ParentTombstone | None, after: ParentTombstone | None) -> None:
        parent_id = TopicId(keys.number_in_key(key))
        if after is not None:
            self.parents[parent_id] = after
            named = _named_by(after)
            self.topics |= named
            self._in_wholes |= named.keys()
        elif before is not None:
            del self.parents[parent_id]
            for topic_id in _named_by(before):
                self.topics.pop(topic_id, None)
                self._in_wholes.discard(topic_id)
                self._index.dropped.add(topic_id)
                self.gone_parts.add(topic_id)

    def _put_subscription(
        self, key: str, before: SubscriptionTombstone | None, after: SubscriptionTombstone | None
    ) -> None:
        subscription_id = SubscriptionId(keys.number_in_key(key))
        if after is None:
            self.subscriptions.pop(subscription_id, None)
        else:
            self.subscriptions[subscription_id] = after

    def _put_decision(
        self, key: str, before: DeletionDecision | None, after: DeletionDecision | None
    ) -> None:
        call_id = keys.call_of_decision(key)
        if after is None:
            self.decisions.pop(call_id, None)
        else:
            self.decisions[call_id] = after.comes_back

    # -- looking up ----------------------------------------------------------------------------------------------

    def is_named(self, topic_id: TopicId) -> bool:
        """Return whether the tombstone of a whole topic names a partition."""
        return topic_id in self._in_wholes

    def unchanged(self, key: str) -> Guard:
        """Return a guard that fails if a tombstone has changed."""
        table = next(table for table in self.tables if key in table.range)
        return ModRevision(key, table.revision(key) or Revision(0))

    def keeps_data(self, topic_id: int) -> bool:
        """Return whether a missing topic's data is kept: it can be restored, or unreadable metadata may belong to it."""
        return (
            topic_id in self.topics
            or self._quarantine.any_in(keys.TOPICS)
            or self._quarantine.any_in(keys.PARTITIONED)
            or self._quarantine.any_in(keys.PARENT_TOMBSTONES)
            or keys.topic_tombstone_key(TopicId(topic_id)) in self._quarantine.found
        )

    def keeps_cursor(self, topic_id: int, subscription_id: int) -> bool:
        """Return whether a missing subscription's cursor is kept: it can be restored, or unreadable metadata may belong to it."""
        owner = TopicId(topic_id)
        return (
            subscription_id in self.subscriptions
            or self._quarantine.any_in(keys.subscriptions_range(owner))
            or self._quarantine.any_in(keys.subscription_tombstones_range(owner))
        )

    def undoable(self, now_ms: int) -> dict[str, int]:
        """Return the deletions that can be undone: call id → end of the grace, in milliseconds since 1970."""
        kept: list[TopicTombstone | SubscriptionTombstone] = [*self.topics.values()]
        kept += self.subscriptions.values()
        return {
            each.call_id: each.until_ms
            for each in kept
            if each.until_ms > now_ms and self.decisions.get(each.call_id) is not False
        }

    def stranded(self) -> list[TopicTombstone]:
        """Return partitions that were not restored with their topic, because another partition has their name."""
        return [
            each
            for each in self.topics.values()
            if each.parent_id is not None and each.parent_id not in self.parents
        ]

    def quarantined(self) -> list[QuarantinedKey]:
        """Return the metadata that is not in effect, each entry with its remedy."""
        found = [
            QuarantinedKey(
                key=keys.topic_tombstone_key(TopicId(each.topic_id)),
                why=(error := stranded_partition(each)).message,
                mend="delete the whole topic, then undo that change",
                operation="topics.delete",
                arguments=error.next[0]["arguments"],
            )
            for each in self.stranded()
        ]
        return [*self._quarantine.found.values(), *found]

    def check_not_coming_back(self, topic_id: TopicId, subscription: str) -> None:
        """Raise `Conflict` for a new subscription with the name of one that is being restored."""
        if self.decisions and any(
            (one.topic_id, one.spec.name) == (topic_id, subscription) and self.decisions.get(one.call_id)
            for one in self.subscriptions.values()
        ):
            raise Conflict(
                f"subscription {subscription} is being restored: try again",
                subscription=subscription,
                retry_after_ms=500,
            )

    def record(self, topic_id: TopicId) -> TopicRecord | None:
        """Return the record that a restorable topic had before its deletion."""
        tombstone = self.topics.get(topic_id)
        if tombstone is None:
            return None
        name = TopicName.parse(tombstone.name)
        return TopicRecord(
            topic_id=topic_id,
            revision=Revision(0),
            topic=name,
            spec=tombstone.spec,
            key=keys.topic_tombstone_key(topic_id),
        )

    def expired(self, restorable: dict[K, V], now_ms: int) -> list[tuple[K, V]]:
        """Return the items whose grace has ended, by time or by a decision."""
        return [
            (key, one)
            for key, one in restorable.items()
            if one.until_ms <= now_ms or self.decisions.get(one.call_id) is False
        ]


def _topic_of(item: KeyValue) -> TopicTombstone:
    return TopicTombstone.from_json(item.value, key=item.key)


def _parent_of(item: KeyValue) -> ParentTombstone:
    return ParentTombstone.from_json(item.value, key=item.key)


def _subscription_of(item: KeyValue) -> SubscriptionTombstone:
    return SubscriptionTombstone.from_json(item.value, key=item.key)


def _decision_of(item: KeyValue) -> DeletionDecision:
    return DeletionDecision.from_json(item.value, key=item.key)


def _named_by(parent: ParentTombstone) -> dict[TopicId, TopicTombstone]:
    """Return the tombstones of the partitions that the tombstone of a whole topic names."""
    return {
        TopicId(topic_id): TopicTombstone(
            name=(spec := named_part(parent.spec, index, topic_id)).name,
            topic_id=topic_id,
            parent_id=parent.parent_id,
            spec=spec,
            call_id=parent.call_id,
            until_ms=parent.until_ms,
        )
        for index, topic_id in enumerate(parent.spec.ids or ())
        if topic_id is not None
    }
