"""Deleting objects: retired ones after their grace time, orphans, and all of a topic that was deleted.

Only the topic's owner deletes, and only what no catalog has. The catalog comes first where an object leaves the topic,
and last where the topic itself is gone: a head without a topic says that there is something left to delete, so that a
crash in between is found at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.objects import ObjectName

from pydanube_broker.long_work import Work
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.flushing import Flusher
from pydanube_broker.tier.steps import Step, reached
from pydanube_broker.topics.topic import Topic, now_ms

__all__ = ["GRACE_MS", "Collector"]

log = logging.getLogger("pydanube.tier")

GRACE_MS: Final = 300_000
_DELETE_AT_ONCE: Final = 100


class Collector:
    """Single user: the loop. Each method raises what catalog and child raise; what it did until then is done."""

    def __init__(
        self, catalog: ObjectCatalog, child: TierChild, folders: dict[int, str], flusher: Flusher
    ) -> None:
        self._catalog = catalog
        self._child = child
        self._folders = folders
        self._flusher = flusher
        self.deleted = 0

    async def delete_retired(self, topic: Topic, *, grace_ms: int) -> int:
        """Delete retired objects that are older than the grace time."""
        held = await self._catalog.head(topic.topic_id)
        if held is None:
            return 0
        due = [each.name for each in held.head.retired if each.at_ms + grace_ms <= now_ms()]
        return await self._delete(topic, due[:_DELETE_AT_ONCE])

    async def _delete(self, topic: Topic, names: Sequence[str]) -> int:
        if not names:
            return 0
        folder = self._folders[topic.topic_id]
        await self._child.call("delete", {"keys": [f"{folder}/{name}" for name in names]})
        await self._catalog.forget_retired(topic.topic_id, names, epoch=topic.assigned_epoch)
        reached(Step.FORGOTTEN)
        self.deleted += len(names)
        return len(names)

    async def orphans(self, topic: Topic, *, grace_ms: int) -> list[dict[str, Any]]:
        """Objects in the topic's folder that are not the topic: {key, bytes, modified_ms}, retired ones after `grace_ms`."""
        await self._flusher.claim(topic)
        folder = self._folders[topic.topic_id]
        said, _ = await self._child.call("list", {"folder": folder})
        # In this order: what is committed between the listing and here is in the catalog by now.
        under_way = {*self._flusher.in_flight.values(), *self._flusher.merging}
        held = await self._catalog.head(topic.topic_id)
        assert held is not None
        listed = {entry.name async for entry in self._catalog.entries(topic.topic_id)}
        resting = {each.name for each in held.head.retired if each.at_ms + grace_ms > now_ms()}
        found = []
        for fact in said["objects"]:
            name = ObjectName.parse(fact["key"])
            if name is None or fact["key"] in under_way:
                continue
            if str(name) not in listed | resting and name.epoch <= topic.assigned_epoch:
                found.append(fact)
        return found

    async def collect(
        self, topic: Topic, *, grace_ms: int = GRACE_MS, work: Work | None = None
    ) -> list[dict[str, Any]]:
        """Delete what is not the topic; returns what was."""
        gone = await self.orphans(topic, grace_ms=grace_ms)
        names = [fact["key"].rpartition("/")[2] for fact in gone]
        if work is not None:
            work.total = len(names)
        for first in range(0, len(names), _DELETE_AT_ONCE):
            done = await self._delete(topic, names[first : first + _DELETE_AT_ONCE])
            if work is not None:
                work.done += done
        held = await self._catalog.head(topic.topic_id)
        if held is not None:  # deleted by hand, or by a life that died before it said so
            left = [each.name for each in held.head.retired if each.at_ms + grace_ms <= now_ms()]
            await self._catalog.forget_retired(topic.topic_id, left, epoch=topic.assigned_epoch)
        return gone

    def busy(self, topic_id: int) -> bool:
        """Whether an object of the topic is being made: what is uploaded next would outlive a deletion."""
        folder = self._folders.get(topic_id)
        return topic_id in self._flusher.in_flight or any(
            folder is not None and key.startswith(f"{folder}/") for key in self._flusher.merging
        )

    async def discard(self, topic_id: int) -> int:
        """Delete every object of a topic that was deleted, then what the catalog knows of it; returns how many."""
        held = await self._catalog.head(topic_id)
        if held is None:
            return 0
        folder = held.head.folder
        # A folder holds one topic id: whatever is in it was written for this topic.
        assert folder.endswith(f"/{topic_id}"), f"{folder} is not the folder of topic {topic_id} alone"
        said, _ = await self._child.call("list", {"folder": folder})
        keys = [fact["key"] for fact in said["objects"]]
        for part in _cut(keys):
            await self._child.call("delete", {"keys": part})
            self.deleted += len(part)
        reached(Step.DISCARDED)
        await self._catalog.forget_topic(topic_id)
        self._folders.pop(topic_id, None)
        log.info(
            "tier_topic_discarded",
            extra={"event": "tier_topic_discarded", "folder": folder, "objects": len(keys)},
        )
        return len(keys)


def _cut(keys: Sequence[str]) -> Iterable[list[str]]:
    for first in range(0, len(keys), _DELETE_AT_ONCE):
        yield list(keys[first : first + _DELETE_AT_ONCE])
