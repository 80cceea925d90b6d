"""Delete objects: retired ones after their grace period, orphans, and all of a deleted topic.

Only the topic's owner deletes objects, while it holds the store (`owned_store`). It deletes an object only if the catalog
does not list it, and if one of three facts proves that it is not needed: this start of the broker wrote it, the catalog
listed it before, or other listed objects cover all its offsets. None of the three is true of an object that is newer than
the catalog. When an object leaves the topic, the catalog is changed first. When the topic is deleted, the catalog is
changed last. Until then its head without a topic marks objects to delete, also for the next start after a crash.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydanube_core.errors import ClusterError
from pydanube_core.kill_steps import reached
from pydanube_storage.boot import boot_id
from pydanube_storage.catalog import Resting
from pydanube_storage.metadata.clock import BootClock, Clock
from pydanube_storage.objects import ObjectName

from pydanube_broker.long_work import Work
from pydanube_broker.tier.flushing import Flusher
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.steps import TierStep
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.tier")

GRACE_MS: Final = 300_000
_DELETE_AT_ONCE: Final = 100


class Collector:
    """Deletes objects. Methods raise the errors of catalog and child. Earlier deletions stay. Single user: the loop."""

    def __init__(self, parts: TierParts, flusher: Flusher, *, clock: Clock | None = None) -> None:
        self._parts = parts
        self._flusher = flusher
        self._clock = clock or BootClock()
        # When orphans, and objects retired in another boot, were first seen. The grace period bounds their number
        self._first_seen: dict[tuple[int, str], int] = {}
        self.young: set[int] = set()  # topics with orphans that are not old enough
        self.deleted = 0

    async def delete_retired(self, topic: Topic, *, grace_ms: int) -> int:
        """Delete retired objects whose grace period is over. Return how many.

        Raises `StoreUnavailable` if one could not be deleted, after trying the others.
        """
        deleted, failed = 0, None
        for group in await self._parts.catalog.resting(topic.topic_id):
            if self._rested_ms(topic.topic_id, group) < grace_ms:
                continue
            gone, error = await self._delete(topic, group.names)
            await self._parts.catalog.forget_resting(topic.topic_id, group, gone, epoch=topic.assigned_epoch)
            if len(gone) == len(group.names):
                self._first_seen.pop((topic.topic_id, group.group), None)
            deleted += len(gone)
            failed = failed or error
        if deleted:
            reached(TierStep.FORGOTTEN)
        if failed is not None:
            raise failed
        return deleted

    def _rested_ms(self, topic_id: int, group: Resting) -> int:
        """Return for how many milliseconds, at least, objects have been retired. Unaffected by steps of the wall clock."""
        now = self._clock.now_ms()
        if group.since.boot and group.since.boot == boot_id():
            return now - group.since.boot_ms
        return self._seen_ms(topic_id, group.group)

    async def _delete(self, topic: Topic, names: Sequence[str]) -> tuple[list[str], ClusterError | None]:
        """Delete objects of a topic's folder. Return the deleted ones, and the first error.

        The order is random, so that objects that cannot be deleted do not block the others.
        """
        folder = self._parts.folders[topic.topic_id]
        gone: list[str] = []
        failed: ClusterError | None = None
        for part in _cut([f"{folder}/{name}" for name in random.sample(list(names), len(names))]):
            deleted, error = await self._delete_keys(part)
            gone += (key.rpartition("/")[2] for key in deleted)
            failed = failed or error
        return gone, failed

    async def _delete_keys(self, keys: list[str]) -> tuple[list[str], ClusterError | None]:
        self._parts.hold.check()
        answer, _ = await self._parts.child.call("delete", {"keys": keys})
        self.deleted += len(answer["deleted"])
        return answer["deleted"], None if answer["error"] is None else ClusterError.from_dict(answer["error"])

    async def orphans(self, topic: Topic, *, grace_ms: int) -> list[dict[str, Any]]:
        """Return the objects in the topic's folder that may be deleted: {key, bytes, modified_ms}.

        These are orphans and retired objects, each first seen or retired at least `grace_ms` ago.
        """
        await self._flusher.claim(topic)
        self.young.discard(topic.topic_id)
        folder = self._parts.folders[topic.topic_id]
        answer, _ = await self._parts.child.call("list", {"folder": folder})
        there = {fact["key"].rpartition("/")[2]: fact["bytes"] for fact in answer["objects"]}
        # The catalog is read after the listing, so that it has the objects that were committed in the meantime.
        under_way = {*self._flusher.in_flight.values(), *self._flusher.merging}
        entries = [entry async for entry in self._parts.catalog.entries(topic.topic_id)]
        listed = {entry.name for entry in entries}
        known = {name for group in await self._parts.catalog.resting(topic.topic_id) for name in group.names}
        safe = covered([(e.start, e.end) for e in entries if there.get(e.name) == e.bytes])
        resting = {
            name
            for group in await self._parts.catalog.resting(topic.topic_id)
            if self._rested_ms(topic.topic_id, group) < grace_ms
            for name in group.names
        }
        found = []
        for fact in answer["objects"]:
            name = ObjectName.parse(fact["key"])
            if name is None or fact["key"] in under_way:
                continue
            if str(name) in listed | resting or name.epoch > topic.assigned_epoch:
                continue
            proven = self._written_here(name) or (
                (self._parts.hold.continuous or not grace_ms) and safe(name.start, name.end)
            )
            if str(name) in known or (proven and self._seen_ms(topic.topic_id, str(name)) >= grace_ms):
                found.append(fact)
            elif proven:
                self.young.add(topic.topic_id)
        return found

    def _seen_ms(self, topic_id: int, name: str) -> int:
        """Return how many milliseconds ago an object or group was first seen."""
        now = self._clock.now_ms()
        return now - self._first_seen.setdefault((topic_id, name), now)

    def _written_here(self, name: ObjectName) -> bool:
        """Return whether this start of the broker wrote an object. If it did and the catalog lacks it, it never counted."""
        return name.random.startswith(self._parts.hold.life)

    async def collect(
        self, topic: Topic, *, grace_ms: int = GRACE_MS, work: Work | None = None
    ) -> list[dict[str, Any]]:
        """Delete the objects that do not belong to the topic, and return them."""
        gone = await self.orphans(topic, grace_ms=grace_ms)
        names = [fact["key"].rpartition("/")[2] for fact in gone]
        if work is not None:
            work.total = len(names)
        failed = None
        for part in _cut(names):
            deleted, error = await self._delete(topic, part)
            failed = failed or error
            for name in deleted:
                self._first_seen.pop((topic.topic_id, name), None)
            if work is not None:
                work.done += len(deleted)
        # Remove the records of retired objects that are gone: deleted here, by hand, or by a start that then crashed
        await self.delete_retired(topic, grace_ms=grace_ms)
        if failed is not None:
            raise failed
        return gone

    def busy(self, topic_id: int) -> bool:
        """Return whether an object of the topic is being written. A deletion now would miss it."""
        folder = self._parts.folders.get(topic_id)
        return topic_id in self._flusher.in_flight or any(
            folder is not None and key.startswith(f"{folder}/") for key in self._flusher.merging
        )

    async def discard(self, topic_id: int) -> int:
        """Delete every object of a deleted topic, then its records in the catalog. Return the number of objects."""
        held = await self._parts.catalog.head(topic_id)
        if held is None:
            return 0
        folder = held.head.folder
        # A folder holds one topic id: all objects in it were written for this topic.
        assert folder.endswith(f"/{topic_id}"), f"{folder} is not the folder of topic {topic_id} alone"
        answer, _ = await self._parts.child.call("list", {"folder": folder})
        keys = [fact["key"] for fact in answer["objects"]]
        failed = None
        for part in _cut(random.sample(keys, len(keys))):
            _, error = await self._delete_keys(part)
            failed = failed or error
        if failed is not None:
            raise failed
        reached(TierStep.DISCARDED)
        await self._parts.catalog.forget_topic(topic_id)
        self._parts.folders.pop(topic_id, None)
        log.info("tier_topic_discarded", extra={"folder": folder, "objects": len(keys)})
        return len(keys)


def covered(ranges: Sequence[tuple[int, int]]) -> Callable[[int, int], bool]:
    """Return whether ascending ranges that do not overlap cover every offset of a range. Pure."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    starts = [start for start, _ in joined]

    def inside(start: int, end: int) -> bool:
        at = bisect_right(starts, start) - 1
        return at >= 0 and end <= joined[at][1]

    return inside


def _cut(keys: Sequence[str]) -> Iterable[list[str]]:
    for first in range(0, len(keys), _DELETE_AT_ONCE):
        yield list(keys[first : first + _DELETE_AT_ONCE])
