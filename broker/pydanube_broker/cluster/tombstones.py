"""Deleted topics and subscriptions that can still be restored.

Deleting with a tombstone moves the record: out of the registry and into `/tombstones/` in one transaction, and back
in one transaction. What hangs on a topic's id (its subscriptions' records, its assignment, its log in its owner's journal,
its objects and their catalog) stays where it is meanwhile, and the id comes back with it: at the broker that has the
log. When the grace is over the tombstone goes
first, and then what it kept: a crash in between leaves data that nobody knows, which the next start drops as it does
that of any deleted topic.

A partitioned topic takes several transactions. Its parent's tombstone is written with the mark that begins the
deletion and goes with the mark that ends the restoration, so that `resume` knows at every crash what was meant.

What takes several transactions to come back, or to be forgotten, is decided first: a `Verdict` by the deletion's
`call_id`, written once. `resume` goes on with what comes back, the sweep with what goes. Every transaction that takes a
tombstone away is guarded by its revision, and one that ends a grace without a verdict by the absence of one: a deletion
comes back whole, or is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import replace

from pydanube_core.errors import (
    ClusterError,
    Retryable,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    Absent,
    Delete,
    DeleteRange,
    GuardFailed,
    Put,
    Write,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import SubscriptionId, TopicId
from pydanube_broker.cluster.records import (
    Stage,
    SubscriptionRecord,
    TopicRecord,
)
from pydanube_broker.cluster.restorable import Restorable
from pydanube_broker.cluster.tombstone_records import (
    ParentTombstone,
    SubscriptionTombstone,
    TopicTombstone,
    Verdict,
    name_reused,
    not_kept,
    stranded_partition,
    subscription_reused,
)
from pydanube_broker.records.json_record import JsonRecord


class Tombstones(Restorable):
    """Delete with a grace period, restore, forget."""

    async def shorten(self, until_ms: int) -> None:
        """End every grace period by `until_ms` at the latest.

        One that does was begun by a clock that ran ahead. What a deleted topic keeps in the journal keeps all that
        follows it there.
        """
        for topic_id, topic in list(self.restorable_topics.items()):
            if topic.until_ms > until_ms and not self.is_named(TopicId(topic.topic_id)):
                key, shorter = keys.topic_tombstone_key(topic_id), replace(topic, until_ms=until_ms)
                await self._replace_tombstone(key, shorter)
        for parent_id, parent in list(self.restorable_parents.items()):
            if parent.until_ms > until_ms and parent.spec.ids is not None:
                key = keys.parent_tombstone_key(parent_id)
                await self._replace_tombstone(key, replace(parent, until_ms=until_ms))
        for number, one in list(self.restorable_subscriptions.items()):
            if one.until_ms > until_ms:
                key = keys.subscription_tombstone_key(TopicId(one.topic_id), number)
                await self._replace_tombstone(key, replace(one, until_ms=until_ms))

    async def _replace_tombstone(self, key: str, tombstone: JsonRecord) -> None:
        """Write a tombstone again, unless it was restored or forgotten meanwhile."""
        with contextlib.suppress(GuardFailed):
            await self.change([Put(key, tombstone.to_json())], [self.lies_there(key)], whole=True)

    async def _decide(self, call_id: str, key: str, *, comes_back: bool) -> bool:
        """Record whether a deletion is restored; return whether this decision is the one in effect. `key`: one of its tombstones."""
        if call_id not in self._verdicts:
            mark = keys.verdict_key(call_id)
            verdict = Put(mark, Verdict(comes_back=comes_back).to_json())
            try:
                await self.change([verdict], [Absent(mark), self.lies_there(key)])
            except GuardFailed as error:
                await self._refresh(error.guard.key)
        return self._verdicts.get(call_id) is comes_back

    @contextlib.asynccontextmanager
    async def _coming_back(self, call_id: str, key: str, kind: type[ClusterError]) -> AsyncIterator[None]:
        """Context in which a deletion is restored. Raises `kind` if it can no longer be."""
        if not await self._decide(call_id, key, comes_back=True):
            mark = keys.verdict_key(call_id)
            raise self.aside.error(mark) if mark in self.aside.found else not_kept(kind, call_id)
        try:
            yield
        except Retryable:
            raise  # it goes on with the next try, or with the next start
        except ClusterError:
            await self._carried_out(call_id)
            raise
        else:
            await self._carried_out(call_id)

    async def _carried_out(self, call_id: str) -> None:
        with contextlib.suppress(Retryable):  # the next start, or sweep, takes it away
            await self.change([Delete(keys.verdict_key(call_id))], [])

    # Topics

    async def delete_topic_with_grace(
        self, topic: TopicName, grace: Grace, parent_id: TopicId | None
    ) -> TopicRecord:
        """Move a topic with a log from the registry to its tombstone. Raises `TopicNotFound`."""

        async def attempt() -> TopicRecord:
            former = self.index.topic(topic)
            tombstone = TopicTombstone(
                name=former.name,
                topic_id=former.topic_id,
                parent_id=parent_id,
                spec=former.spec,
                call_id=grace.call_id,
                until_ms=grace.until_ms,
            )
            await self.change(
                [  # the tombstone first: whoever sees the topic gone knows that it is kept
                    Put(keys.topic_tombstone_key(former.topic_id), tombstone.to_json()),
                    Delete(keys.topic_key(topic)),
                ],
                [self._as_known(former)],
            )
            return former

        return await self.again(attempt)

    async def restore_topics(self, call_id: str) -> list[TopicRecord]:
        """Restore what one deletion took: a topic, or a partitioned one with all its parts. Idempotent.

        Raises:
            TopicNotFound: that deletion took nothing, or its grace is over.
            NameReused: another topic has the name now; nothing has changed. Or a partition has the name of one of its
                partitions; all others are back.
            NamespaceNotFound: its namespace is gone.
        """
        mine = [each for each in self.restorable_topics.values() if each.call_id == call_id]
        for parent in list(self.restorable_parents.values()):
            # What could not come back with its topic once may do so after another deletion of the whole.
            if parent.call_id == call_id or any(each.parent_id == parent.parent_id for each in mine):
                key = keys.parent_tombstone_key(TopicId(parent.parent_id))
                async with self._coming_back(call_id, key, TopicNotFound):
                    return await self._restore_partitioned(parent, call_id)
        for topic in mine:
            return [await self.again(self.restore_topic, topic)]
        raise not_kept(TopicNotFound, call_id)

    async def restore_topic(self, tombstone: TopicTombstone) -> TopicRecord:
        topic_id, name = TopicId(tombstone.topic_id), TopicName.parse(tombstone.name)
        key, tombstone_key = keys.topic_key(name), keys.topic_tombstone_key(topic_id)
        if topic_id not in self.restorable_topics or self._verdicts.get(tombstone.call_id) is False:
            raise not_kept(TopicNotFound, tombstone.call_id)
        guards = [Absent(key), self.lies_there(tombstone_key), self._namespace_is(name.namespace)]
        parent = self.index.partitioned(name.base)
        if tombstone.parent_id is None:
            guards.append(Absent(keys.partitioned_key(name)))
        elif parent is None or parent.parent_id != tombstone.parent_id:
            raise name_reused(tombstone.name)
        else:
            guards.append(self._as_known(parent))
        spec = replace(tombstone.spec, identity=topic_id)
        try:
            await self.change([Put(key, spec.to_json()), Delete(tombstone_key)], guards)
        except GuardFailed as error:
            if error.guard.key not in (key, keys.partitioned_key(name)):
                raise
            await self._refresh(error.guard.key)
            raise name_reused(tombstone.name) from error
        return self.index.topic(name)

    async def _restore_partitioned(self, tombstone: ParentTombstone, call_id: str) -> list[TopicRecord]:
        name = TopicName.parse(tombstone.name)
        key = keys.partitioned_key(name)
        known = self.index.partitioned(name)
        if known is None:
            spec = replace(tombstone.spec, stage=Stage.RESTORING, identity=tombstone.parent_id)
            try:
                await self.change(
                    [Put(key, spec.to_json())],
                    [Absent(key), Absent(keys.topic_key(name)), self._namespace_is(name.namespace)],
                )
            except GuardFailed as error:
                await self._refresh(error.guard.key)
                raise name_reused(tombstone.name) from error
        elif known.parent_id != tombstone.parent_id:
            raise name_reused(tombstone.name)
        elif known.spec.stage is Stage.DELETING:  # the deletion did not come to its end
            await self._change_parent(known, stage=Stage.RESTORING)
        return await self._finish_restoration(name, call_id)

    async def _finish_restoration(self, name: TopicName, call_id: str | None = None) -> list[TopicRecord]:
        """Restore the partitions that are still missing, then mark the topic as ready.

        Where two have one name that of this deletion comes back, and the other stays deleted.

        Raises:
            NameReused: some stay deleted; the topic is ready without them.
        """
        parent = self.index.partitioned(name)
        assert parent is not None, "the parent comes back first and goes last"
        missing = [each for each in self.restorable_topics.values() if each.parent_id == parent.parent_id]
        stranded = []
        for part in sorted(missing, key=lambda each: each.call_id != call_id):
            if self._verdicts.get(part.call_id) is False:
                continue  # of an earlier deletion, whose grace has ended
            if self.index.find_topic(TopicName.parse(part.name)) is None:
                await self.again(self.restore_topic, part)
            else:
                stranded.append(part)
        gone = Delete(keys.parent_tombstone_key(parent.parent_id))
        await self._change_parent(parent, gone, stage=Stage.READY)
        if any(each.call_id == call_id for each in stranded):
            raise stranded_partition(stranded[0])
        return self.index.partitions(name)

    async def forget_topics(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        """Delete the tombstones of topics whose grace is over; return the ids whose data may be deleted.

        Args:
            among: only of these topics.
        """
        gone: list[TopicId] = []
        for topic_id, tombstone in self._over(self.restorable_topics, now_ms):
            if self.is_named(topic_id) or (among is not None and topic_id not in among):
                continue
            key = keys.topic_tombstone_key(topic_id)
            writes: list[Write] = [
                Delete(key),
                DeleteRange(keys.subscriptions_range(topic_id)),
                DeleteRange(keys.subscription_tombstones_range(topic_id)),
                DeleteRange(keys.clients_range(topic_id)),
                Delete(keys.assignment_key(topic_id)),
            ]
            parent = tombstone.parent_id
            known = self.index.partitioned(TopicName.parse(tombstone.name).base)
            if known is not None and known.parent_id == parent and known.spec.stage is Stage.DELETING:
                continue  # more of the same deletion is still to be deleted
            siblings = [each for each in self.restorable_topics.values() if each.parent_id == parent]
            if parent is not None and len(siblings) == 1:
                writes.append(Delete(keys.parent_tombstone_key(TopicId(parent))))
            if not await self._forget(writes, key, tombstone.call_id, several=parent is not None):
                continue
            gone.append(topic_id)
        await self._drop_verdicts()
        return gone

    async def _forget(self, writes: Sequence[Write], key: str, call_id: str, *, several: bool) -> bool:
        """Delete a tombstone for good; False if it was or is being restored. `several`: its deletion has other tombstones."""
        guards = [self.lies_there(key)]
        if not several:
            guards.append(Absent(keys.verdict_key(call_id)))
        elif not await self._decide(call_id, key, comes_back=False):
            return False
        try:
            await self.change(writes, guards)
        except GuardFailed:
            return False
        return True

    async def _drop_verdicts(self) -> None:
        """Delete the decisions that were carried out."""
        left = {each.call_id for each in self.restorable_topics.values()}
        left |= {each.call_id for each in self.restorable_subscriptions.values()}
        for call_id in self._verdicts.keys() - left:
            await self._carried_out(call_id)

    # Subscriptions

    async def delete_subscription_with_grace(
        self, topic_id: TopicId, subscription: str, grace: Grace
    ) -> SubscriptionRecord:
        """Delete a subscription, restorable for `grace`; return its record. Raises `TopicNotFound`, `SubscriptionNotFound`."""

        async def attempt() -> SubscriptionRecord:
            topic = self._topic_by_id(topic_id)
            former = self.index.subscription(topic, subscription)
            tombstone = SubscriptionTombstone(
                topic=topic.name,
                topic_id=topic_id,
                subscription_id=former.subscription_id,
                spec=former.spec,
                call_id=grace.call_id,
                until_ms=grace.until_ms,
            )
            key = keys.subscription_key(topic_id, subscription)
            tombstone_key = keys.subscription_tombstone_key(topic_id, former.subscription_id)
            await self.change(
                [Put(tombstone_key, tombstone.to_json()), Delete(key)], [self._as_known(former)]
            )
            return former

        return await self.again(attempt)

    async def restore_subscriptions(self, call_id: str) -> list[SubscriptionRecord]:
        """Restore the subscriptions that one deletion took, on every partition. Idempotent.

        Raises:
            SubscriptionNotFound: it took nothing, or its grace is over.
            NameReused: another subscription has the name now; nothing has changed.
            TopicNotFound: its topic is gone.
        """
        mine = [one for one in self.restorable_subscriptions.values() if one.call_id == call_id]
        if not mine:
            raise not_kept(SubscriptionNotFound, call_id)
        for one in mine:
            topic_id = TopicId(one.topic_id)
            self._topic_by_id(topic_id)
            if self.index.find_subscription(topic_id, one.spec.name) is not None:
                raise subscription_reused(one)
        first = keys.subscription_tombstone_key(
            TopicId(mine[0].topic_id), SubscriptionId(mine[0].subscription_id)
        )
        async with self._coming_back(call_id, first, SubscriptionNotFound):
            return [await self.again(self._restore_subscription, one) for one in mine]

    async def _restore_subscription(self, tombstone: SubscriptionTombstone) -> SubscriptionRecord:
        topic_id, number = TopicId(tombstone.topic_id), SubscriptionId(tombstone.subscription_id)
        topic = self._topic_by_id(topic_id)
        key = keys.subscription_key(topic_id, tombstone.spec.name)
        tombstone_key = keys.subscription_tombstone_key(topic_id, number)
        if number not in self.restorable_subscriptions:
            raise not_kept(SubscriptionNotFound, tombstone.call_id)
        spec = replace(tombstone.spec, identity=number)
        try:
            await self.change(
                [Put(key, spec.to_json()), Delete(tombstone_key)],
                [Absent(key), self.lies_there(tombstone_key), self._as_known(topic)],
            )
        except GuardFailed as error:
            if error.guard.key != key:
                raise
            await self._refresh(key)
            raise subscription_reused(tombstone) from error
        return self.index.subscription(topic, tombstone.spec.name)

    async def forget_subscriptions(
        self, now_ms: int, among: Container[int] | None = None
    ) -> list[tuple[TopicId, SubscriptionId]]:
        """Delete the tombstones of subscriptions whose grace is over; return those whose cursors may be deleted.

        Args:
            among: only those of these topics.
        """
        gone: list[tuple[TopicId, SubscriptionId]] = []
        for number, tombstone in self._over(self.restorable_subscriptions, now_ms):
            topic_id = TopicId(tombstone.topic_id)
            if among is not None and topic_id not in among:
                continue
            key = keys.subscription_tombstone_key(topic_id, number)
            writes: list[Write] = [Delete(key)]
            if self.index.find_subscription(topic_id, tombstone.spec.name) is None:
                writes.append(DeleteRange(keys.consumer_clients_range(topic_id, tombstone.spec.name)))
            partition = TopicName.parse(tombstone.topic).partition
            if not await self._forget(writes, key, tombstone.call_id, several=partition is not None):
                continue
            gone.append((topic_id, number))
        await self._drop_verdicts()
        return gone
