"""When a removed broker starts again, write the messages that only its journal has to the object store.

Its topics continue at other brokers at far higher offsets (`topics.rebuilt_state`), so these messages never return to
them. The same is done with messages that a restored etcd lacks (`cluster_recovery`). They are kept for operators as
Parquet files like the cold tier's below `<cluster>/lost+found/<broker>/`. Files that exist are not written again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName
from pydanube_storage.catalog import CatalogHead, ObjectCatalog
from pydanube_storage.metadata import MetadataStore
from pydanube_storage.objects import ObjectName

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import was_removed
from pydanube_broker.cluster.records import Durability
from pydanube_broker.settings.sections import Settings
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.flushing import meta_of, write_object
from pydanube_broker.tier.options import missing_extra, store_options
from pydanube_broker.tier.tier import CLUSTER_KEY
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

_FOLDER: Final = "lost+found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The messages of a topic, from `start` on, that only this journal has and that no topic will have again.

    `durability`: at which this broker acknowledged messages. "" if the metadata was restored and cannot prove it.
    """

    topic: TopicName
    start: int
    durability: str = ""


async def refuse_removed(
    settings: Settings,
    me: BrokerId,
    hub: Hub,
    metadata: MetadataStore,
    make_room: Callable[[], bool],
) -> None:
    """For a removed broker, write its remaining messages to the store and raise `Fenced`. Before the journal serves.

    Raises `Fenced`: it was removed. The error names the place of these messages, or why they could not be written.
    """
    if await metadata.get(keys.removed_key(me)) is None:
        return
    try:
        objects, where = await _keep(settings, me, hub, metadata, make_room)
    except ClusterError as error:
        raise was_removed(
            me,
            f"Messages that only its journal has could not be written to {_FOLDER} in the object store ({error.message}). "
            "Start it again to retry",
        ) from error
    tail = f"Messages that only its journal had are in {where}, {objects} Parquet files"
    raise was_removed(me, tail if objects else "Its journal had no messages that are not in the object store")


async def _keep(
    settings: Settings, me: BrokerId, hub: Hub, metadata: MetadataStore, make_room: Callable[[], bool]
) -> tuple[int, str]:
    assert settings.data.dir is not None, "data in memory is on no etcd"
    options = store_options(settings, settings.data.dir, spool=str(me))
    missing = missing_extra(options)
    if missing is not None:
        raise missing
    name = await metadata.get(CLUSTER_KEY)
    assert name is not None, "every broker of a cluster gives it one"
    await hub.journal.begin(make_room)  # its last records were acknowledged, too
    child = TierChild(options)
    try:
        kept = LostAndFound(settings, me, hub, name.value.decode(), child)
        return await kept.write(partial(_left_behind, me, metadata, ObjectCatalog(metadata, wall_ms=now_ms)))
    finally:
        await child.close()


async def _left_behind(
    me: BrokerId, metadata: MetadataStore, catalog: ObjectCatalog, state: LogState
) -> Left | None:
    """Return the messages that a removed broker has of a topic and its next owner lacks, or None if there are none."""
    item = await metadata.get(keys.assignment_key(TopicId(state.topic_id)))
    if item is None or not state.epoch:
        return None  # deleted for good, or a copy that was not finished
    place = Assignment.of(item.key, item.value)
    held = await catalog.head(state.topic_id)
    head = None if held is None else held.head
    if place.broker_id != me and (head is None or not head.resumes_at):
        return None  # it was handed over completely
    # A topic that is taken over with all its stored messages continues at the next offset. Its level may have changed since.
    is_stored = place.stored and (
        place.broker_id == me or head is None or state.next_offset >= head.resumes_at
    )
    return Left(
        topic=place.topic,
        start=await _stored_to(catalog, state, head),
        durability=(Durability.STORED if is_stored else Durability.FSYNCED).value,
    )


async def left_behind(catalog: ObjectCatalog, metadata: MetadataStore, state: LogState) -> Left | None:
    """Return the messages that this journal has of a topic that was taken over, or None for a topic that was moved.

    A topic that is taken over continues far above its former owner's offsets. The next owner may have some of the
    messages, from the former owner's chain. A mirror continues below them: its source has the rest.
    """
    held = await catalog.head(state.topic_id)
    if held is None or state.next_offset >= held.head.resumes_at:
        return None
    item = await metadata.get(keys.assignment_key(TopicId(state.topic_id)))
    if item is None:
        return None  # deleted for good
    topic = Assignment.of(item.key, item.value).topic
    start = await _stored_to(catalog, state, held.head)
    # A topic with durability `stored` continues without a gap
    return Left(topic=topic, start=start, durability=Durability.FSYNCED.value)


async def _stored_to(catalog: ObjectCatalog, state: LogState, head: CatalogHead | None) -> int:
    """Return the offset up to which the topic's objects had its messages when it was taken away."""
    if head is None:
        return 0
    if head.tiered_offset <= state.next_offset:
        return head.tiered_offset
    # The next owner's first object begins where the last one of this broker ended.
    entry = await catalog.find(state.topic_id, state.next_offset - 1)
    if entry is None:
        return 0  # retention has dropped it: all that the journal still has
    return entry.end if entry.end <= head.resumes_at else entry.start


class LostAndFound:
    """Writes to the object store the messages of a journal that is not served."""

    def __init__(self, settings: Settings, me: BrokerId, hub: Hub, cluster: str, child: TierChild) -> None:
        self._me = me
        self._hub = hub
        self._cluster = cluster
        self._url = store_options(settings, hub.journal.folder.parent, spool=str(me)).url
        self._object_bytes = settings.tier.object_bytes
        self._child = child

    async def write(self, left: Callable[[LogState], Awaitable[Left | None]]) -> tuple[int, str]:
        """Write the messages that `left` returns for each topic and that are not there yet.

        Returns the number of objects in all, and their folder.

        Raises `DiskFull`, `StoreUnavailable`, `Unavailable`: some may be written.
        """
        count = 0
        there = await self._there()
        for state in list(self._hub.states.values()):
            found = await left(state)
            if found is not None:
                count += await self._write_topic(state, found, there)
        return count, f"{self._url}/{self._root}/"

    async def write_one(self, state: LogState, left: Left) -> None:
        """Write one topic's messages that are not there yet. Raises as `write`."""
        await self._write_topic(state, left, await self._there())

    @property
    def _root(self) -> str:
        return f"{self._cluster}/{_FOLDER}/{self._me}"

    async def _there(self) -> set[str]:
        listed, _ = await self._child.call("list", {"folder": self._root})
        return {each["key"] for each in listed["objects"]}

    async def _write_topic(self, state: LogState, left: Left, there: set[str]) -> int:
        topic, at, count = left.topic, left.start, 0
        while at < state.next_offset:
            segments, end, _ = self._hub.journal.places(
                state.topic_id, at, state.next_offset, self._object_bytes
            )
            if not segments:
                break
            name = ObjectName(start=at, end=end, epoch=state.epoch, generation=0, random=f"{self._me:x}")
            key = f"{self._root}/{topic.namespace}/{topic.name}/{state.topic_id}/{name}"
            if key not in there:
                meta = meta_of(self._cluster, str(topic), state.topic_id, name)
                meta["durability"] = left.durability
                await write_object(self._child, key, meta, segments, urgent=True)
                log.warning("tail_stored", extra={"topic": str(topic), "object": key})
            count += 1
            at = end
        return count
