"""Namespaces, topics and subscriptions. Every change is a guarded transaction, then the index follows.

A partitioned topic is one record, and each of its changes one transaction (`whole_topics`). While a build of
metadata format 1 may read the metadata, each partition has a record of its own instead (`format_1`). A namespace's
deletion takes two transactions: `deleting` (creations fail from here on) → looked through → gone, or `ready` again.

A topic without partitions and a subscription have a transaction to themselves, because its revision becomes their id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydanube_core.errors import Conflict, NameReused, TopicNotFound
from pydanube_core.facts import Grace, UnusedFacts
from pydanube_core.links import FAILED_OVER_TO, LINEAGE, MIRROR, writer_elsewhere
from pydanube_core.names import TopicName
from pydanube_core.refusals import single_partition, system_is_kept
from pydanube_storage.metadata import Absent, GuardFailed, MetadataStore, ModRevision, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstones import Tombstones, deletions_of
from pydanube_broker.cluster.format_1 import PartitionRecords
from pydanube_broker.cluster.id_blocks import IdBlocks, IdBlocksRecord
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import IncarnationRecord
from pydanube_broker.cluster.namespace_operations import Namespaces
from pydanube_broker.cluster.records import (
    Durability,
    PartitionedRecord,
    PartitionedSpec,
    Stage,
    TopicRecord,
    TopicSettings,
    TopicSpec,
)
from pydanube_broker.cluster.registry_records import WHOLE, RegistryRecords
from pydanube_broker.cluster.subscription_operations import (
    KEPT_BY_LINK,
    KEPT_OPTIONS,
    Subscriptions,
    kept_at_mirror,
)
from pydanube_broker.cluster.whole_topics import WholeTopics
from pydanube_broker.records import Change

T = TypeVar("T")
Schema = Mapping[str, Any]


class TopicCatalog:
    """The registry of one cluster through one store. Look-ups in `index` and `restorable` are immediate.

    `TopicCatalog(store, wall_ms=…)`, then `load()`, at the leader also `resume()`. It changes topics. `namespaces`,
    `subscriptions`, `tombstones` and `wholes` make the other changes.
    """

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        self.records = RegistryRecords(store, wall_ms=wall_ms)
        self.index = self.records.index
        self.restorable = self.records.restorable
        self.quarantine = self.records.quarantine
        self.namespaces = Namespaces(self.records)
        self.subscriptions = Subscriptions(self.records)
        self.tombstones = Tombstones(self.records)
        self.ids = IdBlocks(store)
        self.wholes = WholeTopics(self.records, self.ids)
        self.raises_format = True  # whether a lone broker may convert metadata of an older format
        self._of_parts = PartitionRecords(self.records, self.subscriptions, self.tombstones)
        self.store = store

    async def load(self) -> None:
        """Read the registry and the tombstones, follow both from there, and create the namespaces that always exist."""
        await self.records.load()
        blocks = await self.store.get(keys.ID_BLOCKS)
        with self.quarantine.reading(keys.ID_BLOCKS):
            IdBlocksRecord.of(blocks)
        await self.namespaces.create_built_in()

    async def resume(self) -> None:
        """Finish changes that a crash interrupted. Those that cannot be finished are quarantined. Idempotent. For the leader."""
        for call_id in [each for each, comes_back in self.restorable.decisions.items() if comes_back]:
            with self.quarantine.finishing(keys.decision_key(call_id), "changes.undo", call_id=call_id):
                await self._bring_back(call_id)
        await self._of_parts.resume()
        for namespace in self.index.namespaces():
            if namespace.spec.stage is Stage.DELETING:
                name = namespace.name
                with self.quarantine.finishing(keys.namespace_key(name), "namespaces.delete", namespace=name):
                    await self.namespaces.settle(name)

    async def _bring_back(self, call_id: str) -> None:
        """Continue to restore a deleted topic or subscription, and record that it is done."""
        if any(one.call_id == call_id for one in self.restorable.subscriptions.values()):
            await self.tombstones.restore_subscriptions(call_id)
            return
        # It may be restored already, without stranded partitions
        with contextlib.suppress(TopicNotFound, NameReused):
            await self.restore_topics(call_id)
        if call_id in self.restorable.decisions:
            await self.tombstones.drop_decision(call_id)

    # -- creation ------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: TopicName, *, partitions: int = 0, settings: TopicSettings | None = None
    ) -> list[TopicRecord]:
        """Create a plain topic, one partition (a name that ends in `-part-<n>`), or with `partitions` ≥ 1 all parts.

        Returns the topics with a log: one, or the partitions by index.

        Raises:
            NamespaceNotFound, InvalidName, InvalidArgument, AlreadyExists, Conflict: see `check_topic_is_free`.
        """
        wanted = settings or TopicSettings()
        if partitions:
            return await self._by_format(
                lambda: self.wholes.create(topic, partitions, wanted),
                lambda: self._of_parts.create(topic, partitions, wanted),
            )
        if topic.partition is not None:
            made = await self._by_format(
                lambda: self.wholes.add(topic, wanted), lambda: self._of_parts.create_part(topic, wanted)
            )
            return [made]

        async def decide(change: Change) -> None:
            self.index.check_topic_is_free(topic, partitions=0, settings=wanted)
            change.absent(keys.topic_key(topic))
            change.absent(keys.partitioned_key(topic))
            change.guard(self.records.namespace_is(topic.namespace))
            change.put(
                keys.topic_key(topic),
                TopicSpec(
                    name=str(topic), created_at_ms=self.records.wall_ms(), partition=None, settings=wanted
                ),
            )

        await self.records.change(decide)
        return [self.index.topic(topic)]

    async def _by_format(self, whole: Callable[[], Awaitable[T]], of_parts: Callable[[], Awaitable[T]]) -> T:
        """Make a change in the metadata's format: of whole topics, or of a record for each partition (format 1)."""
        if self.index.format.metadata_format < WHOLE:
            try:
                return await of_parts()
            except GuardFailed as error:
                if error.guard.key != keys.FORMAT:
                    raise
                await self.records.refresh(keys.FORMAT)
        return await whole()

    async def existing_topic(self, topic: TopicName) -> list[TopicRecord]:
        """Return the topics with a log under a name that is taken.

        Raises:
            Conflict: it is being restored from a deletion.
        """
        known = self.index.find_topic(topic)
        if known is not None:
            return [known]
        parent = self.index.partitioned(topic)
        return [] if parent is None else await self._of_parts.existing(parent)

    # -- number of partitions ------------------------------------------------------------------------------------

    async def make_partitions(self, topic: TopicName, partitions: int) -> list[TopicRecord]:
        """Create the partitions that a topic lacks to have `partitions`, with their siblings' subscriptions. Return the new ones.

        In format 1 clients see them after `show_partitions`.

        Raises:
            TopicNotFound, NamespaceNotFound, InvalidArgument.
            Conflict: it has as many, or more. Or it is being created, deleted or restored.
        """
        return await self._by_format(
            lambda: self.wholes.grow(topic, partitions), lambda: self._of_parts.grow(topic, partitions)
        )

    async def show_partitions(self, topic: TopicName, partitions: int) -> None:
        """Make visible to clients the partitions that `make_partitions` made. In format 2 they are."""
        await self._of_parts.show(topic, partitions)

    async def drop_partitions(
        self, topic: TopicName, partitions: int, *, held: Sequence[UnusedFacts]
    ) -> list[TopicRecord]:
        """Delete the partitions from an index on, which their owners hold as unused, in one transaction. Return them.

        Raises:
            TopicNotFound.
            Conflict: an owner has opened one again or was restarted, or the metadata have format 1. Nothing has changed.
        """

        if self.index.format.metadata_format < WHOLE:
            raise Conflict(
                f"partitions of {topic} cannot be taken away while a broker of an older build may read the metadata: "
                "upgrade all brokers, then undo again",
                topic=str(topic),
                retryable=False,
            )

        async def still_held(change: Change, logs: int) -> None:
            await self._require_held(change, topic, held, logs)

        return await self.wholes.shrink(topic, partitions, still_held)

    # -- settings ------------------------------------------------------------------------------------------------

    async def update_topic(
        self,
        topic: TopicName,
        *,
        policies: Mapping[str, Any] | None = None,
        schema: Schema | None = None,
        durability: Durability | None = None,
    ) -> list[TopicRecord]:
        """Change the settings that are given, of a partitioned topic in all parts. An empty schema removes it.

        Returns the topics with a log. Raises `TopicNotFound`, and `PermissionDenied` for policies and schema of a system topic.
        """
        if topic.is_system and (policies is not None or schema is not None):
            raise system_is_kept(str(topic))
        given = {"policies": policies, "schema": schema}
        changes: dict[str, Any] = {name: dict(value) for name, value in given.items() if value is not None}
        if schema is not None and not schema:
            changes["schema"] = None
        if durability is not None:
            changes["durability"] = durability
        await self._update(topic, lambda settings: changes)
        return self._logs(topic)

    async def set_option(self, topic: TopicName, name: str, value: Any) -> list[TopicRecord]:
        """Set one of a topic's options, or remove it with None. Returns the topics with a log. Raises `TopicNotFound`."""

        def decided(settings: TopicSettings) -> Mapping[str, Any]:
            others = {key: each for key, each in settings.options.items() if key != name}
            return {"options": others if value is None else {**others, name: value}}

        await self._update(topic, decided)
        return self._logs(topic)

    async def decide_kept(
        self, topic: TopicName, decide: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> None:
        """Set the options that a topic keeps for future subscriptions to the result of `decide` for the present ones.

        The change is guarded, because a link writes them too. Errors of `decide` are raised, with nothing changed.
        Raises `TopicNotFound`.
        """

        def decided(settings: TopicSettings) -> Mapping[str, Any]:
            options = settings.options
            return {"options": {**options, KEPT_OPTIONS: dict(decide(options.get(KEPT_OPTIONS, {})))}}

        await self._update(topic, decided)

    async def keep_for_link(self, topic: TopicName, theirs: Mapping[str, Any]) -> None:
        """Keep at a mirror its source's options for future subscriptions. Idempotent. Raises `TopicNotFound`."""

        def decided(settings: TopicSettings) -> Mapping[str, Any]:
            options = settings.options
            kept, by_link = kept_at_mirror(options, theirs)
            if (options.get(KEPT_OPTIONS, {}), options.get(KEPT_BY_LINK, {})) == (kept, by_link):
                return {}
            return {"options": {**options, KEPT_OPTIONS: kept, KEPT_BY_LINK: by_link}}

        if decided(self.deciding(topic).spec.settings):
            await self._update(topic, decided)

    async def fail_over(
        self, topic: TopicName, copied_until: Mapping[str, int], epochs: Mapping[str, int]
    ) -> list[TopicRecord]:
        """Take the mark of a mirror from a topic, and add its source to the topic's lineage. Idempotent.

        Returns the topics with a log. Raises `TopicNotFound`.
        """

        def decided(settings: TopicSettings) -> Mapping[str, Any]:
            options = dict(settings.options)
            mark = options.pop(MIRROR, None)
            options.pop(KEPT_BY_LINK, None)
            if mark is not None:
                written = {**mark, "until": dict(copied_until), "epochs": dict(epochs)}
                options[LINEAGE] = [*options.get(LINEAGE, ()), written]
            return {"options": options}

        await self._update(topic, decided)
        return self._logs(topic)

    async def fence(self, topic: TopicName, cluster: str, now_ms: int) -> None:
        """Note that a cluster takes a topic over. Idempotent.

        Raises:
            TopicNotFound.
            Conflict: another cluster has it, or the metadata have format 1. Nothing has changed.
        """
        if self.index.format.metadata_format < WHOLE:
            raise Conflict(
                f"{topic} cannot be fenced while a broker of an older build may serve it: upgrade all brokers first",
                topic=str(topic),
                retryable=False,
            )

        def decided(settings: TopicSettings) -> Mapping[str, Any]:
            taken = writer_elsewhere(settings.options)
            if taken is None:
                mark = {"cluster": cluster, "at_ms": now_ms}
                return {"options": {**settings.options, FAILED_OVER_TO: mark}}
            if taken != cluster:
                raise Conflict(
                    f"{topic} was failed over to the cluster {taken} already, so it cannot fail over to {cluster}",
                    topic=str(topic),
                    cluster=taken,
                )
            return {}

        await self._update(topic, decided)

    async def decide_schema(
        self, topic: TopicName, decide: Callable[[Schema | None], Schema]
    ) -> list[TopicRecord]:
        """Set the schema that `decide` returns for the present one, which is guarded. An empty schema removes it.

        Concurrent decisions are made one after the other. Errors of `decide` are raised, with nothing changed. A
        partitioned topic is decided at its parent, and its partitions follow. Returns the topics with a log.

        Raises:
            TopicNotFound.
        """
        if topic.is_system:
            raise system_is_kept(str(topic))
        await self._update(topic, lambda settings: {"schema": dict(decide(settings.schema)) or None})
        return self._logs(topic)

    async def _update(self, topic: TopicName, decided: Callable[[TopicSettings], Mapping[str, Any]]) -> None:
        """Set the settings that `decided` returns. The record that decides about the topic is first, partitions of format 1 follow."""

        async def decide(change: Change) -> Mapping[str, Any]:
            record = self.deciding(topic)
            wanted = decided(record.spec.settings)
            self._put_settings(change, record, wanted)
            return wanted

        wanted = (await self.records.change(decide)).result
        for part in self.index.partitions(topic):

            async def follow(change: Change, part: TopicName = part.topic) -> None:
                record = self.index.topic(part)
                if not record.is_named_by_parent:
                    self._put_settings(change, record, wanted)

            await self.records.change(follow)

    def _put_settings(
        self, change: Change, record: TopicRecord | PartitionedRecord, wanted: Mapping[str, Any]
    ) -> None:
        """Write a record with other settings, unless it has them."""
        settings = replace(record.spec.settings, **wanted)
        if settings != record.spec.settings:
            self._put(change, record, replace(record.spec, settings=settings))

    def _put(
        self,
        change: Change,
        record: TopicRecord | PartitionedRecord,
        spec: TopicSpec | PartitionedSpec,
    ) -> None:
        guard = self.records.as_known(record)
        change.guard(guard)
        for each in self.records.format_of(record):
            change.guard(each)
        change.put(guard.key, spec)

    def deciding(self, topic: TopicName) -> TopicRecord | PartitionedRecord:
        """Return the record whose transaction decides whether a topic exists. Raises `TopicNotFound`.

        For a partition in format 2, this is the record of the whole topic.
        """
        if (found := self.index.partitioned(topic)) is not None:
            return found
        record = self.index.topic(topic)
        if record.is_named_by_parent and (parent := self.index.partitioned(topic.base)) is not None:
            return parent
        return record

    def deciding_revision(self, topic: TopicName) -> Revision:
        """Return the revision of the record that decides whether a topic exists. Raises `TopicNotFound`."""
        return self.records.as_known(self.deciding(topic)).revision

    async def touch(self, topic: TopicName) -> None:
        """Write the deciding record again as it is, so that older guards of it fail.

        Raises `TopicNotFound`. `Conflict`: it is being deleted.
        """

        async def decide(change: Change) -> None:
            record = self.deciding(topic)
            if isinstance(record, PartitionedRecord) and not record.is_whole:
                self._of_parts.check_settled(record.topic)  # a deletion that was decided will be carried out
            self._put(change, record, record.spec)

        await self.records.change(decide)

    # -- deletion ------------------------------------------------------------------------------------------------

    async def delete_topic(
        self, topic: TopicName, *, grace: Grace | None = None, held: Sequence[UnusedFacts] = ()
    ) -> list[TopicRecord]:
        """Delete a plain or a whole partitioned topic with its subscriptions and assignments, without its data.

        With a `grace` it can come back (`restore_topics`) and keeps its subscriptions. Returns the deleted topics, whose
        data the caller drops or keeps. In format 1 an interrupted deletion is finished by another one.

        Args:
            held: the answers of its owners when they closed it as unused (`serving.unused_holds`). It has no grace then.

        Raises:
            TopicNotFound: no such topic.
            Conflict: an owner has opened it again, or was restarted. Nothing has changed.
            InvalidArgument: a single partition ("Cannot delete individual partition": official tools look for it).
        """
        if topic.partition is not None and self.index.find_topic(topic) is not None:
            raise single_partition(str(topic))

        async def still_held(change: Change, logs: int) -> None:
            if held:
                await self._require_held(change, topic, held, logs)

        if self.index.partitioned(topic) is not None:
            return await self._by_format(
                lambda: self.wholes.delete(topic, grace, still_held),
                lambda: self._delete_of_parts(topic, grace, held),
            )
        if grace is not None:
            return [await self.tombstones.delete_topic(topic, grace)]

        async def decide(change: Change) -> TopicRecord:
            former = self.index.topic(topic)
            await still_held(change, 1)
            change.guard(self.records.as_known(former))
            change.delete(keys.topic_key(topic))
            change.write(*deletions_of(former.topic_id))
            return former

        return [(await self.records.change(decide)).result]

    async def _delete_of_parts(
        self, topic: TopicName, grace: Grace | None, held: Sequence[UnusedFacts]
    ) -> list[TopicRecord]:
        change = Change(self.store)
        if held:
            await self._require_held(change, topic, held, len(self.index.partitions(topic)))
        try:
            return await self._of_parts.delete(topic, grace, change.guards)
        except GuardFailed as error:
            if error.guard in change.guards:
                raise _open_again(topic) from error
            raise

    async def _require_held(
        self, change: Change, topic: TopicName, held: Sequence[UnusedFacts], logs: int
    ) -> None:
        """Add the guards of a deletion that is right only while owners keep its logs closed. Raises `Conflict`."""
        counts = [each.logs for each in held]
        if None not in counts and sum(count or 0 for count in counts) != logs:
            raise _open_again(topic)  # one is on its way between two brokers
        for each in held:
            broker_id = BrokerId(int(each.broker_id))
            key = keys.incarnation_key(broker_id)
            item = await self.store.get(key)
            if (
                item is None
                or IncarnationRecord.from_json(item.value, key=key).incarnation != each.incarnation
            ):
                raise _open_again(topic)
            change.require(ModRevision(key, item.mod_revision), _open_again(topic))
            change.require(Absent(keys.removed_key(broker_id)), _open_again(topic))
        revisions = {each.revision for each in held}
        if len(revisions) > 1:  # the record has changed between two owners' answers
            raise _open_again(topic)
        key = self.records.as_known(self.deciding(topic)).key
        for revision in revisions:
            change.require(ModRevision(key, Revision(revision)), _open_again(topic))

    # -- restoration ---------------------------------------------------------------------------------------------

    async def restore_topics(self, call_id: str) -> list[TopicRecord]:
        """Restore the topic that a deletion took, a partitioned one with all its parts. Idempotent.

        Raises:
            TopicNotFound: that deletion took nothing, or its grace is over.
            NameReused: another topic has the name now, and nothing has changed. In format 1 a partition may have the
                name of one of its partitions, and all others are back then.
            NamespaceNotFound: its namespace is gone.
        """
        for tombstone in list(self.restorable.parents.values()):
            if tombstone.call_id == call_id and tombstone.spec.ids is not None:
                return await self.wholes.restore(tombstone)
        restored = await self._of_parts.restore(call_id)
        return [await self.tombstones.restore_topic(call_id)] if restored is None else restored

    async def forget_topics(self, now_ms: int, among: Container[int] | None = None) -> list[TopicId]:
        """Delete the tombstones of topics whose grace is over. Return the ids whose data may be deleted.

        Args:
            among: only of these topics.
        """
        gone = await self.wholes.forget(now_ms, among)
        gone += await self._of_parts.forget(now_ms, among)
        gone += await self.tombstones.forget_topics(now_ms, among)
        await self.tombstones.drop_decisions()
        return gone

    def _logs(self, topic: TopicName) -> list[TopicRecord]:
        found = self.index.find_topic(topic)
        return self.index.partitions(topic) if found is None else [found]


def _open_again(topic: TopicName) -> Conflict:
    return Conflict(f"{topic} is open to clients again: look at it, then undo again", topic=str(topic))
