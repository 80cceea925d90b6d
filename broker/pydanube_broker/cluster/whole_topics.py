"""Partitioned topics in metadata format 2: one record names all partitions, and one transaction decides each change.

A deletion moves the record, with the ids, to its tombstone, and an undo moves it back. So at every revision an id is named
by a record, by a tombstone, or by neither. An id that neither names is never named again: its assignment,
subscriptions and clients are left over, and the leader deletes them (`sweep`). That makes guards on the record
unnecessary where those are written.

Partitions that official clients create one by one are joined: the creations that wait at a broker are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import anyio
from pydanube_core.errors import AlreadyExists, ClusterError, Conflict, Overloaded, TopicNotFound
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    Absent,
    Delete,
    DeleteRange,
    Guard,
    GuardFailed,
    MetadataStore,
    Put,
    Write,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.id_blocks import IdBlocks
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    PartitionedRecord,
    PartitionedSpec,
    Stage,
    SubscriptionRecord,
    TopicRecord,
    TopicSettings,
)
from pydanube_broker.cluster.subscription_operations import SubscriptionOperations
from pydanube_broker.cluster.tombstone_records import ParentTombstone, name_reused, not_kept
from pydanube_broker.cluster.tombstones import Tombstones

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


class WholeTopics(SubscriptionOperations, Tombstones):
    """Create, grow, delete and restore partitioned topics of format 2."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        super().__init__(store, wall_ms=wall_ms)
        self.ids = IdBlocks(store)
        self.raises_format = True  # whether a lone broker may convert metadata of an older format
        self._adding: dict[
            TopicName, list[_Wanted]
        ] = {}  # partitions that wait for the caller which adds to a topic

    async def create_whole(
        self, topic: TopicName, partitions: int, settings: TopicSettings
    ) -> list[TopicRecord]:
        """Create a topic with all its partitions. Raises as `check_topic_is_free`."""
        ids: list[int] = []

        async def attempt() -> list[TopicRecord]:
            self.index.check_topic_is_free(topic, partitions=partitions, settings=settings)
            while len(ids) < partitions:
                ids.append(await self.ids.next())
            spec = self._partitioned_spec(topic, settings, declared=True, ids=ids)
            key = keys.partitioned_key(topic)
            guards = [Absent(key), Absent(keys.topic_key(topic)), self._namespace_is(topic.namespace)]
            await self.change([Put(key, spec.to_json())], guards, whole=True)
            return self.index.partitions(topic)

        return await self.again(attempt)

    async def grow_whole(self, topic: TopicName, partitions: int) -> list[TopicRecord]:
        """Add partitions up to a number, and return the new ones. Raises `Conflict`: it has as many."""

        async def attempt() -> list[TopicRecord]:
            parent = self._whole(topic)
            present = len(parent.spec.ids or ())
            if partitions <= present:
                raise Conflict(f"{topic} has partitions by now: {present}", topic=str(topic), retryable=False)
            replace(parent.spec, partitions=partitions, ids=None)  # which refuses too many
            more = [await self.ids.next() for _ in range(partitions - present)]
            await self._name(parent, [*(parent.spec.ids or ()), *more])
            return [part for part in self.index.partitions(topic) if (part.partition or 0) >= present]

        return await self.again(attempt)

    async def drop_from_whole(
        self, parent: PartitionedRecord, partitions: int, guards: Sequence[Guard]
    ) -> None:
        """Take the partitions from an index on away. Raises `GuardFailed`; `Conflict`: none would be left."""
        ids = list((parent.spec.ids or ())[:partitions])
        while ids and ids[-1] is None:
            ids.pop()
        if not ids:
            raise Conflict(
                f"{parent.name} has no partition below {partitions}", topic=parent.name, retryable=False
            )
        await self._name(parent, ids, guards)

    async def add_to_whole(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        """Create one partition, and its topic if there is none. Raises as `check_topic_is_free`, `Overloaded`."""
        wanted, base = _Wanted(topic, settings), topic.base
        waiting = self._adding.get(base)
        if waiting is not None:  # the caller that adds to this topic now takes it along
            waiting.append(wanted)
            await wanted.settled.wait()
        else:
            waiting = self._adding[base] = [wanted]
            with anyio.CancelScope(shield=True):
                try:
                    while waiting:
                        batch = waiting[:]
                        waiting.clear()
                        await self._add_batch(base, batch)
                finally:
                    del self._adding[base]
        if wanted.error is not None:
            raise wanted.error
        return self.index.topic(topic)

    async def _add_batch(self, base: TopicName, batch: Sequence[_Wanted]) -> None:
        try:
            for _ in range(_ADD_ATTEMPTS):
                try:
                    await self._try_to_add(base, batch)
                    return
                except GuardFailed as error:
                    await self._refresh(error.guard.key)
            raise Overloaded(
                f"too many brokers add partitions to {base}: try again", topic=str(base), retry_after_ms=500
            )
        except ClusterError as error:
            for wanted in batch:
                wanted.error = wanted.error or error
        finally:
            for wanted in batch:
                wanted.settled.set()

    async def _try_to_add(self, base: TopicName, batch: Sequence[_Wanted]) -> None:
        parent = self.index.partitioned(base)
        if parent is not None and not parent.is_whole:
            raise _not_converted(base)
        ids = [] if parent is None else list(parent.spec.ids or ())
        settings = None
        for wanted in batch:
            index = wanted.topic.partition
            assert index is not None, "only for names that end in -part-<n>"
            wanted.error = None
            try:
                self.index.check_topic_is_free(wanted.topic, partitions=0, settings=wanted.settings)
                if index < len(ids) and ids[index] is not None:  # twice in this batch
                    raise AlreadyExists(f"topic {wanted.topic} exists", topic=str(wanted.topic))
            except ClusterError as error:
                wanted.error = error
                continue
            if wanted.topic_id is None:
                wanted.topic_id = await self.ids.next()
            ids += [None] * (index + 1 - len(ids))
            ids[index] = wanted.topic_id
            settings = settings or wanted.settings
        if settings is None:
            return
        if parent is not None:
            await self._name(parent, ids)
            return
        key, spec = (
            keys.partitioned_key(base),
            self._partitioned_spec(base, settings, declared=False, ids=ids),
        )
        guards = [Absent(key), Absent(keys.topic_key(base)), self._namespace_is(base.namespace)]
        await self.change([Put(key, spec.to_json())], guards, whole=True)

    async def _name(
        self, parent: PartitionedRecord, ids: Sequence[int | None], guards: Sequence[Guard] = ()
    ) -> None:
        """Write which partitions a topic has."""
        spec = replace(parent.spec, partitions=len(ids), ids=tuple(ids))
        guards = [*guards, self._as_known(parent), self._namespace_is(parent.topic.namespace)]
        await self.change([Put(keys.partitioned_key(parent.topic), spec.to_json())], guards, whole=True)

    async def delete_whole(
        self, topic: TopicName, grace: Grace | None, guards: Sequence[Guard] = ()
    ) -> list[TopicRecord]:
        """Delete a topic with all its partitions, and return them. With a grace it can be restored."""

        async def attempt() -> list[TopicRecord]:
            parent = self._whole(topic)
            parts = self.index.partitions(topic)
            writes: list[Write] = []
            if grace is not None:  # the tombstone first, so that the data of a missing topic is kept
                tombstone = ParentTombstone(
                    name=parent.name,
                    parent_id=parent.parent_id,
                    spec=parent.spec,
                    call_id=grace.call_id,
                    until_ms=grace.until_ms,
                )
                writes.append(Put(keys.parent_tombstone_key(parent.parent_id), tombstone.to_json()))
            writes.append(Delete(keys.partitioned_key(topic)))
            await self.change(writes, [self._as_known(parent), *guards], whole=True)
            return parts

        return await self.again(attempt)

    async def restore_whole(self, tombstone: ParentTombstone) -> list[TopicRecord]:
        """Restore a topic with all its partitions.

        Raises:
            TopicNotFound: its grace is over.
            NameReused: another topic, named in the message, has the name. Nothing has changed.
            NamespaceNotFound: its namespace is gone.
        """
        name, parent_id = TopicName.parse(tombstone.name), TopicId(tombstone.parent_id)
        key, tombstone_key = keys.partitioned_key(name), keys.parent_tombstone_key(parent_id)

        async def attempt() -> list[TopicRecord]:
            if parent_id not in self.restorable_parents:
                raise not_kept(TopicNotFound, tombstone.call_id)
            if (stands := self.index.partitioned(name)) is not None:
                raise name_reused(
                    tombstone.name, f"one with {len(self.index.partitions(stands.topic))} partitions"
                )
            if self.index.find_topic(name) is not None:
                raise name_reused(tombstone.name, "one without partitions")
            spec = replace(tombstone.spec, stage=Stage.READY, identity=parent_id)
            guards = [
                Absent(key),
                Absent(keys.topic_key(name)),
                self.lies_there(tombstone_key),
                self._namespace_is(name.namespace),
            ]
            await self.change([Put(key, spec.to_json()), Delete(tombstone_key)], guards, whole=True)
            return self.index.partitions(name)

        return await self.again(attempt)

    async def _forget_wholes(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        """Delete the tombstones of whole topics whose grace is over, and return the ids of their partitions.

        Args:
            among: only topics with one of these partitions.
        """
        gone: list[TopicId] = []
        for parent_id, tombstone in list(self.restorable_parents.items()):
            ids = [TopicId(each) for each in tombstone.spec.ids or () if each is not None]
            if not ids or tombstone.until_ms > now_ms:
                continue
            if among is not None and not any(each in among for each in ids):
                continue
            key = keys.parent_tombstone_key(parent_id)
            try:
                await self.change([Delete(key)], [self.lies_there(key)], whole=True)
            except GuardFailed:
                continue  # it was restored
            gone += ids
        return gone

    async def restore_topics(self, call_id: str) -> list[TopicRecord]:
        for tombstone in list(self.restorable_parents.values()):
            if tombstone.call_id == call_id and tombstone.spec.ids is not None:
                return await self.restore_whole(tombstone)
        return await super().restore_topics(call_id)

    async def forget_topics(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        return await self._forget_wholes(now_ms, among) + await super().forget_topics(now_ms, among)

    # Keys that are left of deleted partitions

    async def sweep(self, leadership: Guard, found: Iterable[TopicId] = ()) -> int:
        """Delete assignments, subscriptions and clients of ids that no record and no tombstone names. For the leader.

        Args:
            found: ids with assignments, as the store had them before this call.

        Returns the number of ids. Idempotent.
        """
        if self.index.format.metadata_format < 2 or self._may_name_more():
            return 0
        candidates = self.index.dropped | set(found) | self.index.subscribed_ids()
        if not (candidates := {each for each in candidates if self._is_unnamed(each)}):
            self.index.dropped.clear()
            return 0
        # Read back: the index has everything that came before. A reading of both trees is not one moment.
        await self.change([Put(keys.FORMAT, self.index.format.to_json())], [leadership], whole=True)
        if self._may_name_more():
            return 0
        left = sorted(each for each in candidates if self._is_unnamed(each))
        for start in range(0, len(left), _SWEPT_AT_ONCE):
            writes: list[Write] = []
            for topic_id in left[start : start + _SWEPT_AT_ONCE]:
                writes += [
                    Delete(keys.assignment_key(topic_id)),
                    DeleteRange(keys.subscriptions_range(topic_id)),
                    DeleteRange(keys.subscription_tombstones_range(topic_id)),
                    DeleteRange(keys.clients_range(topic_id)),
                ]
            await self.change(writes, [leadership], whole=True)
        self.index.dropped.clear()
        return len(left)

    def _is_unnamed(self, topic_id: TopicId) -> bool:
        return self.index.topic_by_id(topic_id) is None and topic_id not in self.restorable_topics

    def _may_name_more(self) -> bool:
        """Return whether a record that cannot be read may name partitions."""
        trees = (keys.TOPICS, keys.PARTITIONED, keys.TOPIC_TOMBSTONES, keys.PARENT_TOMBSTONES)
        return any(self.aside.any_in(tree) for tree in trees)

    async def subscribe_as_siblings(self, parts: Sequence[TopicRecord]) -> None:
        """Give partitions without messages the subscriptions of their siblings, from the first message on. For the owner."""
        siblings: dict[TopicName, dict[str, SubscriptionRecord]] = {}
        for part in parts:
            if not part.is_named_by_parent or part.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
                continue
            if (found := siblings.get(part.topic.base)) is None:
                found = siblings[part.topic.base] = self.index.subscriptions_of_parts(part.topic.base)
            for one in found.values():
                if self.index.topic_by_id(part.topic_id) is not None:
                    await self.ensure_subscription(
                        part.topic_id, one.name, type=one.type, start_offset=0, options=one.spec.options
                    )

    # Parts

    def _parent(self, topic: TopicName) -> PartitionedRecord:
        parent = self.index.partitioned(topic)
        if parent is None:
            raise TopicNotFound(f"topic {topic} does not exist", topic=str(topic))
        return parent

    def _whole(self, topic: TopicName) -> PartitionedRecord:
        parent = self._parent(topic)
        if not parent.is_whole:
            raise _not_converted(topic)
        return parent

    def _partitioned_spec(
        self,
        topic: TopicName,
        settings: TopicSettings,
        *,
        declared: bool,
        ids: Sequence[int | None] | None = None,
        partitions: int = 0,
        stage: Stage = Stage.READY,
    ) -> PartitionedSpec:
        return PartitionedSpec(
            name=str(topic),
            created_at_ms=self._wall_ms(),
            partitions=partitions if ids is None else len(ids),
            declared=declared,
            stage=stage,
            settings=settings,
            ids=None if ids is None else tuple(ids),
        )


def _not_converted(topic: TopicName) -> Conflict:
    return Conflict(
        f"{topic} is converted to the metadata's new format: try again in a moment",
        topic=str(topic),
        retry_after_ms=500,
    )
