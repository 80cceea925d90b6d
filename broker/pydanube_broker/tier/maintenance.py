"""Maintain the objects of topics, a little at a time: retention, compaction, retired objects, leftovers of crashes, deletions.

Every topic, also a busy one, has its turn, and a turn is short: one page of retention, one merge. A failure concerns
its topic alone: it is noted, shown, and tried again later, while other topics continue. Each part of a turn runs even
if the part before failed, so that an object that cannot be deleted blocks nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from pydanube_core.errors import ClusterError, DiskFull, Internal

from pydanube_broker.tier.collecting import GRACE_MS, Collector
from pydanube_broker.tier.failing import Failures
from pydanube_broker.tier.flushing import Flusher
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.upkeep import Upkeep
from pydanube_broker.topics.retention import Keep
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.tier")

COMPACT_AT: Final = 16  # small neighbours that are merged automatically
_TURN_S: Final = 0.5  # of a turn for deleted topics, and again for the others
_NO_ROOM_PAUSE_S: Final = 2.0  # between two checks of the disk's room for a merge
_LATELY_S: Final = 5.0


class Maintenance:
    """Maintains topics in turns. `note` reads a topic's size from the catalog after a change. Single user: the loop."""

    def __init__(
        self,
        parts: TierParts,
        flusher: Flusher,
        upkeep: Upkeep,
        collector: Collector,
        note: Callable[[Topic], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._flusher = flusher
        self._upkeep = upkeep
        self._collector = collector
        self._note = note
        self._waiting: deque[Topic] = deque()  # whose turn is still to come
        self._fresh: dict[int, int] = {}  # topic id → objects committed since its neighbours were looked at
        self._collected: set[int] = set()
        self._collect_again_s: dict[int, float] = {}
        self._deleted: deque[int] = deque()  # deleted topics that may still have objects
        self._no_room: DiskFull | None = None  # why merges wait. Other maintenance does not
        self._merge_again_s = 0.0
        self.retired: set[int] = set()  # topics that have objects to delete when their grace time is over
        self.troubles = Failures("tier_upkeep_failed")  # topic id → why its upkeep failed

    def no_room(self) -> DiskFull | None:
        """The reason why a merge was postponed recently, for lack of disk space, or None if none was."""
        lately = asyncio.get_running_loop().time() < self._merge_again_s + _LATELY_S
        return self._no_room if lately else None

    def committed(self, topic_id: int) -> None:
        """Note that a topic has one more object."""
        self._fresh[topic_id] = self._fresh.get(topic_id, 0) + 1

    def topic_deleted(self, topic_id: int) -> None:
        """Delete the objects of a deleted topic, now or after a later start."""
        self._collected.discard(topic_id)
        self._collect_again_s.pop(topic_id, None)
        self.retired.discard(topic_id)
        self._fresh.pop(topic_id, None)
        self.troubles.pop(topic_id, None)
        self._deleted.append(topic_id)

    async def turn(self) -> None:
        """Maintain topics for a moment. Raises only when cancelled."""
        clock = asyncio.get_running_loop().time
        until = clock() + _TURN_S
        for _ in range(len(self._deleted)):
            topic_id = self._deleted.popleft()
            if self._collector.busy(topic_id) or self.troubles.pausing(topic_id):
                self._deleted.append(topic_id)  # its turn comes when nothing is uploaded for it any more
            elif await self._try(topic_id, f"deleted topic {topic_id}", self._collector.discard(topic_id)):
                self.troubles.pop(topic_id, None)
            else:
                self._deleted.append(topic_id)
            if clock() >= until:
                break
        if not self._waiting:
            self._waiting.extend(
                t for t in self._parts.hub.topics.values() if t.topic_id in self._parts.folders
            )
        until = clock() + _TURN_S  # existing topics get their time even if many were deleted
        while self._waiting and clock() < until:
            topic = self._waiting.popleft()
            if topic.closed is None and not self.troubles.pausing(topic.topic_id):
                await self._tend(topic)

    async def _tend(self, topic: Topic) -> None:
        parts = list(self._due(topic))
        if not parts:
            return
        went_well = True
        for part in (self._flusher.claim, *parts, self._note):
            if not await self._try(topic.topic_id, topic.name, part(topic)):
                went_well = False
                if part == self._flusher.claim:
                    return
            if topic.closed is not None:
                return
        if went_well:
            self.troubles.pop(topic.topic_id, None)

    def _due(self, topic: Topic) -> Iterator[Callable[[Topic], Awaitable[object]]]:
        topic_id = topic.topic_id
        first = topic_id not in self._collected
        if first and asyncio.get_running_loop().time() < self._collect_again_s.get(topic_id, 0.0):
            first = False
        if not Keep.of(topic.gate.limits).everything:
            yield self._retain
        if (
            first or self._fresh.get(topic_id, 0) >= COMPACT_AT
        ) and asyncio.get_running_loop().time() >= self._merge_again_s:
            yield self._compact
        if topic_id in self.retired:
            yield self._delete_retired
        if first:
            yield self._collect

    async def _retain(self, topic: Topic) -> None:
        if await self._upkeep.retain(topic, Keep.of(topic.gate.limits)):
            self.retired.add(topic.topic_id)

    async def _compact(self, topic: Topic) -> None:
        fresh = self._fresh.pop(topic.topic_id, 0)
        try:
            merged = await self._upkeep.compact_some(topic, at_least=COMPACT_AT)
        except DiskFull as error:
            self._fresh[topic.topic_id] = max(fresh, COMPACT_AT)
            self._no_room = error
            self._merge_again_s = asyncio.get_running_loop().time() + _NO_ROOM_PAUSE_S
            return
        except BaseException:
            self._fresh[topic.topic_id] = max(fresh, COMPACT_AT)
            raise
        if merged:
            self._no_room = None
            self.retired.add(topic.topic_id)
            self._fresh[topic.topic_id] = COMPACT_AT  # there may be more: at its next turn

    async def _delete_retired(self, topic: Topic) -> None:
        await self._collector.delete_retired(topic, grace_ms=GRACE_MS)

    async def _collect(self, topic: Topic) -> None:
        """Once after a start, delete objects that the last one left unfinished."""
        gone = await self._collector.collect(topic)
        if topic.topic_id in self._collector.young:  # once more, when they are old enough
            self._collect_again_s[topic.topic_id] = asyncio.get_running_loop().time() + GRACE_MS / 1000 + 1
        else:
            self._collect_again_s.pop(topic.topic_id, None)
            self._collected.add(topic.topic_id)
        self.retired.add(topic.topic_id)
        if gone:
            log.info("tier_orphans_deleted", extra={"topic": topic.name, "objects": len(gone)})

    async def _try(self, topic_id: int, name: str, part: Awaitable[object]) -> bool:
        try:
            await part
        except ClusterError as error:
            self._failed(topic_id, name, error)
        except Exception as error:
            log.exception("tier_upkeep_failed", extra={"topic": name})
            self._failed(topic_id, name, Internal(f"looking after {name} failed: {error!r}"))
        else:
            return True
        return False

    def _failed(self, topic_id: int, name: str, error: ClusterError) -> None:
        self.troubles.note(topic_id, name, error, more=not self.troubles.pausing(topic_id))  # once a turn
