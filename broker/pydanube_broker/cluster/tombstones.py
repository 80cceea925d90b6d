"""Deleted topics and subscriptions that may still come back.

Deleting with a tombstone moves the record: out of the registry and into `/tombstones/` in one transaction, and back
in one transaction. What hangs on a topic's id (its subscriptions' records, its log in the journal, its objects and
their catalog) stays where it is meanwhile, and the id comes back with it. When the grace is over the tombstone goes
first, and then what it kept: a crash in between leaves data that nobody knows, which the next start drops as it does
that of any deleted topic.

A partitioned topic takes several transactions. Its parent's tombstone is written with the mark that begins the
deletion and goes with the mark that ends the restoration, so that `resume` knows at every crash what was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pydanube_core.errors import NameReused, SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    Absent,
    Delete,
    DeleteRange,
    GuardFailed,
    MetadataStore,
    Put,
    Write,
    read_all,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import SubscriptionId, TopicId
from pydanube_broker.cluster.json_record import JsonRecord
from pydanube_broker.cluster.records import (
    PartitionedRecord,
    PartitionedSpec,
    Stage,
    SubscriptionRecord,
    SubscriptionSpec,
    TopicRecord,
    TopicSpec,
)
from pydanube_broker.cluster.registry_writer import RegistryWriter

T = TypeVar("T")

_WRITES: Final = 90  # of one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTombstone(JsonRecord):
    """A deleted topic with a log. `parent_id`: of the partitioned topic it goes and comes with."""

    name: str
    topic_id: int
    parent_id: int | None
    spec: TopicSpec
    call_id: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentTombstone(JsonRecord):
    name: str
    parent_id: int
    spec: PartitionedSpec
    call_id: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTombstone(JsonRecord):
    """A deleted subscription; its cursor stays with its topic's log."""

    topic: str
    topic_id: int
    subscription_id: int
    spec: SubscriptionSpec
    call_id: str
    until_ms: int


