"""How the registry is changed: by one guarded transaction at a time, and the index after it.

A guard that fails means that the index is older than the store: the key is read again and the decision made anew,
up to 5 times. Once begun a change is not cancelled (bounded by 10 s), so the index knows how it ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, ParamSpec, TypeVar, assert_never

import anyio
from pydanube_core.errors import StoreUnavailable, TopicNotFound
from pydanube_storage.metadata import (
    Delete,
    DeleteRange,
    Guard,
    GuardFailed,
    KeyValue,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import PartitionedRecord, SubscriptionRecord, TopicRecord
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.cluster.set_aside import Aside

P = ParamSpec("P")
T = TypeVar("T")
_ATTEMPTS: Final = 5
_STORE_S: Final = 10.0


class RegistryWriter:
    """Store and index, and the one way to change both. `wall_ms` gives milliseconds since 1970."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int]) -> None:
        self.index = RegistryIndex()
        self.aside = Aside()
        self._store = store
        self._wall_ms = wall_ms
        self.unsettled: set[str] = set()  # keys of changes of which nobody knows whether they happened

    def _topic_by_id(self, topic_id: TopicId) -> TopicRecord:
        topic = self.index.topic_by_id(topic_id)
        if topic is None:
            raise TopicNotFound(
                f"the topic with id {topic_id} does not exist any more", topic_id=str(topic_id)
            )
        return topic

    def _as_known(self, record: TopicRecord | PartitionedRecord | SubscriptionRecord) -> Guard:
        """Holds while the record is the one that the index knows."""
        match record:
            case TopicRecord():
                key = keys.topic_key(record.topic)
            case PartitionedRecord():
                key = keys.partitioned_key(record.topic)
            case SubscriptionRecord():
                key = keys.subscription_key(record.topic_id, record.name)
            case _:
                assert_never(record)
        return ModRevision(key, record.revision)

    def _namespace_is(self, namespace: str) -> Guard:
        """Holds while the namespace is the one that the index knows. Raises `NamespaceNotFound`."""
        return ModRevision(keys.namespace_key(namespace), self.index.namespace(namespace).revision)

    def check_not_coming_back(self, topic_id: TopicId, subscription: str) -> None:
        """Raise where a deleted subscription of that name is just being restored."""

    async def _retry(self, attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Decide and change; where the index was old, refresh it and decide anew."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await attempt(*args, **kwargs)
            except GuardFailed as error:
                await self._refresh(error.guard.key)
        return await attempt(*args, **kwargs)

    async def _refresh(self, key: str) -> None:
        page = await self._store.range(keys.only(key), limit=1)
        for item in page.items:
            self.index.put(item)
        if not page.items:
            self.index.remove(key, page.revision)

    async def _change(self, writes: Sequence[Write], guards: Sequence[Guard]) -> None:
        """One transaction, and the index after it. Not cancelled once begun: what happened must be known.

        Where it cannot be known yet, the keys are `unsettled`, and `resolve_unknown` looks again.
        """
        keys_changed = {write.key for write in writes if not isinstance(write, DeleteRange)}
        with anyio.move_on_after(_STORE_S, shield=True):
            try:
                revision = await self._store.transact(writes, guards=guards)
            except StoreUnavailable as error:
                if error.details.get("outcome") == "unknown":
                    self.unsettled |= keys_changed
                raise
            for write in writes:
                self._follow(write, revision)
            return
        self.unsettled |= keys_changed
        raise StoreUnavailable(
            f"the metadata store has not answered for {_STORE_S:.0f} s; the change may have happened",
            outcome="unknown",
        )

    async def resolve_unknown(self) -> None:
        """Bring the index up to date where a change has an unknown outcome: what the store says now is what happened.

        Its operations are carried out in order, so that an answer now has seen the change or proves that there was none.

        Raises:
            StoreUnavailable: it does not answer; what is unsettled stays so.
        """
        for key in sorted(self.unsettled):
            await self._refresh(key)
            self.unsettled.discard(key)

    def _follow(self, write: Write, revision: Revision) -> None:
        match write:
            case Put(key, value):
                # The guards have proved that the key is new, or the one that the index knows.
                created = self.index.create_revision(key) or revision
                self.index.put(KeyValue(key=key, value=value, create_revision=created, mod_revision=revision))
            case Delete(key):
                self.index.remove(key, revision)
            case DeleteRange():
                pass  # of what hangs on a topic: the index drops it with the topic
            case _:
                assert_never(write)
