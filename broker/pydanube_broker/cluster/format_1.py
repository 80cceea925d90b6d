"""Partitioned topics of metadata format 1, in which each partition has a record of its own.

This module is removed in the next release, with `format_step`, `Stage.CREATING`, `DELETING` and `RESTORING` of topics.

A change takes several transactions. A record with a `Stage` is written first and settled last, and `resume` finishes
them after a crash:

* a partitioned topic: parent `creating` → its partitions one by one → parent `ready`
* its deletion: parent `deleting` → partitions → parent gone
* a partition that an official client creates without a parent: parent first (which takes the base name), partition next
* added partitions: each with its siblings' subscriptions → the parent's number of partitions, by which clients see them

The parent's tombstone is written with the mark that begins the deletion and deleted with the mark that ends the
restoration. So `resume` can distinguish the two after any crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import anyio
from pydanube_core.errors import AlreadyExists, ClusterError, Conflict, TopicNotFound
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Absent, Delete, Guard, GuardFailed, ModRevision, Put, Write

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstone_records import (
    ParentTombstone,
    TopicTombstone,
    name_reused,
    not_kept,
    stranded_partition,
)
from pydanube_broker.cluster.deleting.tombstones import Tombstones, deletions_of
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    PartitionedRecord,
    PartitionedSpec,
    Stage,
    TopicRecord,
    TopicSettings,
    TopicSpec,
)
from pydanube_broker.cluster.registry_records import WHOLE, RegistryRecords
from pydanube_broker.cluster.subscription_operations import Subscriptions
from pydanube_broker.records import ATTEMPTS

P = ParamSpec("P")
T = TypeVar("T")


class PartitionRecords:
    """Create, grow, delete and restore partitioned topics of format 1."""

    def __init__(
        self, records: RegistryRecords, subscriptions: Subscriptions, tombstones: Tombstones
    ) -> None:
        self._records = records
        self._index = records.index
        self._restorable = records.restorable
        self._subscriptions = subscriptions
        self._tombstones = tombstones

    async def _again(self, attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an attempt. If the index was outdated, refresh it and run the attempt again."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await attempt(*args, **kwargs)
            except GuardFailed as error:
                if error.guard.key == keys.FORMAT:
                    raise
                await self._records.refresh(error.guard.key)
        return await attempt(*args, **kwargs)

    async def _change(self, writes: Sequence[Write], guards: Sequence[Guard]) -> None:
        await self._records.transact(writes, guards=[*guards, *self._records.format_1()])

    async def _change_parent(
        self, parent: PartitionedRecord, *more: Write, guards: Sequence[Guard] = (), **changes: Any
    ) -> None:
        """Change fields of a partitioned topic's record as the index has it, and write `more`, in one transaction."""
        put = Put(keys.partitioned_key(parent.topic), replace(parent.spec, **changes).to_json())
        await self._change([put, *more], [self._records.as_known(parent), *guards])

    # -- creation ------------------------------------------------------------------------------------------------

    async def create(self, topic: TopicName, partitions: int, settings: TopicSettings) -> list[TopicRecord]:
        """Create a topic, then its partitions. Raises as `check_topic_is_free`."""
        await self._again(self._begin_creation, topic, partitions, settings)
        return await self._again(self._finish_creation, topic)

    async def _begin_creation(self, topic: TopicName, partitions: int, settings: TopicSettings) -> None:
        self._index.check_topic_is_free(topic, partitions=partitions, settings=settings)
        if self._index.partitioned(topic) is None:
            key = keys.partitioned_key(topic)
            spec = self._spec(topic, settings, declared=True, partitions=partitions, stage=Stage.CREATING)
            guards = [
                Absent(key),
                Absent(keys.topic_key(topic)),
                self._records.namespace_is(topic.namespace),
            ]
            await self._change([Put(key, spec.to_json())], guards)

    async def _finish_creation(self, topic: TopicName) -> list[TopicRecord]:
        """Create the missing partitions, then mark the topic as ready."""
        parent = self._parent(topic)
        if parent.spec.stage is Stage.CREATING:
            await self._make_all_missing(parent, parent.spec.partitions)
            await self._change_parent(parent, stage=Stage.READY)
        return self._index.partitions(topic)

    async def _make_all_missing(self, parent: PartitionedRecord, partitions: int) -> None:
        names = [parent.topic.part(index) for index in range(partitions)]
        failures: list[ClusterError] = []
        async with anyio.create_task_group() as group:  # side by side: the embedded store shares their fsync
            for part in names:
                if self._index.find_topic(part) is None:
                    group.start_soon(self._make_missing, parent, part, failures)
        if failures:
            raise failures[0]

    async def _make_missing(
        self, parent: PartitionedRecord, part: TopicName, failures: list[ClusterError]
    ) -> None:
        key = keys.topic_key(part)
        spec = self._topic_spec(part, parent.spec.settings)
        try:
            await self._change([Put(key, spec.to_json())], [self._records.as_known(parent), Absent(key)])
        except GuardFailed as error:
            if error.guard.key != key:
                failures.append(error)
            else:
                await self._records.refresh(key)  # another broker created this partition
        except ClusterError as error:
            failures.append(error)

    async def create_part(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        """Create one partition, and its parent before it if there is none. Raises as `check_topic_is_free`."""
        made = await self._again(self._create_part, topic, settings)
        await self._subscribe_as_siblings(made)
        return made

    async def _create_part(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        self._index.check_topic_is_free(topic, partitions=0, settings=settings)
        index = topic.partition
        assert index is not None, "only for names that end in -part-<n>"
        base, key, parent_key = topic.base, keys.topic_key(topic), keys.partitioned_key(topic.base)
        parent = self._index.partitioned(base)
        if parent is None:
            spec = self._spec(base, settings, declared=False, partitions=index + 1)
            guards = [
                Absent(parent_key),
                Absent(keys.topic_key(base)),
                self._records.namespace_is(base.namespace),
            ]
            await self._change([Put(parent_key, spec.to_json())], guards)
            parent = self._index.partitioned(base)
            assert parent is not None, "it has just been made"
        writes: list[Write] = [Put(key, self._topic_spec(topic, settings).to_json())]
        if index >= parent.spec.partitions:
            writes.append(Put(parent_key, replace(parent.spec, partitions=index + 1).to_json()))
        guards = [
            Absent(key),
            ModRevision(parent_key, parent.revision),
            self._records.namespace_is(base.namespace),
        ]
        await self._change(writes, guards)
        return self._index.topic(topic)

    async def _subscribe_as_siblings(self, made: TopicRecord) -> None:
        """Give an added partition the subscriptions of the others, so that they miss none of its messages."""
        if made.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
            return
        siblings = [
            part for part in self._index.partitions(made.topic.base) if part.topic_id != made.topic_id
        ]
        found = {one.name: one for part in siblings for one in self._index.subscriptions(part.topic_id)}
        for one in found.values():
            await self._subscriptions.ensure(
                made.topic_id, one.name, type=one.type, start_offset=0, options=one.spec.options
            )

    # -- added partitions ----------------------------------------------------------------------------------------

    async def grow(self, topic: TopicName, partitions: int) -> list[TopicRecord]:
        """Create the partitions that a topic lacks. Clients see them after `show`."""
        former = self._settled_parent(topic).spec.partitions
        if partitions <= former:
            raise Conflict(f"{topic} has partitions by now: {former}", topic=str(topic), retryable=False)
        await self._again(self._grow, topic, partitions)
        return await self._subscribed_from(topic, former)

    async def _grow(self, topic: TopicName, partitions: int) -> None:
        parent = self._settled_parent(topic)
        replace(parent.spec, partitions=partitions)  # which refuses too many
        await self._make_all_missing(parent, partitions)

    async def show(self, topic: TopicName, partitions: int) -> None:
        """Make the partitions that `grow` created visible to clients."""
        former = self._parent(topic)
        if former.is_whole:
            return  # they are
        await self._again(self._show, topic, partitions)
        # Subscriptions that were created in between, too
        await self._subscribed_from(topic, former.spec.partitions)

    async def _show(self, topic: TopicName, partitions: int) -> None:
        parent = self._settled_parent(topic)
        if parent.spec.partitions < partitions:
            await self._change_parent(parent, partitions=partitions)

    async def _subscribed_from(self, topic: TopicName, first: int) -> list[TopicRecord]:
        parts = [part for part in self._index.partitions(topic) if _number(part) >= first]
        for part in parts:
            await self._subscribe_as_siblings(part)
        return parts

    def check_settled(self, topic: TopicName) -> None:
        """Raise `Conflict` if a partitioned topic is being created, deleted or restored."""
        self._settled_parent(topic)

    # -- deletion ------------------------------------------------------------------------------------------------

    async def delete(
        self, topic: TopicName, grace: Grace | None, guards: Sequence[Guard]
    ) -> list[TopicRecord]:
        """Delete a topic with all its partitions, and return them."""
        await self._again(self._begin_deletion, topic, grace, guards)
        parts = self._index.partitions(topic)
        await self._again(self._finish_deletion, topic)
        return parts

    async def _begin_deletion(self, topic: TopicName, grace: Grace | None, guards: Sequence[Guard]) -> None:
        parent = self._parent(topic)
        if parent.spec.stage is not Stage.DELETING:
            writes: list[Write] = []
            if grace is not None:
                tombstone = ParentTombstone(
                    name=parent.name,
                    parent_id=parent.parent_id,
                    spec=parent.spec,
                    call_id=grace.call_id,
                    until_ms=grace.until_ms,
                )
                writes.append(Put(keys.parent_tombstone_key(parent.parent_id), tombstone.to_json()))
            # An unfinished restoration of an earlier deletion ends: the next start must not continue it.
            former = {
                each.call_id
                for each in self._restorable.topics.values()
                if each.parent_id == parent.parent_id
            }
            writes += [
                Delete(keys.decision_key(call_id))
                for call_id in former
                if self._restorable.decisions.get(call_id)
            ]
            await self._change_parent(parent, *writes, guards=guards, stage=Stage.DELETING)

    async def _finish_deletion(self, topic: TopicName) -> None:
        """Delete the remaining partitions, then the parent. No broker adds any, because the parent is marked."""
        parent = self._index.partitioned(topic)
        if parent is None:
            return
        tombstone = self._restorable.parents.get(parent.parent_id)
        for part in self._index.partitions(topic):
            if tombstone is None:
                await self._change(
                    [Delete(part.key), *deletions_of(part.topic_id)], [self._records.as_known(part)]
                )
            else:
                grace = Grace(call_id=tombstone.call_id, until_ms=tombstone.until_ms)
                await self._tombstones.delete_topic(part.topic, grace, parent.parent_id)
        await self._change([Delete(keys.partitioned_key(topic))], [self._records.as_known(parent)])

    async def _drop_empty_parent(self, topic: TopicName) -> None:
        """Delete a parent without partitions, so that the name is free: its creator died before the first partition."""
        parent = self._index.partitioned(topic)
        if parent is not None and not parent.spec.declared and not self._index.partitions(topic):
            await self._change([Delete(keys.partitioned_key(topic))], [self._records.as_known(parent)])

    # -- restoration ---------------------------------------------------------------------------------------------

    async def restore(self, call_id: str) -> list[TopicRecord] | None:
        """Restore a topic with all its partitions. None: the deletion took no topic of format 1. Idempotent.

        Raises:
            TopicNotFound: its grace is over.
            NameReused: another topic has the name now, and nothing has changed. Or a partition has the name of one of its
                partitions, and all others are back.
            NamespaceNotFound: its namespace is gone.
        """
        mine = [each for each in self._restorable.topics.values() if each.call_id == call_id]
        for parent in list(self._restorable.parents.values()):
            # A partition that could not be restored with its topic may be after another deletion of the whole.
            if parent.call_id == call_id or any(each.parent_id == parent.parent_id for each in mine):
                key = keys.parent_tombstone_key(TopicId(parent.parent_id))
                async with self._tombstones.restoring(call_id, key, TopicNotFound):
                    return await self._restore(parent, call_id)
        for part in mine:
            if part.parent_id is not None:
                return [await self._again(self._restore_part, part)]
        return None

    async def _restore_part(self, tombstone: TopicTombstone) -> TopicRecord:
        topic_id, name = TopicId(tombstone.topic_id), TopicName.parse(tombstone.name)
        key, tombstone_key = keys.topic_key(name), keys.topic_tombstone_key(topic_id)
        if (
            topic_id not in self._restorable.topics
            or self._restorable.decisions.get(tombstone.call_id) is False
        ):
            raise not_kept(TopicNotFound, tombstone.call_id)
        parent = self._index.partitioned(name.base)
        if parent is None or parent.is_whole or parent.parent_id != tombstone.parent_id:
            raise name_reused(tombstone.name)
        guards = [
            Absent(key),
            self._restorable.unchanged(tombstone_key),
            self._records.namespace_is(name.namespace),
            self._records.as_known(parent),
        ]
        spec = replace(tombstone.spec, identity=topic_id)
        try:
            await self._change([Put(key, spec.to_json()), Delete(tombstone_key)], guards)
        except GuardFailed as error:
            if error.guard.key != key:
                raise
            await self._records.refresh(key)
            raise name_reused(tombstone.name) from error
        return self._index.topic(name)

    async def _restore(self, tombstone: ParentTombstone, call_id: str) -> list[TopicRecord]:
        name = TopicName.parse(tombstone.name)
        key = keys.partitioned_key(name)
        known = self._index.partitioned(name)
        if known is None:
            spec = replace(tombstone.spec, stage=Stage.RESTORING, identity=tombstone.parent_id)
            guards = [
                Absent(key),
                Absent(keys.topic_key(name)),
                self._records.namespace_is(name.namespace),
            ]
            try:
                await self._change([Put(key, spec.to_json())], guards)
            except GuardFailed as error:
                await self._records.refresh(error.guard.key)
                raise name_reused(tombstone.name) from error
        elif known.parent_id != tombstone.parent_id:
            raise name_reused(tombstone.name)
        elif known.spec.stage is Stage.DELETING:  # the deletion did not come to its end
            await self._change_parent(known, stage=Stage.RESTORING)
        return await self._finish_restoration(name, call_id)

    async def _finish_restoration(self, name: TopicName, call_id: str | None = None) -> list[TopicRecord]:
        """Restore the partitions that are still missing, then mark the topic as ready.

        If two have the same name, the one of this deletion is restored, and the other stays deleted.

        Raises:
            NameReused: some stay deleted. The topic is ready without them.
        """
        parent = self._index.partitioned(name)
        assert parent is not None, "the parent comes back first and goes last"
        missing = [each for each in self._restorable.topics.values() if each.parent_id == parent.parent_id]
        stranded = []
        for part in sorted(missing, key=lambda each: each.call_id != call_id):
            if self._restorable.decisions.get(part.call_id) is False:
                continue  # of an earlier deletion, whose grace has ended
            if self._index.find_topic(TopicName.parse(part.name)) is None:
                await self._again(self._restore_part, part)
            else:
                stranded.append(part)
        gone = Delete(keys.parent_tombstone_key(parent.parent_id))
        await self._change_parent(parent, gone, stage=Stage.READY)
        if any(each.call_id == call_id for each in stranded):
            raise stranded_partition(stranded[0])
        return self._index.partitions(name)

    async def forget(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        """Delete the tombstones of partitions whose grace is over. Return the ids whose data may be deleted.

        Args:
            among: only of these topics.
        """
        gone: list[TopicId] = []
        for topic_id, tombstone in self._restorable.expired(self._restorable.topics, now_ms):
            parent = tombstone.parent_id
            if parent is None or self._restorable.is_named(topic_id):
                continue
            if among is not None and topic_id not in among:
                continue
            known = self._index.partitioned(TopicName.parse(tombstone.name).base)
            if known is not None and known.parent_id == parent and known.spec.stage is Stage.DELETING:
                continue  # more of the same deletion is still to be deleted
            key = keys.topic_tombstone_key(topic_id)
            writes: list[Write] = [Delete(key), *deletions_of(topic_id)]
            siblings = [each for each in self._restorable.topics.values() if each.parent_id == parent]
            if len(siblings) == 1:
                writes.append(Delete(keys.parent_tombstone_key(TopicId(parent))))
            if await self._tombstones.forget(writes, key, tombstone.call_id, several=True):
                gone.append(topic_id)
        return gone

    # -- after a crash -------------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Finish interrupted changes. Those that cannot be finished are quarantined."""
        for parent in self._index.all_partitioned():
            if not parent.is_whole:
                key = keys.partitioned_key(parent.topic)
                with self._records.quarantine.finishing(key, "topics.delete", topic=parent.name):
                    await self._resume(parent)

    async def _resume(self, parent: PartitionedRecord) -> None:
        present = _one_past(self._index.partitions(parent.topic))
        match parent.spec.stage:
            case Stage.CREATING:
                await self._again(self._finish_creation, parent.topic)
            case Stage.DELETING:
                await self._again(self._finish_deletion, parent.topic)
            case Stage.RESTORING:
                await self._again(self._finish_restoration, parent.topic)
            case Stage.READY if not present:
                await self._again(self._drop_empty_parent, parent.topic)
            case Stage.READY if (
                present > parent.spec.partitions and self._index.format.metadata_format < WHOLE
            ):
                await self.grow(parent.topic, present)
                await self.show(parent.topic, present)

    async def existing(self, parent: PartitionedRecord) -> list[TopicRecord]:
        """Return the partitions of a topic whose name is taken. A creation under way is finished first.

        Raises:
            Conflict: it is being restored from a deletion.
        """
        if parent.spec.stage is Stage.RESTORING:
            raise Conflict(f"topic {parent.name} is being restored: try again", topic=parent.name)
        if parent.spec.stage is Stage.CREATING:
            with contextlib.suppress(AlreadyExists):  # it is finished
                return await self.create(parent.topic, parent.spec.partitions, parent.spec.settings)
        return self._index.partitions(parent.topic)

    # -- parts of these ------------------------------------------------------------------------------------------

    def _parent(self, topic: TopicName) -> PartitionedRecord:
        parent = self._index.partitioned(topic)
        if parent is None:
            raise TopicNotFound(f"topic {topic} does not exist", topic=str(topic))
        return parent

    def _settled_parent(self, topic: TopicName) -> PartitionedRecord:
        parent = self._parent(topic)
        if parent.spec.stage is not Stage.READY:
            raise Conflict(f"{topic} is {parent.spec.stage}: try again in a moment", topic=str(topic))
        return parent

    def _spec(
        self,
        topic: TopicName,
        settings: TopicSettings,
        *,
        declared: bool,
        partitions: int,
        stage: Stage = Stage.READY,
    ) -> PartitionedSpec:
        return PartitionedSpec(
            name=str(topic),
            created_at_ms=self._records.wall_ms(),
            partitions=partitions,
            declared=declared,
            stage=stage,
            settings=settings,
        )

    def _topic_spec(self, topic: TopicName, settings: TopicSettings) -> TopicSpec:
        return TopicSpec(
            name=str(topic),
            created_at_ms=self._records.wall_ms(),
            partition=topic.partition,
            settings=settings,
        )


def _number(part: TopicRecord) -> int:
    assert part.topic.partition is not None
    return part.topic.partition


def _one_past(parts: Sequence[TopicRecord]) -> int:
    """Return one more than the highest partition index. Official clients may have left gaps."""
    return _number(parts[-1]) + 1 if parts else 0
