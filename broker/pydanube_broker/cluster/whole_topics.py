"""Partitioned topics in metadata format 2: one record names all partitions, and one transaction decides each change.

A deletion moves the record, with the ids, to its tombstone, and an undo moves it back. So at every revision an id is named
by a record, by a tombstone, or by neither. An id that neither names is never named again: its assignment,
subscriptions and clients are left over, and the leader deletes them (`sweep`). That makes guards on the record
unnecessary where those are written.

Partitions that official clients create one by one are joined: the creations that wait at a broker are one transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio
from pydanube_core.errors import AlreadyExists, ClusterError, Conflict, Overloaded, TopicNotFound
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import MAX_OPERATIONS, Delete, Guard, GuardFailed, Put

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstone_records import ParentTombstone, name_reused, not_kept
from pydanube_broker.cluster.deleting.tombstones import deletions_of
from pydanube_broker.cluster.id_blocks import IdBlocks
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    PartitionedRecord,
    PartitionedSpec,
    Stage,
    TopicRecord,
    TopicSettings,
)
from pydanube_broker.cluster.registry_records import RegistryRecords
from pydanube_broker.records import Change
from pydanube_broker.to_the_end import to_the_end

#: adds to a change the guards of a deletion of so many logs that is right only while their owners keep them closed
AddGuards = Callable[[Change, int], Awaitable[None]]

_ADD_ATTEMPTS: Final = 200  # each that fails means that another broker added partitions
_WRITES_A_TOPIC: Final = 4
_SWEPT_AT_ONCE: Final = (MAX_OPERATIONS - 1) // _WRITES_A_TOPIC  # one operation for the leader's guard


@dataclass(slots=True, eq=False)
class _Wanted:
    """A partition that an official client creates."""

    topic: TopicName
    settings: TopicSettings
    topic_id: int | None = None
    error: ClusterError | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)


class WholeTopics:
    """Create, grow, delete and restore partitioned topics of format 2."""

    def __init__(self, records: RegistryRecords, ids: IdBlocks) -> None:
        self._records = records
        self._index = records.index
        self._restorable = records.restorable
        self._ids = ids
        # Partitions that wait for the caller which adds to a topic
        self._adding: dict[TopicName, list[_Wanted]] = {}

    async def create(self, topic: TopicName, partitions: int, settings: TopicSettings) -> list[TopicRecord]:
        """Create a topic with all its partitions. Raises as `check_topic_is_free`."""
        ids: list[int] = []

        async def decide(change: Change) -> None:
            self._index.check_topic_is_free(topic, partitions=partitions, settings=settings)
            ids.extend(await self._ids.take(partitions - len(ids)))
            spec = PartitionedSpec(
                name=str(topic),
                created_at_ms=self._records.wall_ms(),
                partitions=partitions,
                declared=True,
                stage=Stage.READY,
                settings=settings,
                ids=tuple(ids),
            )
            self._put_new(change, topic, spec)

        await self._records.change(decide)
        return self._index.partitions(topic)

    def _put_new(self, change: Change, topic: TopicName, spec: PartitionedSpec) -> None:
        change.absent(keys.partitioned_key(topic))
        change.absent(keys.topic_key(topic))
        change.guard(self._records.namespace_is(topic.namespace))
        change.put(keys.partitioned_key(topic), spec)

    async def grow(self, topic: TopicName, partitions: int) -> list[TopicRecord]:
        """Add partitions up to a number, and return the new ones. Raises `Conflict`: it has as many."""
        more: list[int] = []

        async def decide(change: Change) -> int:
            parent = self._whole(topic)
            present = len(parent.spec.ids or ())
            if partitions <= present:
                raise Conflict(f"{topic} has partitions by now: {present}", topic=str(topic), retryable=False)
            replace(parent.spec, partitions=partitions, ids=None)  # which refuses too many
            more.extend(await self._ids.take(max(0, partitions - present - len(more))))
            self._name(change, parent, [*(parent.spec.ids or ()), *more[: partitions - present]])
            return present

        present = (await self._records.change(decide)).result
        return [part for part in self._index.partitions(topic) if (part.partition or 0) >= present]

    async def shrink(self, topic: TopicName, partitions: int, add_guards: AddGuards) -> list[TopicRecord]:
        """Delete the partitions from an index on, in one transaction, and return them.

        Args:
            add_guards: adds the guards that hold while the owners of so many logs keep them closed.

        Raises `TopicNotFound`, and `Conflict` if none would be left, or as `add_guards`. Nothing has changed.
        """

        async def decide(change: Change) -> list[TopicRecord]:
            parent = self._whole(topic)
            dropped = [part for part in self._index.partitions(topic) if (part.partition or 0) >= partitions]
            if not dropped:
                return []
            await add_guards(change, len(dropped))
            ids = list((parent.spec.ids or ())[:partitions])
            while ids and ids[-1] is None:
                ids.pop()
            if not ids:
                raise Conflict(
                    f"{topic} has no partition below {partitions}", topic=str(topic), retryable=False
                )
            self._name(change, parent, ids)
            return dropped

        return (await self._records.change(decide)).result

    async def add(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        """Create one partition, and its topic if there is none. Raises as `check_topic_is_free`, `Overloaded`."""
        wanted, base = _Wanted(topic, settings), topic.base
        waiting = self._adding.get(base)
        if waiting is not None:  # the caller that adds to this topic now takes it along
            waiting.append(wanted)
            await wanted.settled.wait()
        else:
            self._adding[base] = [wanted]
            await self._add_waiting(base)
        if wanted.error is not None:
            raise wanted.error
        return self._index.topic(topic)

    @to_the_end
    async def _add_waiting(self, base: TopicName) -> None:
        waiting = self._adding[base]
        try:
            while waiting:
                batch = waiting[:]
                waiting.clear()
                await self._add_batch(base, batch)
        finally:
            del self._adding[base]

    async def _add_batch(self, base: TopicName, batch: Sequence[_Wanted]) -> None:
        try:
            try:
                await self._records.change(partial(self._try_to_add, base, batch), attempts=_ADD_ATTEMPTS)
            except GuardFailed as error:
                raise Overloaded(
                    f"too many brokers add partitions to {base}: try again",
                    topic=str(base),
                    retry_after_ms=500,
                ) from error
        except ClusterError as error:
            for wanted in batch:
                wanted.error = wanted.error or error
        finally:
            for wanted in batch:
                wanted.settled.set()

    async def _try_to_add(self, base: TopicName, batch: Sequence[_Wanted], change: Change) -> None:
        parent = self._index.partitioned(base)
        if parent is not None and not parent.is_whole:
            raise _not_converted(base)
        ids = [] if parent is None else list(parent.spec.ids or ())
        settings = None
        for wanted in batch:
            index = wanted.topic.partition
            assert index is not None, "only for names that end in -part-<n>"
            wanted.error = None
            try:
                self._index.check_topic_is_free(wanted.topic, partitions=0, settings=wanted.settings)
                if index < len(ids) and ids[index] is not None:  # twice in this batch
                    raise AlreadyExists(f"topic {wanted.topic} exists", topic=str(wanted.topic))
            except ClusterError as error:
                wanted.error = error
                continue
            if wanted.topic_id is None:
                wanted.topic_id = await self._ids.next()
            ids += [None] * (index + 1 - len(ids))
            ids[index] = wanted.topic_id
            settings = settings or wanted.settings
        if settings is None:
            return
        if parent is not None:
            self._name(change, parent, ids)
            return
        spec = PartitionedSpec(
            name=str(base),
            created_at_ms=self._records.wall_ms(),
            partitions=len(ids),
            declared=False,
            stage=Stage.READY,
            settings=settings,
            ids=tuple(ids),
        )
        self._put_new(change, base, spec)

    def _name(self, change: Change, parent: PartitionedRecord, ids: Sequence[int | None]) -> None:
        """Write which partitions a topic has."""
        change.guard(self._records.as_known(parent))
        change.guard(self._records.namespace_is(parent.topic.namespace))
        change.put(
            keys.partitioned_key(parent.topic), replace(parent.spec, partitions=len(ids), ids=tuple(ids))
        )

    async def delete(self, topic: TopicName, grace: Grace | None, add_guards: AddGuards) -> list[TopicRecord]:
        """Delete a topic with all its partitions, and return them. With a grace it can be restored. `add_guards`: as in `shrink`."""

        async def decide(change: Change) -> list[TopicRecord]:
            parent = self._whole(topic)
            parts = self._index.partitions(topic)
            await add_guards(change, len(parts))
            change.guard(self._records.as_known(parent))
            if grace is not None:  # the tombstone first, so that the data of a missing topic is kept
                tombstone = ParentTombstone(
                    name=parent.name,
                    parent_id=parent.parent_id,
                    spec=parent.spec,
                    call_id=grace.call_id,
                    until_ms=grace.until_ms,
                )
                change.put(keys.parent_tombstone_key(parent.parent_id), tombstone)
            change.delete(keys.partitioned_key(topic))
            return parts

        return (await self._records.change(decide)).result

    async def restore(self, tombstone: ParentTombstone) -> list[TopicRecord]:
        """Restore a topic with all its partitions.

        Raises:
            TopicNotFound: its grace is over.
            NameReused: another topic, named in the message, has the name. Nothing has changed.
            NamespaceNotFound: its namespace is gone.
        """
        name, parent_id = TopicName.parse(tombstone.name), TopicId(tombstone.parent_id)
        tombstone_key = keys.parent_tombstone_key(parent_id)

        async def decide(change: Change) -> None:
            if parent_id not in self._restorable.parents:
                raise not_kept(TopicNotFound, tombstone.call_id)
            if (stands := self._index.partitioned(name)) is not None:
                count = len(self._index.partitions(stands.topic))
                raise name_reused(tombstone.name, f"one with {count} partitions")
            if self._index.find_topic(name) is not None:
                raise name_reused(tombstone.name, "one without partitions")
            change.guard(self._restorable.unchanged(tombstone_key))
            self._put_new(change, name, replace(tombstone.spec, stage=Stage.READY, identity=parent_id))
            change.delete(tombstone_key)

        await self._records.change(decide)
        return self._index.partitions(name)

    async def forget(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        """Delete the tombstones of whole topics whose grace is over, and return the ids of their partitions.

        Args:
            among: only topics with one of these partitions.
        """
        gone: list[TopicId] = []
        for parent_id, tombstone in list(self._restorable.parents.items()):
            ids = [TopicId(each) for each in tombstone.spec.ids or () if each is not None]
            if not ids or tombstone.until_ms > now_ms:
                continue
            if among is not None and not any(each in among for each in ids):
                continue
            key = keys.parent_tombstone_key(parent_id)
            try:
                await self._records.transact([Delete(key)], guards=[self._restorable.unchanged(key)])
            except GuardFailed:
                continue  # it was restored
            gone += ids
        return gone

    # -- keys that are left of deleted partitions ----------------------------------------------------------------

    async def sweep(self, leadership: Guard, found: Iterable[TopicId] = ()) -> int:
        """Delete assignments, subscriptions and clients of ids that no record and no tombstone names. For the leader.

        Args:
            found: ids with assignments, as the store had them before this call.

        Returns the number of ids. Idempotent.
        """
        if self._index.format.metadata_format < 2 or self._may_name_more():
            return 0
        candidates = self._index.dropped | set(found) | self._index.subscribed_ids()
        if not (candidates := {each for each in candidates if self._is_unnamed(each)}):
            self._index.dropped.clear()
            return 0
        # Read back: the index has everything that came before. A reading of both trees is not one moment.
        await self._records.transact([Put(keys.FORMAT, self._index.format.to_json())], guards=[leadership])
        if self._may_name_more():
            return 0
        left = sorted(each for each in candidates if self._is_unnamed(each))
        for start in range(0, len(left), _SWEPT_AT_ONCE):
            some = left[start : start + _SWEPT_AT_ONCE]
            writes = [write for topic_id in some for write in deletions_of(topic_id)]
            await self._records.transact(writes, guards=[leadership])
        self._index.dropped -= candidates
        return len(left)

    def _is_unnamed(self, topic_id: TopicId) -> bool:
        return self._index.topic_by_id(topic_id) is None and topic_id not in self._restorable.topics

    def _may_name_more(self) -> bool:
        """Return whether a record that cannot be read may name partitions."""
        trees = (keys.TOPICS, keys.PARTITIONED, keys.TOPIC_TOMBSTONES, keys.PARENT_TOMBSTONES)
        return any(self._records.quarantine.any_in(tree) for tree in trees)

    def _whole(self, topic: TopicName) -> PartitionedRecord:
        parent = self._index.partitioned(topic)
        if parent is None:
            raise TopicNotFound(f"topic {topic} does not exist", topic=str(topic))
        if not parent.is_whole:
            raise _not_converted(topic)
        return parent


def _not_converted(topic: TopicName) -> Conflict:
    return Conflict(
        f"{topic} is converted to the metadata's new format: try again in a moment",
        topic=str(topic),
        retry_after_ms=500,
    )
