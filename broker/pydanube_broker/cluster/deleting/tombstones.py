"""Deleted topics and subscriptions that can still be restored.

Deleting with a tombstone moves the record: out of the registry and into `/tombstones/` in one transaction, and back
in one transaction. The keys and data of a topic's id (its subscriptions' records, its assignment, its log in its owner's
journal, its objects and their catalog) stay in place, and the topic comes back with its id, at the broker that has the
log. When the grace is over, the tombstone is deleted first, then the data. After a crash in between, the next start drops
the data, as it does for every topic without a record.

A subscription of a partitioned topic has a tombstone for each partition, so its restoration takes several transactions.
So does forgetting it. The decision for one of the two is a `DeletionDecision` under the deletion's `call_id`, written once,
before the first of these transactions. `TopicCatalog.resume` continues an interrupted restoration, and the sweep continues
to forget. A transaction that deletes a tombstone is guarded by the tombstone's revision. One that ends a grace without a
decision is also guarded by the absence of a decision. So a deletion is restored completely, or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Container
from dataclasses import replace

from pydanube_core.errors import (
    ClusterError,
    Retryable,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Absent, Delete, DeleteRange, GuardFailed, Put, Write

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstone_records import (
    DeletionDecision,
    SubscriptionTombstone,
    TopicTombstone,
    name_reused,
    not_kept,
    subscription_reused,
)
from pydanube_broker.cluster.ids import SubscriptionId, TopicId
from pydanube_broker.cluster.records import SubscriptionRecord, TopicRecord
from pydanube_broker.cluster.registry_records import RegistryRecords
from pydanube_broker.records import Change, JsonRecord


class Tombstones:
    """Delete with a grace period, restore, forget: topics without partitions, and subscriptions."""

    def __init__(self, records: RegistryRecords) -> None:
        self._records = records
        self._index = records.index
        self._restorable = records.restorable

    async def shorten(self, until_ms: int) -> None:
        """End every grace period by `until_ms` at the latest.

        A clock that ran ahead may have written a later end. Until the grace of a topic ends, its records keep all later
        records in the journal.
        """
        found = self._restorable
        for topic_id, topic in list(found.topics.items()):
            if topic.until_ms > until_ms and not found.is_named(TopicId(topic.topic_id)):
                await self._replace(keys.topic_tombstone_key(topic_id), replace(topic, until_ms=until_ms))
        for parent_id, parent in list(found.parents.items()):
            if parent.until_ms > until_ms and parent.spec.ids is not None:
                await self._replace(keys.parent_tombstone_key(parent_id), replace(parent, until_ms=until_ms))
        for number, one in list(found.subscriptions.items()):
            if one.until_ms > until_ms:
                key = keys.subscription_tombstone_key(TopicId(one.topic_id), number)
                await self._replace(key, replace(one, until_ms=until_ms))

    async def _replace(self, key: str, tombstone: JsonRecord) -> None:
        """Write a tombstone again, unless it was restored or forgotten."""
        with contextlib.suppress(GuardFailed):
            await self._records.transact(
                [Put(key, tombstone.to_json())], guards=[self._restorable.unchanged(key)]
            )

    # -- decisions ------------------------------------------------------------------------------------------------

    async def _decide(self, call_id: str, key: str, *, comes_back: bool) -> bool:
        """Record whether a deletion is restored. Return whether this decision is the one in effect.

        Args:
            key: one of the deletion's tombstones.
        """

        async def decide(change: Change) -> None:
            if call_id not in self._restorable.decisions:
                change.absent(keys.decision_key(call_id))
                change.guard(self._restorable.unchanged(key))
                change.put(keys.decision_key(call_id), DeletionDecision(comes_back=comes_back))

        try:
            await self._records.change(decide, attempts=1)
        except GuardFailed as error:
            await self._records.refresh(error.guard.key)
        return self._restorable.decisions.get(call_id) is comes_back

    @contextlib.asynccontextmanager
    async def restoring(self, call_id: str, key: str, kind: type[ClusterError]) -> AsyncIterator[None]:
        """Context in which a deletion is restored. Raises `kind` if it can no longer be."""
        if not await self._decide(call_id, key, comes_back=True):
            mark, quarantine = keys.decision_key(call_id), self._records.quarantine
            raise quarantine.error(mark) if mark in quarantine.found else not_kept(kind, call_id)
        try:
            yield
        except Retryable:
            raise  # the next attempt, or the next start of a broker, continues
        except ClusterError:
            await self.drop_decision(call_id)
            raise
        else:
            await self.drop_decision(call_id)

    async def drop_decision(self, call_id: str) -> None:
        """Delete the decision about a deletion, which was carried out."""
        with contextlib.suppress(Retryable):  # the next start, or sweep, deletes it
            await self._records.transact([Delete(keys.decision_key(call_id))])

    async def forget(self, writes: list[Write], key: str, call_id: str, *, several: bool) -> bool:
        """Delete a tombstone for good. Return False if it was or is being restored.

        Args:
            several: whether its deletion has other tombstones.
        """
        guards = [self._restorable.unchanged(key)]
        if not several:
            guards.append(Absent(keys.decision_key(call_id)))
        elif not await self._decide(call_id, key, comes_back=False):
            return False
        try:
            await self._records.transact(writes, guards=guards)
        except GuardFailed:
            return False
        return True

    async def drop_decisions(self) -> None:
        """Delete the decisions that were carried out."""
        left = {each.call_id for each in self._restorable.topics.values()}
        left |= {each.call_id for each in self._restorable.subscriptions.values()}
        for call_id in self._restorable.decisions.keys() - left:
            await self.drop_decision(call_id)

    # -- topics --------------------------------------------------------------------------------------------------

    async def delete_topic(
        self, topic: TopicName, grace: Grace, parent_id: TopicId | None = None
    ) -> TopicRecord:
        """Move a topic with a log from the registry to its tombstone. Raises `TopicNotFound`."""

        async def decide(change: Change) -> TopicRecord:
            former = self._index.topic(topic)
            tombstone = TopicTombstone(
                name=former.name,
                topic_id=former.topic_id,
                parent_id=parent_id,
                spec=former.spec,
                call_id=grace.call_id,
                until_ms=grace.until_ms,
            )
            change.guard(self._records.as_known(former))
            for guard in self._records.format_of(former):
                change.guard(guard)
            # The tombstone first, so that the data of a missing topic is kept.
            change.put(keys.topic_tombstone_key(former.topic_id), tombstone)
            change.delete(keys.topic_key(topic))
            return former

        return (await self._records.change(decide)).result

    async def restore_topic(self, call_id: str) -> TopicRecord:
        """Restore the topic without partitions that a deletion took.

        Raises:
            TopicNotFound: that deletion took nothing, or its grace is over.
            NameReused: another topic has the name now. Nothing has changed.
            NamespaceNotFound: its namespace is gone.
        """

        async def decide(change: Change) -> TopicName:
            found = [each for each in self._restorable.topics.values() if each.call_id == call_id]
            if not found:
                raise not_kept(TopicNotFound, call_id)
            tombstone, name = found[0], TopicName.parse(found[0].name)
            key = keys.topic_tombstone_key(TopicId(tombstone.topic_id))
            change.guard(self._restorable.unchanged(key))
            change.guard(self._records.namespace_is(name.namespace))
            for taken in (keys.topic_key(name), keys.partitioned_key(name)):
                change.require(Absent(taken), name_reused(tombstone.name))
            change.put(keys.topic_key(name), replace(tombstone.spec, identity=tombstone.topic_id))
            change.delete(key)
            return name

        return self._index.topic((await self._records.change(decide)).result)

    async def forget_topics(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        """Delete the tombstones of topics whose grace is over. Return the ids whose data may be deleted.

        Args:
            among: only of these topics.
        """
        gone: list[TopicId] = []
        for topic_id, tombstone in self._restorable.expired(self._restorable.topics, now_ms):
            if tombstone.parent_id is not None or (among is not None and topic_id not in among):
                continue
            key = keys.topic_tombstone_key(topic_id)
            if await self.forget(
                [Delete(key), *deletions_of(topic_id)], key, tombstone.call_id, several=False
            ):
                gone.append(topic_id)
        return gone

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def delete_subscription(
        self, topic_id: TopicId, subscription: str, grace: Grace
    ) -> SubscriptionRecord:
        """Delete a subscription, restorable for `grace`, and return its record. Raises `TopicNotFound`, `SubscriptionNotFound`."""

        async def decide(change: Change) -> SubscriptionRecord:
            topic = self._records.topic_by_id(topic_id)
            former = self._index.subscription(topic, subscription)
            tombstone = SubscriptionTombstone(
                topic=topic.name,
                topic_id=topic_id,
                subscription_id=former.subscription_id,
                spec=former.spec,
                call_id=grace.call_id,
                until_ms=grace.until_ms,
            )
            change.guard(self._records.as_known(former))
            change.put(keys.subscription_tombstone_key(topic_id, former.subscription_id), tombstone)
            change.delete(keys.subscription_key(topic_id, subscription))
            return former

        return (await self._records.change(decide)).result

    async def restore_subscriptions(self, call_id: str) -> list[SubscriptionRecord]:
        """Restore the subscriptions that one deletion took, on every partition. Idempotent.

        Raises:
            SubscriptionNotFound: the deletion took none, or its grace is over.
            NameReused: another subscription has the name now. Nothing has changed.
            TopicNotFound: its topic is gone.
        """
        mine = [one for one in self._restorable.subscriptions.values() if one.call_id == call_id]
        if not mine:
            raise not_kept(SubscriptionNotFound, call_id)
        for one in mine:
            topic_id = TopicId(one.topic_id)
            self._records.topic_by_id(topic_id)
            if self._index.find_subscription(topic_id, one.spec.name) is not None:
                raise subscription_reused(one)
        first = keys.subscription_tombstone_key(
            TopicId(mine[0].topic_id), SubscriptionId(mine[0].subscription_id)
        )
        async with self.restoring(call_id, first, SubscriptionNotFound):
            return [await self._restore_subscription(one) for one in mine]

    async def _restore_subscription(self, tombstone: SubscriptionTombstone) -> SubscriptionRecord:
        topic_id, number = TopicId(tombstone.topic_id), SubscriptionId(tombstone.subscription_id)
        key = keys.subscription_key(topic_id, tombstone.spec.name)
        tombstone_key = keys.subscription_tombstone_key(topic_id, number)

        async def decide(change: Change) -> TopicRecord:
            topic = self._records.topic_by_id(topic_id)
            if number not in self._restorable.subscriptions:
                raise not_kept(SubscriptionNotFound, tombstone.call_id)
            change.guard(self._restorable.unchanged(tombstone_key))
            change.guard(self._records.as_known(topic))
            change.require(Absent(key), subscription_reused(tombstone))
            change.put(key, replace(tombstone.spec, identity=number))
            change.delete(tombstone_key)
            return topic

        topic = (await self._records.change(decide)).result
        return self._index.subscription(topic, tombstone.spec.name)

    async def forget_subscriptions(
        self, now_ms: int, among: Container[int] | None = None
    ) -> list[tuple[TopicId, SubscriptionId]]:
        """Delete the tombstones of subscriptions whose grace is over. Return those whose cursors may be deleted.

        Args:
            among: only those of these topics.
        """
        gone: list[tuple[TopicId, SubscriptionId]] = []
        for number, tombstone in self._restorable.expired(self._restorable.subscriptions, now_ms):
            topic_id = TopicId(tombstone.topic_id)
            if among is not None and topic_id not in among:
                continue
            key = keys.subscription_tombstone_key(topic_id, number)
            writes: list[Write] = [Delete(key)]
            if self._index.find_subscription(topic_id, tombstone.spec.name) is None:
                writes.append(DeleteRange(keys.consumer_clients_range(topic_id, tombstone.spec.name)))
            partition = TopicName.parse(tombstone.topic).partition
            if await self.forget(writes, key, tombstone.call_id, several=partition is not None):
                gone.append((topic_id, number))
        await self.drop_decisions()
        return gone


def deletions_of(topic_id: TopicId) -> list[Write]:
    """Return the deletions of all keys under a topic's id."""
    return [
        DeleteRange(keys.subscriptions_range(topic_id)),
        DeleteRange(keys.subscription_tombstones_range(topic_id)),
        DeleteRange(keys.clients_range(topic_id)),
        Delete(keys.assignment_key(topic_id)),
    ]
