"""Namespaces, topics and subscriptions: every change is a guarded transaction, then the index follows.

A partitioned topic is one record, and each of its changes one transaction (`whole_topics`). While a build that knows
only metadata format 1 may read the metadata, each partition has a record of its own instead. Changes then take several
transactions; a record with a `Stage` is written first and settled last, and `resume` finishes them after a crash:

* a partitioned topic: parent `creating` → its partitions one by one → parent `ready`;
* its deletion: parent `deleting` → partitions → parent gone;
* a partition that an official client makes without a parent: parent first (which takes the base name), partition next;
* partitions that are added: each with its siblings' subscriptions → the parent's number of partitions, which makes all
  of them known to clients at once;
* a namespace's deletion: `deleting` (creations fail from here on) → looked through → gone, or `ready` again.

A topic or subscription has a transaction to itself, because its revision becomes its id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import anyio
from pydanube_core.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    NameReused,
    TopicNotFound,
)
from pydanube_core.facts import Grace, UnusedFacts
from pydanube_core.names import (
    TopicName,
)
from pydanube_core.refusals import single_partition, system_is_kept
from pydanube_storage.metadata import (
    Absent,
    Delete,
    DeleteRange,
    Guard,
    GuardFailed,
    ModRevision,
    Put,
    Revision,
    Write,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.id_blocks import IdBlocksRecord
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import IncarnationRecord
from pydanube_broker.cluster.namespace_operations import BUILT_IN_NAMESPACES, NamespaceOperations
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    PartitionedRecord,
    Stage,
    TopicRecord,
    TopicSettings,
    TopicSpec,
)
from pydanube_broker.cluster.registry_writer import WHOLE
from pydanube_broker.cluster.tombstone_records import ParentTombstone
from pydanube_broker.cluster.whole_topics import WholeTopics

T = TypeVar("T")


class TopicCatalog(NamespaceOperations, WholeTopics):
    """The registry of one cluster through one store; look-ups in `index` are immediate.

    `TopicCatalog(store, wall_ms=…)`, then `load()`; in office also `resume()`.
    """

    async def load(self) -> None:
        """Read the registry and the tombstones, watch both from there, and make the namespaces that always exist."""
        await self._feed.begin()
        blocks = await self._store.get(keys.ID_BLOCKS)
        with self.aside.reading(keys.ID_BLOCKS):
            IdBlocksRecord.of(blocks)
        for name in BUILT_IN_NAMESPACES:
            if self.index.find_namespace(name) is None and keys.namespace_key(name) not in self.aside.found:
                await self.again(self._create_namespace, name, {})

    async def resume(self) -> None:
        """Finish changes that a crash interrupted; what cannot be finished is set aside. Idempotent; for the leader."""
        for call_id in [call_id for call_id, comes_back in self._verdicts.items() if comes_back]:
            with self.aside.finishing(keys.verdict_key(call_id), "changes.undo", call_id=call_id):
                await self._bring_back(call_id)
        for parent in self.index.all_partitioned():
            with self.aside.finishing(keys.partitioned_key(parent.topic), "topics.delete", topic=parent.name):
                await self._resume_partitioned(parent)
        for namespace in self.index.namespaces():
            if namespace.spec.stage is Stage.DELETING:
                name = namespace.name
                with self.aside.finishing(keys.namespace_key(name), "namespaces.delete", namespace=name):
                    await self.again(self._settle_namespace, name)

    async def _resume_partitioned(self, parent: PartitionedRecord) -> None:
        if parent.is_whole:
            return
        present = _one_past(self.index.partitions(parent.topic))
        match parent.spec.stage:
            case Stage.CREATING:
                await self.again(self._finish_creation, parent.topic)
            case Stage.DELETING:
                await self.again(self._finish_deletion, parent.topic)
            case Stage.RESTORING:
                await self.again(self._finish_restoration, parent.topic)
            case Stage.READY if not present:
                await self.again(self._drop_empty_parent, parent.topic)
            case Stage.READY if (
                present > parent.spec.partitions and self.index.format.metadata_format < WHOLE
            ):
                await self.make_partitions(parent.topic, present)
                await self.show_partitions(parent.topic, present)

    async def _bring_back(self, call_id: str) -> None:
        """Continue to restore a deleted topic or subscription, and record that it is done."""
        if any(one.call_id == call_id for one in self.restorable_subscriptions.values()):
            await self.restore_subscriptions(call_id)
            return
        with contextlib.suppress(TopicNotFound, NameReused):  # it is back already, but for what is stranded
            await self.restore_topics(call_id)
        if call_id in self._verdicts:
            await self._carried_out(call_id)

    # Topics

    async def create_topic(
        self, topic: TopicName, *, partitions: int = 0, settings: TopicSettings | None = None
    ) -> list[TopicRecord]:
        """Create a plain topic, one partition (a name that ends in `-part-<n>`), or with `partitions` ≥ 1 all parts.

        Returns the topics with a log: one, or the partitions by index. Interrupted, creating a partitioned topic
        again in the same way finishes it, as `resume` does.

        Raises:
            NamespaceNotFound, InvalidName, InvalidArgument, AlreadyExists, Conflict: see `check_topic_is_free`.
        """
        wanted = settings or TopicSettings()
        if partitions:
            return await self._by_format(
                lambda: self.create_whole(topic, partitions, wanted),
                lambda: self._create_of_parts(topic, partitions, wanted),
            )
        if topic.partition is not None:
            made = await self._by_format(
                lambda: self.add_to_whole(topic, wanted), lambda: self._create_part(topic, wanted)
            )
            return [made]
        return [await self.again(self._create_plain, topic, wanted)]

    async def _by_format(self, whole: Callable[[], Awaitable[T]], of_parts: Callable[[], Awaitable[T]]) -> T:
        """Make a change in the metadata's format: of whole topics, or of a record for each partition (format 1)."""
        if self.index.format.metadata_format < WHOLE:
            try:
                return await of_parts()
            except GuardFailed as error:
                if error.guard.key != keys.FORMAT:
                    raise
                await self._refresh(keys.FORMAT)
        return await whole()

    async def _create_of_parts(
        self, topic: TopicName, partitions: int, settings: TopicSettings
    ) -> list[TopicRecord]:
        await self.again(self.begin_partitioned, topic, partitions, settings)
        return await self.again(self._finish_creation, topic)

    async def _create_part(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        made = await self.again(self._create_partition, topic, settings)
        await self._subscribe_as_siblings(made)
        return made

    async def make_partitions(self, topic: TopicName, partitions: int) -> list[TopicRecord]:
        """Create the partitions that a topic lacks to have `partitions`, with their siblings' subscriptions; return the new ones.

        Clients are told of them by `show_partitions`. Interrupted, both again in the same way finish it; `resume`
        finishes with those that were made.

        Raises:
            TopicNotFound, NamespaceNotFound, InvalidArgument.
            Conflict: it has as many, or more; or it is being made, deleted or restored.
        """
        return await self._by_format(
            lambda: self.grow_whole(topic, partitions), lambda: self._make_parts(topic, partitions)
        )

    async def _make_parts(self, topic: TopicName, partitions: int) -> list[TopicRecord]:
        former = self._settled_parent(topic).spec.partitions
        if partitions <= former:
            raise Conflict(f"{topic} has partitions by now: {former}", topic=str(topic), retryable=False)
        await self.again(self._make_partitions, topic, partitions)
        return await self._subscribed_from(topic, former)

    async def show_partitions(self, topic: TopicName, partitions: int) -> None:
        """Make visible to clients the partitions that `make_partitions` made."""
        former = self._parent(topic)
        if former.is_whole:
            return  # they are
        await self.again(self._show_partitions, topic, partitions)
        await self._subscribed_from(topic, former.spec.partitions)  # subscriptions made meanwhile, too

    async def _subscribed_from(self, topic: TopicName, first: int) -> list[TopicRecord]:
        parts = [part for part in self.index.partitions(topic) if _index(part) >= first]
        for part in parts:
            await self._subscribe_as_siblings(part)
        return parts

    async def drop_partitions(
        self, topic: TopicName, partitions: int, *, held: Sequence[UnusedFacts]
    ) -> list[TopicRecord]:
        """Delete the partitions from an index on, which their owners hold as unused, in one transaction; return them.

        Raises:
            TopicNotFound.
            Conflict: an owner has opened one again or was restarted, or the metadata have format 1. Nothing has changed.
        """
        parent = self._whole(topic)
        dropped = [part for part in self.index.partitions(topic) if _index(part) >= partitions]
        if not dropped:
            return []
        guards = await self._still_held(topic, held, len(dropped))
        try:
            await self.drop_from_whole(parent, partitions, guards)
        except GuardFailed as error:
            raise _open_again(topic) from error
        return dropped

    async def existing_topic(self, topic: TopicName) -> list[TopicRecord]:
        """Return the topics with a log under a name that is taken; a creation under way is finished first.

        Raises:
            Conflict: it is coming back from a deletion; in a moment it will be there.
        """
        known = self.index.find_topic(topic)
        if known is not None:
            return [known]
        parent = self.index.partitioned(topic)
        if parent is not None and parent.spec.stage is Stage.RESTORING:
            raise Conflict(f"topic {topic} is coming back: try again", topic=str(topic))
        if parent is not None and parent.spec.stage is Stage.CREATING:
            with contextlib.suppress(AlreadyExists):  # it is finished
                return await self.create_topic(
                    topic, partitions=parent.spec.partitions, settings=parent.spec.settings
                )
        return self.index.partitions(topic)

    async def update_topic(
        self,
        topic: TopicName,
        *,
        policies: Mapping[str, Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[TopicRecord]:
        """Change the settings that are given, of a partitioned topic in all parts; an empty schema removes it.

        Returns the topics with a log. Raises `TopicNotFound`, and `PermissionDenied` for policies and schema of a system topic.
        """
        if topic.is_system and (policies is not None or schema is not None):
            raise system_is_kept(str(topic))
        given = {"policies": policies, "schema": schema, "options": options}
        changes: dict[str, Any] = {name: dict(value) for name, value in given.items() if value is not None}
        if schema is not None and not schema:
            changes["schema"] = None
        if self._is_of_whole(topic):
            await self.again(self._update_parent, topic.base, changes)
            return self._logs(topic)
        if self.index.partitioned(topic) is not None:
            await self.again(self._update_parent, topic, changes)
            return [
                await self.again(self._update_one, part.topic, changes)
                for part in self.index.partitions(topic)
            ]
        return [await self.again(self._update_one, topic, changes)]

    async def decide_schema(
        self, topic: TopicName, decide: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> list[TopicRecord]:
        """Set the schema that `decide` returns for the present one; an empty one removes it. Guarded by what it decided on.

        Two that decide at once do so one after the other. What `decide` raises comes out, with nothing changed. A
        partitioned topic is decided at its parent, and its partitions follow. Returns the topics with a log.

        Raises:
            TopicNotFound.
        """
        if topic.is_system:
            raise system_is_kept(str(topic))
        if self._is_of_whole(topic):
            await self.again(self._decide_parent, topic.base, decide)
            return self._logs(topic)
        if self.index.partitioned(topic) is None:
            return [await self.again(self._decide_one, topic, decide)]
        schema = await self.again(self._decide_parent, topic, decide)
        for part in self.index.partitions(topic):
            if part.settings.schema != schema:
                await self.again(self._update_one, part.topic, {"schema": schema})
        return self.index.partitions(topic)

    async def delete_topic(
        self, topic: TopicName, *, grace: Grace | None = None, held: Sequence[UnusedFacts] = ()
    ) -> list[TopicRecord]:
        """Delete a plain or a whole partitioned topic with its subscriptions and assignments; not its data.

        With a `grace` it can come back (`restore_topics`) and keeps its subscriptions. Returns what was deleted, for
        whoever drops the data, or keeps it. Interrupted, deleting again finishes it. `held`: what its owners returned
        when they closed it as unused (`serving.unused_holds`); then it has no grace.

        Raises:
            TopicNotFound: no such topic.
            Conflict: an owner has opened it again, or was restarted; nothing has changed.
            InvalidArgument: a single partition ("Cannot delete individual partition": official tools look for it).
        """
        if topic.partition is not None and self.index.find_topic(topic) is not None:
            raise single_partition(str(topic))
        guards = await self._still_held(topic, held, len(self.index.partitions(topic)) or 1)
        try:
            if self.index.partitioned(topic) is None:
                if grace is not None:
                    return [await self.delete_topic_with_grace(topic, grace, None)]
                return [await self.again(self._delete_one, topic, guards)]
            return await self._by_format(
                lambda: self.delete_whole(topic, grace, guards),
                lambda: self._delete_parts(topic, grace, guards),
            )
        except GuardFailed as error:
            if error.guard in guards:
                raise _open_again(topic) from error
            raise

    async def _delete_parts(
        self, topic: TopicName, grace: Grace | None, guards: Sequence[Guard]
    ) -> list[TopicRecord]:
        await self.again(self._begin_deletion, topic, grace, guards)
        parts = self.index.partitions(topic)
        await self.again(self._finish_deletion, topic)
        return parts

    def deciding(self, topic: TopicName) -> TopicRecord | PartitionedRecord:
        """Return the record whose transaction decides whether a topic exists. Raises `TopicNotFound`."""
        return self.index.partitioned(topic) or self.index.topic(topic)

    async def touch(self, topic: TopicName) -> None:
        """Write the deciding record again as it is, so that older guards of it fail.

        Raises `TopicNotFound`; `Conflict`: it is being deleted.
        """
        record = self.deciding(topic)
        if isinstance(record, TopicRecord) and not record.is_named_by_parent:
            await self.again(self._update_one, topic, {})
        else:
            self._settled_parent(topic.base)  # a deletion that was decided will be carried out
            await self.again(self._update_parent, topic.base, {})

    def deciding_revision(self, topic: TopicName) -> Revision:
        """Return the revision of the record that decides whether a topic exists. Raises `TopicNotFound`."""
        guard = self._as_known(self.deciding(topic))
        assert isinstance(guard, ModRevision)
        return guard.revision

    async def _still_held(self, topic: TopicName, held: Sequence[UnusedFacts], logs: int) -> list[Guard]:
        """Return the guards of a deletion that is right only while owners keep its logs closed. Raises `Conflict`."""
        guards: list[Guard] = []
        counts = [each.logs for each in held if each.logs is not None]
        if len(counts) == len(held) and held and sum(counts) != logs:
            raise _open_again(topic)  # one is on its way between two brokers
        for each in held:
            broker_id = BrokerId(int(each.broker_id))
            key = keys.incarnation_key(broker_id)
            item = await self._store.get(key)
            if (
                item is None
                or IncarnationRecord.from_json(item.value, key=key).incarnation != each.incarnation
            ):
                raise _open_again(topic)
            guards += [ModRevision(key, item.mod_revision), Absent(keys.removed_key(broker_id))]
        revisions = {each.revision for each in held}
        if len(revisions) > 1:  # the record has changed between two owners' answers
            raise _open_again(topic)
        key = self._as_known(self.deciding(topic)).key
        return guards + [ModRevision(key, Revision(revision)) for revision in revisions]

    # Steps: each decides by the index and makes one guarded change

    async def _create_plain(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        self.index.check_topic_is_free(topic, partitions=0, settings=settings)
        key = keys.topic_key(topic)
        guards = [Absent(key), Absent(keys.partitioned_key(topic)), self._namespace_is(topic.namespace)]
        await self.change([Put(key, self._topic_spec(topic, settings).to_json())], guards)
        return self.index.topic(topic)

    async def _create_partition(self, topic: TopicName, settings: TopicSettings) -> TopicRecord:
        """Make one partition, and its parent before it if there is none."""
        self.index.check_topic_is_free(topic, partitions=0, settings=settings)
        index = topic.partition
        assert index is not None, "only for names that end in -part-<n>"
        base, key, parent_key = topic.base, keys.topic_key(topic), keys.partitioned_key(topic.base)
        parent = self.index.partitioned(base)
        if parent is None:
            spec = self._partitioned_spec(base, settings, declared=False, partitions=index + 1)
            guards = [Absent(parent_key), Absent(keys.topic_key(base)), self._namespace_is(base.namespace)]
            await self.change([Put(parent_key, spec.to_json())], guards)
            parent = self.index.partitioned(base)
            assert parent is not None, "it has just been made"
        writes: list[Write] = [Put(key, self._topic_spec(topic, settings).to_json())]
        if index >= parent.spec.partitions:
            writes.append(Put(parent_key, replace(parent.spec, partitions=index + 1).to_json()))
        guards = [Absent(key), ModRevision(parent_key, parent.revision), self._namespace_is(base.namespace)]
        await self.change(writes, guards)
        return self.index.topic(topic)

    async def _subscribe_as_siblings(self, made: TopicRecord) -> None:
        """Give an added partition the subscriptions of the others, so that they miss none of its messages."""
        if made.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
            return
        siblings = [part for part in self.index.partitions(made.topic.base) if part.topic_id != made.topic_id]
        found = {one.name: one for part in siblings for one in self.index.subscriptions(part.topic_id)}
        for one in found.values():
            await self.ensure_subscription(
                made.topic_id, one.name, type=one.type, start_offset=0, options=one.spec.options
            )

    async def _make_partitions(self, topic: TopicName, partitions: int) -> None:
        parent = self._settled_parent(topic)
        replace(parent.spec, partitions=partitions)  # which refuses too many
        await self._make_all_missing(parent, partitions)

    async def _show_partitions(self, topic: TopicName, partitions: int) -> None:
        parent = self._settled_parent(topic)
        if parent.spec.partitions < partitions:
            await self._change_parent(parent, partitions=partitions)

    async def begin_partitioned(self, topic: TopicName, partitions: int, settings: TopicSettings) -> None:
        self.index.check_topic_is_free(topic, partitions=partitions, settings=settings)
        if self.index.partitioned(topic) is None:
            key = keys.partitioned_key(topic)
            spec = self._partitioned_spec(
                topic, settings, declared=True, partitions=partitions, stage=Stage.CREATING
            )
            guards = [Absent(key), Absent(keys.topic_key(topic)), self._namespace_is(topic.namespace)]
            await self.change([Put(key, spec.to_json())], guards)

    async def _finish_creation(self, topic: TopicName) -> list[TopicRecord]:
        """Create the missing partitions, then mark the topic as ready."""
        parent = self._parent(topic)
        if parent.spec.stage is Stage.CREATING:
            await self._make_all_missing(parent, parent.spec.partitions)
            await self._change_parent(parent, stage=Stage.READY)
        return self.index.partitions(topic)

    async def _make_all_missing(self, parent: PartitionedRecord, partitions: int) -> None:
        names = [parent.topic.part(index) for index in range(partitions)]
        failures: list[ClusterError] = []
        async with anyio.create_task_group() as group:  # side by side: the embedded store shares their fsync
            for part in names:
                if self.index.find_topic(part) is None:
                    group.start_soon(self._make_missing, parent, part, failures)
        if failures:
            raise failures[0]

    async def _make_missing(
        self, parent: PartitionedRecord, part: TopicName, failures: list[ClusterError]
    ) -> None:
        key = keys.topic_key(part)
        spec = self._topic_spec(part, parent.spec.settings)
        parent_guard = self._as_known(parent)
        try:
            await self.change([Put(key, spec.to_json())], [parent_guard, Absent(key)])
        except GuardFailed as error:
            if error.guard == parent_guard:
                failures.append(error)
            else:
                await self._refresh(key)  # somebody else made this partition: as good as ours
        except ClusterError as error:
            failures.append(error)

    async def _begin_deletion(
        self, topic: TopicName, grace: Grace | None, guards: Sequence[Guard] = ()
    ) -> None:
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
            # What was on its way back from an earlier deletion is not: the next start must not go on with it.
            former = {
                each.call_id for each in self.restorable_topics.values() if each.parent_id == parent.parent_id
            }
            writes += [Delete(keys.verdict_key(call_id)) for call_id in former if self._verdicts.get(call_id)]
            await self._change_parent(parent, *writes, guards=guards, stage=Stage.DELETING)

    async def _finish_deletion(self, topic: TopicName) -> None:
        """Delete the remaining partitions, then the parent. Nobody adds any, as the parent is marked."""
        parent = self.index.partitioned(topic)
        if parent is None:
            return
        tombstone = self.restorable_parents.get(parent.parent_id)
        for part in self.index.partitions(topic):
            if tombstone is None:
                await self._delete_one(part.topic)
            else:
                grace = Grace(call_id=tombstone.call_id, until_ms=tombstone.until_ms)
                await self.delete_topic_with_grace(part.topic, grace, parent.parent_id)
        await self.change([Delete(keys.partitioned_key(topic))], [self._as_known(parent)])

    async def _drop_empty_parent(self, topic: TopicName) -> None:
        """Delete a parent without partitions, so that the name is free: its creator died before the first partition."""
        parent = self.index.partitioned(topic)
        if parent is not None and not parent.spec.declared and not self.index.partitions(topic):
            await self.change([Delete(keys.partitioned_key(topic))], [self._as_known(parent)])

    async def _delete_one(self, topic: TopicName, guards: Sequence[Guard] = ()) -> TopicRecord:
        former = self.index.topic(topic)
        await self.change(_deletion(former), [self._as_known(former), *guards])
        return former

    async def _update_one(self, topic: TopicName, changes: Mapping[str, Any]) -> TopicRecord:
        former = self.index.topic(topic)
        key = keys.topic_key(topic)
        spec = replace(former.spec, settings=replace(former.settings, **changes))
        await self.change([Put(key, spec.to_json())], [ModRevision(key, former.revision)])
        return self.index.topic(topic)

    async def _decide_one(
        self, topic: TopicName, decide: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> TopicRecord:
        former = self.index.topic(topic)
        schema = dict(decide(former.settings.schema)) or None
        return (
            former if schema == former.settings.schema else await self._update_one(topic, {"schema": schema})
        )

    async def _decide_parent(
        self, topic: TopicName, decide: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> dict[str, Any] | None:
        present = self._parent(topic).spec.settings.schema
        schema = dict(decide(present)) or None
        if schema != present:
            await self._update_parent(topic, {"schema": schema})
        return schema

    async def _update_parent(self, topic: TopicName, changes: Mapping[str, Any]) -> None:
        parent = self._parent(topic)
        await self._change_parent(parent, settings=replace(parent.spec.settings, **changes))

    # Parts

    def _is_of_whole(self, topic: TopicName) -> bool:
        """Return whether a topic, or its parent, is one of format 2. Raises `TopicNotFound` for a missing partition of one."""
        parent = self.index.partitioned(topic.base)
        if parent is None or not parent.is_whole:
            return False
        return topic.partition is None or self.index.topic(topic).is_named_by_parent

    def _logs(self, topic: TopicName) -> list[TopicRecord]:
        found = self.index.find_topic(topic)
        return self.index.partitions(topic) if found is None else [found]

    def _settled_parent(self, topic: TopicName) -> PartitionedRecord:
        parent = self._parent(topic)
        if parent.spec.stage is not Stage.READY:
            raise Conflict(f"{topic} is {parent.spec.stage}: try again in a moment", topic=str(topic))
        return parent

    def _topic_spec(self, topic: TopicName, settings: TopicSettings) -> TopicSpec:
        return TopicSpec(
            name=str(topic), created_at_ms=self._wall_ms(), partition=topic.partition, settings=settings
        )


def _open_again(topic: TopicName) -> Conflict:
    return Conflict(f"{topic} is open to clients again: look at it, then undo again", topic=str(topic))


def _index(part: TopicRecord) -> int:
    assert part.topic.partition is not None
    return part.topic.partition


def _one_past(parts: Sequence[TopicRecord]) -> int:
    """Return one more than the highest partition index; official clients may have left gaps."""
    return _index(parts[-1]) + 1 if parts else 0


def _deletion(topic: TopicRecord) -> list[Write]:
    return [
        Delete(keys.topic_key(topic.topic)),
        DeleteRange(keys.subscriptions_range(topic.topic_id)),
        DeleteRange(keys.clients_range(topic.topic_id)),
        Delete(keys.assignment_key(topic.topic_id)),
    ]
