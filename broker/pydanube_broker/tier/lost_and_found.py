"""What only the journal of a removed broker has is written to the object store when that broker is started once more.

Its topics went on at other brokers, far above these offsets (`topics.left_behind`): none of it becomes part of them again. It
lies there for people, as the cold tier's Parquet, below `<cluster>/lost+found/<broker>/`; what is there already is not written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pydanube_core.errors import ClusterError
from pydanube_storage.catalog import CatalogHead, ObjectCatalog
from pydanube_storage.metadata import MetadataStore
from pydanube_storage.objects import ObjectName

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import was_removed
from pydanube_broker.settings import Settings
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.options import missing_extra, store_options
from pydanube_broker.tier.tier import CLUSTER_KEY
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

_FOLDER: Final = "lost+found"


async def refuse_removed(
    settings: Settings, me: BrokerId, hub: Hub, metadata: MetadataStore, make_room: Callable[[], bool]
) -> None:
    """Let a broker go on that was not removed from its cluster. The journal was recovered, and does not serve yet.

    Raises:
        Fenced: it was removed; says where everything is that only its journal has, or why it is there alone still.
    """
    if await metadata.get(keys.removed_key(me)) is None:
        return
    try:
        objects, where = await _LostAndFound(settings, me, hub, metadata).write(make_room)
    except ClusterError as error:
        raise was_removed(
            me,
            f"What only its journal has could not be written to {_FOLDER} in the object store ({error.message}): start it "
            "again to try once more",
        ) from error
    tail = f"Messages that only its journal had are in {where}, {objects} Parquet files"
    raise was_removed(me, tail if objects else "Its journal had no messages that are not in the object store")


class _LostAndFound:
    def __init__(self, settings: Settings, me: BrokerId, hub: Hub, metadata: MetadataStore) -> None:
        assert settings.data.dir is not None, "data in memory is on no etcd"
        self._me = me
        self._hub = hub
        self._metadata = metadata
        self._options = store_options(settings, settings.data.dir, spool=str(me))
        self._object_bytes = settings.tier.object_bytes
        self._catalog = ObjectCatalog(metadata, wall_ms=now_ms)
        self._child = TierChild(self._options)

    async def write(self, make_room: Callable[[], bool]) -> tuple[int, str]:
        """Write what is not there yet; returns how many objects are there in all, and where.

        Raises:
            DiskFull, MissingExtra, StoreUnavailable, Unavailable: some of it may be there.
        """
        missing = missing_extra(self._options)
        if missing is not None:
            raise missing
        name = await self._metadata.get(CLUSTER_KEY)
        assert name is not None, "every broker of a cluster gives it one"
        cluster = name.value.decode()
        await self._hub.journal.begin(make_room)  # its last records were acknowledged, too
        root = f"{cluster}/{_FOLDER}/{self._me}"
        count = 0
        try:
            listed, _ = await self._child.call("list", {"folder": root})
            there = {each["key"] for each in listed["objects"]}
            for state in list(self._hub.states.values()):
                count += await self._write_topic(state, cluster, root, there)
        finally:
            await self._child.close()
        return count, f"{self._options.url}/{root}/"

    async def _write_topic(self, state: LogState, cluster: str, root: str, there: set[str]) -> int:
        item = await self._metadata.get(keys.assignment_key(TopicId(state.topic_id)))
        if item is None or not state.opened:
            return 0  # deleted for good, or on its way here
        place = Assignment.of(item.key, item.value)
        held = await self._catalog.head(state.topic_id)
        head = None if held is None else held.head
        if place.broker_id != self._me and (head is None or not head.resumes_at):
            return 0  # it was handed over, with everything
        at, count = await self._stored_to(state, head), 0
        while at < state.next_offset:
            segments, end, _ = self._hub.journal.places(
                state.topic_id, at, state.next_offset, self._object_bytes
            )
            if not segments:
                break
            name = ObjectName(start=at, end=end, epoch=state.epoch, generation=0, random=f"{self._me:x}")
            key = f"{root}/{place.topic.namespace}/{place.topic.name}/{state.topic_id}/{name}"
            if key not in there:
                meta = {
                    "cluster": cluster, "topic": str(place.topic), "topic_id": state.topic_id, "start": at, "end": end,
                }  # fmt: skip
                runs = [[str(path), len(places) // 8] for path, places in segments]
                blob = b"".join(places for _, places in segments)
                await self._child.call(
                    "flush", {"key": key, "urgent": True, "segments": runs, "meta": meta}, blob
                )
                log.warning("tail_kept", extra={"topic": str(place.topic), "object": key})
            count += 1
            at = end
        return count

    async def _stored_to(self, state: LogState, head: CatalogHead | None) -> int:
        """Up to where the topic's objects had its messages when it was taken away."""
        if head is None:
            return 0
        if head.tiered_offset <= state.next_offset:
            return head.tiered_offset
        # The next owner's first object begins where the last one of this broker ended.
        entry = await self._catalog.find(state.topic_id, state.next_offset - 1)
        if entry is None:
            return 0  # retention has dropped it: whatever the journal still has
        return entry.end if entry.end <= head.resumes_at else entry.start