class Tombstones(RegistryWriter):
    """Bury, restore, forget; what is buried is in memory too."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        super().__init__(store, wall_ms=wall_ms)
        self.buried_topics: dict[TopicId, TopicTombstone] = {}
        self.buried_parents: dict[TopicId, ParentTombstone] = {}
        self.buried_subscriptions: dict[SubscriptionId, SubscriptionTombstone] = {}

    async def resolve_unknown(self) -> None:
        """As `RegistryWriter.resolve_unknown`; what is buried is looked up too."""
        if any(key in keys.TOMBSTONES for key in self.unsettled):
            await self.load_tombstones()
        await super().resolve_unknown()

    async def load_tombstones(self) -> None:
        """Read what is buried."""
        self.buried_topics, self.buried_parents, self.buried_subscriptions = {}, {}, {}
        for item in (await read_all(self._store, keys.TOMBSTONES))[0]:
            if item.key in keys.TOPIC_TOMBSTONES:
                topic = TopicTombstone.from_json(item.value, key=item.key)
                self.buried_topics[TopicId(topic.topic_id)] = topic
            elif item.key in keys.PARENT_TOMBSTONES:
                parent = ParentTombstone.from_json(item.value, key=item.key)
                self.buried_parents[TopicId(parent.parent_id)] = parent
            else:
                one = SubscriptionTombstone.from_json(item.value, key=item.key)
                self.buried_subscriptions[SubscriptionId(one.subscription_id)] = one

    def kept(self, topic_id: int) -> bool:
        """Whether the data of a topic that is not there any more is kept for its return."""
        return topic_id in self.buried_topics

    def kept_cursors(self, topic_id: int) -> set[int]:
        """Ids of the topic's deleted subscriptions whose cursors are kept."""
        return {number for number, one in self.buried_subscriptions.items() if one.topic_id == topic_id}

    async def shorten(self, until_ms: int) -> None:
        """Let no grace go on for longer than this.

        One that does was begun by a clock that ran ahead. What a deleted topic keeps in the journal keeps all that
        follows it there.
        """
        writes: list[Write] = []
        for topic_id, topic in self.buried_topics.items():
            if topic.until_ms > until_ms:
                topic = self.buried_topics[topic_id] = replace(topic, until_ms=until_ms)
                writes.append(Put(keys.topic_tombstone_key(topic_id), topic.to_json()))
        for number, one in self.buried_subscriptions.items():
            if one.until_ms > until_ms:
                one = self.buried_subscriptions[number] = replace(one, until_ms=until_ms)
                writes.append(
                    Put(keys.subscription_tombstone_key(TopicId(one.topic_id), number), one.to_json())
                )
        for start in range(0, len(writes), _WRITES):
            await self._change(writes[start : start + _WRITES], [])

    # Topics

    async def bury_topic(self, topic: TopicName, grace: Grace, parent_id: TopicId | None) -> TopicRecord:
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
            key = keys.topic_key(topic)
            await self._change(
                [
                    Delete(key),
                    Delete(keys.assignment_key(former.topic_id)),
                    Put(keys.topic_tombstone_key(former.topic_id), tombstone.to_json()),
                ],
                [self._as_known(former)],
            )
            self.buried_topics[former.topic_id] = tombstone
            return former

        return await self._retry(attempt)

    async def restore_topics(self, call_id: str) -> list[TopicRecord]:
        """Bring back what one deletion buried: a topic, or a partitioned one with all its parts. Idempotent.

        Raises:
            TopicNotFound: that deletion buried nothing, or its grace is over.
            NameReused: another topic has the name now; nothing has changed.
            NamespaceNotFound: its namespace is gone.
        """
        for parent in list(self.buried_parents.values()):
            if parent.call_id == call_id:
                return await self._restore_partitioned(parent)
        for topic in list(self.buried_topics.values()):
            if topic.call_id == call_id:
                return [await self._restore_topic(topic)]
        raise TopicNotFound("what that change deleted is not kept any more", call_id=call_id)

    async def _restore_topic(self, tombstone: TopicTombstone) -> TopicRecord:
        topic_id, name = TopicId(tombstone.topic_id), TopicName.parse(tombstone.name)
        key = keys.topic_key(name)
        guards = [Absent(key), self._namespace_is(name.namespace)]
        if tombstone.parent_id is None:
            guards.append(Absent(keys.partitioned_key(name)))
        spec = replace(tombstone.spec, identity=topic_id)
        try:
            await self._change([Put(key, spec.to_json()), Delete(keys.topic_tombstone_key(topic_id))], guards)
        except GuardFailed as error:
            await self._refresh(error.guard.key)
            raise _reused(tombstone.name) from error
        del self.buried_topics[topic_id]
        for item in (await read_all(self._store, keys.subscriptions_range(topic_id)))[0]:
            self.index.put(item)
        return self.index.topic(name)

    async def _restore_partitioned(self, tombstone: ParentTombstone) -> list[TopicRecord]:
        name = TopicName.parse(tombstone.name)
        key = keys.partitioned_key(name)
        known = self.index.partitioned(name)
        if known is None:
            spec = replace(tombstone.spec, stage=Stage.RESTORING, identity=tombstone.parent_id)
            try:
                await self._change(
                    [Put(key, spec.to_json())],
                    [Absent(key), Absent(keys.topic_key(name)), self._namespace_is(name.namespace)],
                )
            except GuardFailed as error:
                await self._refresh(error.guard.key)
                raise _reused(tombstone.name) from error
        elif known.parent_id != tombstone.parent_id:
            raise _reused(tombstone.name)
        elif known.spec.stage is Stage.DELETING:  # the deletion did not come to its end
            await self._mark(known, Stage.RESTORING)
        return await self._finish_restoration(name)

    async def _finish_restoration(self, name: TopicName) -> list[TopicRecord]:
        """Bring back the partitions that are still missing, then say that the topic is ready."""
        parent = self.index.partitioned(name)
        assert parent is not None, "the parent comes back first and goes last"
        for part in [each for each in self.buried_topics.values() if each.parent_id == parent.parent_id]:
            await self._restore_topic(part)
        parent = self.index.partitioned(name)
        assert parent is not None
        spec = replace(parent.spec, stage=Stage.READY)
        await self._change(
            [
                Put(keys.partitioned_key(name), spec.to_json()),
                Delete(keys.parent_tombstone_key(parent.parent_id)),
            ],
            [self._as_known(parent)],
        )
        self.buried_parents.pop(parent.parent_id, None)
        return self.index.partitions(name)

    async def _mark(self, parent: PartitionedRecord, stage: Stage) -> None:
        spec = replace(parent.spec, stage=stage)
        await self._change(
            [Put(keys.partitioned_key(parent.topic), spec.to_json())], [self._as_known(parent)]
        )

    async def forget_topics(self, now_ms: int) -> list[TopicId]:
        """Take away the tombstones of topics whose grace is over; returns the ids whose data may go."""
        gone: list[TopicId] = []
        for topic_id, tombstone in _over(self.buried_topics, now_ms, lambda each: each.until_ms):
            writes: list[Write] = [
                Delete(keys.topic_tombstone_key(topic_id)),
                DeleteRange(keys.subscriptions_range(topic_id)),
                DeleteRange(keys.subscription_tombstones_range(topic_id)),
                DeleteRange(keys.clients_range(topic_id)),
            ]
            parent = tombstone.parent_id
            siblings = [each for each in self.buried_topics.values() if each.parent_id == parent]
            if parent is not None and len(siblings) == 1:
                writes.append(Delete(keys.parent_tombstone_key(TopicId(parent))))
                self.buried_parents.pop(TopicId(parent), None)
            await self._change(writes, [])
            del self.buried_topics[topic_id]
            for number in self.kept_cursors(topic_id):
                del self.buried_subscriptions[SubscriptionId(number)]
            gone.append(topic_id)
        return gone

    # Subscriptions

    async def bury_subscription(
        self, topic_id: TopicId, subscription: str, grace: Grace
    ) -> SubscriptionRecord:
        """Raises `TopicNotFound`, `SubscriptionNotFound`."""

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
            await self._change(
                [Delete(key), Put(tombstone_key, tombstone.to_json())], [self._as_known(former)]
            )
            self.buried_subscriptions[former.subscription_id] = tombstone
            return former

        return await self._retry(attempt)

    async def restore_subscriptions(self, call_id: str) -> list[SubscriptionRecord]:
        """Bring back what one deletion buried, on every partition. Idempotent.

        Raises:
            SubscriptionNotFound: it buried nothing, or its grace is over.
            NameReused: another subscription has the name now; nothing has changed.
            TopicNotFound: its topic is gone.
        """
        mine = [one for one in self.buried_subscriptions.values() if one.call_id == call_id]
        if not mine:
            raise SubscriptionNotFound("what that change deleted is not kept any more", call_id=call_id)
        for one in mine:
            topic_id = TopicId(one.topic_id)
            self._topic_by_id(topic_id)
            if self.index.find_subscription(topic_id, one.spec.name) is not None:
                raise _subscription_reused(one)
        return [await self._restore_subscription(one) for one in mine]

    async def _restore_subscription(self, tombstone: SubscriptionTombstone) -> SubscriptionRecord:
        topic_id, number = TopicId(tombstone.topic_id), SubscriptionId(tombstone.subscription_id)
        topic = self._topic_by_id(topic_id)
        key = keys.subscription_key(topic_id, tombstone.spec.name)
        spec = replace(tombstone.spec, identity=number)
        try:
            await self._change(
                [Put(key, spec.to_json()), Delete(keys.subscription_tombstone_key(topic_id, number))],
                [Absent(key)],
            )
        except GuardFailed as error:
            await self._refresh(key)
            raise _subscription_reused(tombstone) from error
        del self.buried_subscriptions[number]
        return self.index.subscription(topic, tombstone.spec.name)

    async def forget_subscriptions(self, now_ms: int) -> list[tuple[TopicId, SubscriptionId]]:
        """Take away the tombstones of subscriptions whose grace is over; returns whose cursors may go."""
        gone: list[tuple[TopicId, SubscriptionId]] = []
        for number, tombstone in _over(self.buried_subscriptions, now_ms, lambda each: each.until_ms):
            topic_id = TopicId(tombstone.topic_id)
            await self._change(
                [
                    Delete(keys.subscription_tombstone_key(topic_id, number)),
                    DeleteRange(keys.consumer_clients_range(topic_id, tombstone.spec.name)),
                ],
                [],
            )
            del self.buried_subscriptions[number]
            gone.append((topic_id, number))
        return gone


K = TypeVar("K")
V = TypeVar("V")


def _over(buried: dict[K, V], now_ms: int, until_ms: Callable[[V], int]) -> list[tuple[K, V]]:
    return [(key, one) for key, one in buried.items() if until_ms(one) <= now_ms]


def _reused(name: str) -> NameReused:
    return NameReused(
        f"{name} is the name of another topic now: delete or rename that one's use first, then undo again",
        field="topic",
        value=name,
    )


def _subscription_reused(tombstone: SubscriptionTombstone) -> NameReused:
    return NameReused(
        f"{tombstone.topic} has another subscription {tombstone.spec.name!r} now: delete that one first, then undo "
        "again",
        field="subscription",
        value=tombstone.spec.name,
        topic=tombstone.topic,
    )
