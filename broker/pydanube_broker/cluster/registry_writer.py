"""Changes of the registry: each is one guarded transaction, and the index learns of it by the watch.

The index takes in all changes in the store's order, its broker's own and those of others alike; a change returns when
the index has it. A guard that fails means that the index is older than the store: what it lacks is waited for and the
decision made anew, up to 5 times. Once begun a change is not cancelled (bounded by 10 s), so it is known how it ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, ParamSpec, TypeVar, assert_never

import anyio
from pydanube_core.errors import StoreUnavailable, TopicNotFound
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    Absent,
    DeleteRange,
    Event,
    EventKind,
    Guard,
    GuardFailed,
    KeyValue,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
    read_all,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.feed import Feed
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import PartitionedRecord, SubscriptionRecord, TopicRecord
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.records.set_aside import Aside

P = ParamSpec("P")
T = TypeVar("T")
WHOLE: Final = 2  # the metadata format in which a partitioned topic is one record
_ATTEMPTS: Final = 5
_STORE_S: Final = 10.0


class RegistryWriter:
    """Store and index, and the one way to change both. `wall_ms` gives milliseconds since 1970."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        self.index = RegistryIndex()
        self.aside = Aside()
        self._store = store
        self._wall_ms = wall_ms
        self._feed = Feed(store, keys.WATCHED, read=self._read, take=self._take)
        self.on_change: Callable[[str], None] = lambda key: None  # told each key that the index has taken in
        self.finishing = False  # whether the step to format 2 finishes interrupted changes of format 1
        self.unsettled: set[str] = set()  # keys of changes of which nobody knows whether they happened

    def _topic_by_id(self, topic_id: TopicId) -> TopicRecord:
        topic = self.index.topic_by_id(topic_id)
        if topic is None:
            raise TopicNotFound(
                f"the topic with id {topic_id} does not exist any more", topic_id=str(topic_id)
            )
        return topic

    def _as_known(self, record: TopicRecord | PartitionedRecord | SubscriptionRecord) -> Guard:
        """Return the guard that the record is still at the revision which the index knows."""
        match record:
            case TopicRecord() if record.is_named_by_parent:  # which may be newer than its record
                return ModRevision(record.key, self.index.revision(record.key) or record.revision)
            case TopicRecord():
                return record.guard
            case PartitionedRecord():
                key = keys.partitioned_key(record.topic)
            case SubscriptionRecord():
                key = keys.subscription_key(record.topic_id, record.name)
            case _:
                assert_never(record)
        return ModRevision(key, record.revision)

    def _namespace_is(self, namespace: str) -> Guard:
        """Return the guard that the namespace is unchanged. Raises `NamespaceNotFound`."""
        return ModRevision(keys.namespace_key(namespace), self.index.namespace(namespace).revision)

    async def _change_parent(
        self, parent: PartitionedRecord, *more: Write, guards: Sequence[Guard] = (), **changes: Any
    ) -> None:
        """Change fields of a partitioned topic's record as the index has it, and write `more`, in one transaction."""
        put = Put(keys.partitioned_key(parent.topic), replace(parent.spec, **changes).to_json())
        await self.change([put, *more], [self._as_known(parent), *guards], whole=parent.is_whole)

    def check_not_coming_back(self, topic_id: TopicId, subscription: str) -> None:
        """Raise `Conflict` if a deleted subscription of that name is just being restored."""

    async def again(self, attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an attempt; if the index was outdated, refresh it and run the attempt again."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await attempt(*args, **kwargs)
            except GuardFailed as error:
                await self._refresh(error.guard.key)
        return await attempt(*args, **kwargs)

    async def look_for(self, name: TopicName) -> None:
        """Bring the index up to date with the store about a topic's name. Raises `StoreUnavailable`."""
        await self._refresh(keys.topic_key(name))
        await self._refresh(keys.partitioned_key(name))

    async def until_known(self, topic_id: TopicId) -> None:
        """Wait until the index has an assigned topic, or its deletion. Raises `StoreUnavailable`."""
        if self.index.topic_by_id(topic_id) is not None:
            return
        key = keys.assignment_key(topic_id)
        item = await self._store.get(key)
        if item is None:
            return  # it went with the topic, which was deleted for good: no record will come
        topic = Assignment.of(key, item.value).topic
        await self.look_for(topic)
        await self.look_for(topic.base)

    async def _refresh(self, key: str) -> None:
        """Bring the index up to date with the store about a key. Raises `StoreUnavailable`."""
        if key not in keys.FOLLOWED:
            return
        page = await self._store.range(keys.only(key), limit=1)
        with anyio.move_on_after(_STORE_S):
            await self._feed.until(
                page.revision,
                lambda: self._has(key, page.items[0].mod_revision if page.items else None),
                at_latest=True,
            )
            return
        raise StoreUnavailable(f"the watch of the metadata store has brought nothing for {_STORE_S:.0f} s")

    async def change(self, writes: Sequence[Write], guards: Sequence[Guard], *, whole: bool = False) -> None:
        """Run one transaction, and return when the index has it. Not cancelled once begun, so that its outcome is known.

        `whole`: it writes partitioned topics in format 2. One of format 1 fails once the metadata has format 2.

        Where it cannot be known yet, the keys are `unsettled`, and `resolve_unknown` looks again.
        """
        keys_changed = {write.key for write in writes if not isinstance(write, DeleteRange)}
        if not whole and not self.finishing and any(map(_is_of_partitions, keys_changed)):
            guards = [*guards, Absent(keys.FORMAT)]
        with anyio.move_on_after(_STORE_S, shield=True):
            try:
                revision = await self._store.transact(writes, guards=guards)
            except StoreUnavailable as error:
                if error.details.get("outcome") == "unknown":
                    self.unsettled |= keys_changed
                raise
            try:
                await self._feed.until(revision, lambda: self._reflects(writes, revision))
            except StoreUnavailable as error:
                self.unsettled |= keys_changed
                error.details["outcome"] = "unknown"
                raise
            return
        self.unsettled |= keys_changed
        raise StoreUnavailable(
            f"the metadata store has not answered for {_STORE_S:.0f} s; the change may have happened",
            outcome="unknown",
        )

    async def resolve_unknown(self) -> None:
        """Bring the index up to date about a change whose outcome is unknown: what the store has now is the outcome.

        What a store answers now has seen the change or proves that there was none: ours carry out what they are asked in
        order, etcd's puts up a fence first.

        Raises:
            StoreUnavailable: it does not answer; what is unsettled stays so.
        """
        for key in sorted(self.unsettled):
            await self._refresh(key)
            self.unsettled.discard(key)

    # The watch

    async def follow(self) -> None:
        """Take in the changes of others, until the store closes."""
        await self._feed.follow()

    async def aclose(self) -> None:
        await self._feed.aclose()

    def _reflects(self, writes: Sequence[Write], revision: Revision) -> bool:
        """Return whether the index has these writes of a revision, for keys that it follows."""
        return all(
            self._has(write.key, revision if isinstance(write, Put) else None)
            for write in writes
            if not isinstance(write, DeleteRange) and write.key in keys.FOLLOWED
        )

    def _has(self, key: str, revision: Revision | None) -> bool:
        """Return whether the index has a key at this revision or later; revision None: whether it has the key's deletion."""
        known = self._revision_of(key)
        if revision is None:
            return known is None
        return (known is not None and known >= revision) or key in self.aside.found

    def _revision_of(self, key: str) -> Revision | None:
        return self.index.revision(key)

    def _pass_on(self, key: str) -> None:
        """Pass on that a key has changed, and each partition that changed with the record of its whole topic."""
        self.on_change(key)
        changed, self.index.changed_parts = self.index.changed_parts, set()
        for part in changed:
            self.on_change(keys.topic_key(part))

    async def _read(self) -> Revision:
        """Read all followed keys, and remove from the index those that are gone."""
        items, revision = await read_all(self._store, keys.REGISTRY)
        items += (await read_all(self._store, keys.TOMBSTONES))[0]
        for key in self.known_keys() - {item.key for item in items}:
            self._remove(key, revision)
            self._pass_on(key)
        for item in items:
            is_new = self._revision_of(item.key) != item.mod_revision
            self._put(item)
            if is_new:
                self._pass_on(item.key)
        return revision

    def _take(self, event: Event) -> None:
        if event.key not in keys.FOLLOWED:
            return
        if event.kind is EventKind.PUT:
            self._put(event.key_value)
        else:
            self._remove(event.key, event.revision)
        self._pass_on(event.key)

    def known_keys(self) -> set[str]:
        return self.index.known_keys()

    def _put(self, item: KeyValue) -> None:
        with self.aside.reading(item.key):
            self.index.put(item)

    def _remove(self, key: str, revision: Revision) -> None:
        self.index.remove(key, revision)


def _is_of_partitions(key: str) -> bool:
    """Return whether a key is written only in format 1, or otherwise there."""
    return (
        key in keys.PARTITIONED
        or key in keys.PARENT_TOMBSTONES
        or (key in keys.TOPICS and keys.topic_of_key(key).partition is not None)
    )
