"""Deleted topics and subscriptions that can still be restored, as one broker knows them, in memory.

Fed with keys as they are read or watched. `tombstones` has the transactions that change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydanube_core.errors import Conflict
from pydanube_core.facts import SetAside
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Guard, KeyValue, MetadataStore, ModRevision, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import SubscriptionId, TopicId
from pydanube_broker.cluster.records import TopicRecord, named_part
from pydanube_broker.cluster.registry_writer import RegistryWriter
from pydanube_broker.cluster.tombstone_records import (
    ParentTombstone,
    SubscriptionTombstone,
    TopicTombstone,
    Verdict,
    stranded_partition,
)

K = TypeVar("K")
V = TypeVar("V", TopicTombstone, SubscriptionTombstone)


class Restorable(RegistryWriter):
    """Look-ups of what can be restored. `restorable_…`: tombstones by the id of what was deleted."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        super().__init__(store, wall_ms=wall_ms)
        self._tombstones: dict[str, Revision] = {}  # key → revision; of those that are known
        self._in_wholes: set[int] = set()  # partitions that the tombstone of a whole topic names
        self._verdicts: dict[str, bool] = {}  # call id of a deletion → whether it comes back, or goes
        self.restorable_topics: dict[TopicId, TopicTombstone] = {}
        self.restorable_parents: dict[TopicId, ParentTombstone] = {}
        self.restorable_subscriptions: dict[SubscriptionId, SubscriptionTombstone] = {}

    def _revision_of(self, key: str) -> Revision | None:
        return self._tombstones.get(key) if key in keys.TOMBSTONES else super()._revision_of(key)

    def known_keys(self) -> set[str]:
        return super().known_keys() | self._tombstones.keys()

    def _put(self, item: KeyValue) -> None:
        if item.key not in keys.TOMBSTONES:
            super()._put(item)
        elif item.mod_revision > self._tombstones.get(item.key, 0):
            self._tombstones[item.key] = item.mod_revision
            with self.aside.reading(item.key):
                self._put_tombstone(item)

    def _put_tombstone(self, item: KeyValue) -> None:
        if item.key in keys.TOPIC_TOMBSTONES:
            topic = TopicTombstone.from_json(item.value, key=item.key)
            record = self.index.topic_by_id(TopicId(topic.topic_id))
            is_live = record is not None and record.is_named_by_parent
            if topic.topic_id not in self._in_wholes and not is_live:  # else left of what was converted
                self.restorable_topics[TopicId(topic.topic_id)] = topic
        elif item.key in keys.PARENT_TOMBSTONES:
            parent = ParentTombstone.from_json(item.value, key=item.key)
            self.restorable_parents[TopicId(parent.parent_id)] = parent
            named = _named_by(parent)
            self.restorable_topics |= named
            self._in_wholes |= named.keys()
        elif item.key in keys.VERDICTS:
            verdict = Verdict.from_json(item.value, key=item.key)
            self._verdicts[keys.call_of_verdict(item.key)] = verdict.comes_back
        else:
            one = SubscriptionTombstone.from_json(item.value, key=item.key)
            self.restorable_subscriptions[SubscriptionId(one.subscription_id)] = one

    def _remove(self, key: str, revision: Revision) -> None:
        if key not in keys.TOMBSTONES:
            super()._remove(key, revision)
        elif revision > self._tombstones.get(key, revision):
            del self._tombstones[key]
            if key in keys.TOPIC_TOMBSTONES:
                topic_id = TopicId(keys.number_in_key(key))
                if topic_id not in self._in_wholes:
                    self.restorable_topics.pop(topic_id, None)
            elif key in keys.PARENT_TOMBSTONES:
                parent = self.restorable_parents.pop(TopicId(keys.number_in_key(key)), None)
                for topic_id in {} if parent is None else _named_by(parent):
                    self.restorable_topics.pop(topic_id, None)
                    self._in_wholes.discard(topic_id)
                    self.index.dropped.add(topic_id)
                    self.on_change(keys.topic_tombstone_key(topic_id))
            elif key in keys.VERDICTS:
                self._verdicts.pop(keys.call_of_verdict(key), None)
            else:
                self.restorable_subscriptions.pop(SubscriptionId(keys.number_in_key(key)), None)

    def is_named(self, topic_id: TopicId) -> bool:
        """Return whether the tombstone of a whole topic names a partition."""
        return topic_id in self._in_wholes

    def lies_there(self, key: str) -> Guard:
        """Return the guard that a tombstone is unchanged."""
        return ModRevision(key, self._tombstones.get(key, Revision(0)))

    def kept(self, topic_id: int) -> bool:
        """Return whether a missing topic's data is kept: it can be restored, or unreadable metadata may belong to it."""
        return (
            topic_id in self.restorable_topics
            or self.aside.any_in(keys.TOPICS)
            or self.aside.any_in(keys.PARTITIONED)
            or self.aside.any_in(keys.PARENT_TOMBSTONES)
            or keys.topic_tombstone_key(TopicId(topic_id)) in self.aside.found
        )

    def keeps_cursor(self, topic_id: int, subscription_id: int) -> bool:
        """Return whether a missing subscription's cursor is kept: it can be restored, or unreadable metadata may belong to it."""
        owner = TopicId(topic_id)
        return (
            subscription_id in self.restorable_subscriptions
            or self.aside.any_in(keys.subscriptions_range(owner))
            or self.aside.any_in(keys.subscription_tombstones_range(owner))
        )

    def promised(self, now_ms: int) -> dict[str, int]:
        """Return the deletions that can be undone: call id → until when."""
        kept: list[TopicTombstone | SubscriptionTombstone] = [*self.restorable_topics.values()]
        kept += self.restorable_subscriptions.values()
        return {
            each.call_id: each.until_ms
            for each in kept
            if each.until_ms > now_ms and self._verdicts.get(each.call_id) is not False
        }

    def stranded(self) -> list[TopicTombstone]:
        """Return partitions that were not restored with their topic, because another partition has their name."""
        return [
            each
            for each in self.restorable_topics.values()
            if each.parent_id is not None and each.parent_id not in self.restorable_parents
        ]

    def set_aside(self) -> list[SetAside]:
        """Return the metadata that is not in effect, each with what mends it."""
        found = [
            SetAside(
                key=keys.topic_tombstone_key(TopicId(each.topic_id)),
                why=(error := stranded_partition(each)).message,
                mend="delete the whole topic, then undo that change",
                operation="topics.delete",
                arguments=error.next[0]["arguments"],
            )
            for each in self.stranded()
        ]
        return [*self.aside.found.values(), *found]

    def check_not_coming_back(self, topic_id: TopicId, subscription: str) -> None:
        """Raise `Conflict` for a new subscription with the name of one that is being restored."""
        if self._verdicts and any(
            (one.topic_id, one.spec.name) == (topic_id, subscription) and self._verdicts.get(one.call_id)
            for one in self.restorable_subscriptions.values()
        ):
            raise Conflict(
                f"subscription {subscription} is coming back: try again",
                subscription=subscription,
                retry_after_ms=500,
            )

    def restorable_record(self, topic_id: TopicId) -> TopicRecord | None:
        """Return the record that a restorable topic had before its deletion."""
        tombstone = self.restorable_topics.get(topic_id)
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

    def _over(self, restorable: dict[K, V], now_ms: int) -> list[tuple[K, V]]:
        """Return those whose grace is over, or was ended by a decision."""
        return [
            (key, one)
            for key, one in restorable.items()
            if one.until_ms <= now_ms or self._verdicts.get(one.call_id) is False
        ]


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
