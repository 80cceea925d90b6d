"""Check objects of the cold tier in the background, one after another, so that a lost or damaged one is noticed before it is read.

A check compares length and footer with the catalog: two requests to the store, and at most 64 KiB. An object that a reader could
not read is checked whole, because a damaged page does not show in the footer. Bad objects are checked again in turn with the others,
so that one that was restored, or that left the catalog, is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import ClusterError
from pydanube_storage.catalog import CatalogEntry

from pydanube_broker.tier.cold_reads import where
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.tier")

MOST_BAD: Final = 100  # objects that are kept. With more, the store needs a whole verification
MOST_LOOKED: Final = 20  # topics of one turn: some have no objects
MOST_READ: Final = 100  # places at which readers failed, until their objects are checked


@dataclass(frozen=True, slots=True, kw_only=True)
class BadObject:
    """An object that the catalog lists, and that is missing or damaged."""

    topic: Topic
    key: str
    start: int
    end: int
    state: str  # missing or damaged
    why: str
    since_ms: int
    by_reader: bool  # a reader met it, so it is checked whole


class ObjectChecks:
    """Checks one object each `every_s` seconds. Single user: the loop."""

    def __init__(self, parts: TierParts, *, every_s: float) -> None:
        self._parts = parts
        self._every_s = every_s
        self._again_s = 0.0
        self._topics: deque[int] = deque()
        self._after: dict[int, int] = {}  # topic id → end of its object that was checked last
        self._read: dict[tuple[int, int], None] = {}  # (topic id, offset) at which a reader failed
        self._was_bad = False  # whether the last check was of a bad object
        self.bad: dict[str, BadObject] = {}  # by key, oldest check first
        self.checked = 0

    def reader_failed(self, topic_id: int, offset: int) -> None:
        """Check the object with an offset next, whole: a reader found it missing or damaged."""
        if len(self._read) < MOST_READ and not any(
            one.topic.topic_id == topic_id and one.start <= offset < one.end for one in self.bad.values()
        ):
            self._read[topic_id, offset] = None

    def statistics(self) -> tuple[BadObject, ...]:
        """Return the bad objects of topics that are served here."""
        return tuple(one for one in self.bad.values() if one.topic.closed is None)

    async def turn(self) -> None:
        """Check an object if one is due. Raises only when cancelled."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._again_s and not self._read:
            return
        self._again_s = now_s + self._every_s
        with contextlib.suppress(ClusterError):  # the store is away, which its own reasons report
            await self._next()

    async def _next(self) -> None:
        if self._read:
            topic_id, offset = next(iter(self._read))
            del self._read[topic_id, offset]
            topic = self._parts.hub.topics.get(topic_id)
            entry = None if topic is None else await self._parts.catalog.find(topic_id, offset)
            if topic is not None and entry is not None:
                await self._check(topic, entry, whole=True)
            return
        self._was_bad = bool(self.bad) and not self._was_bad
        if self._was_bad:
            await self._again(next(iter(self.bad.values())))
            return
        if not self._topics:
            self._topics.extend(id_ for id_ in self._parts.folders if id_ in self._parts.hub.topics)
            self._after = {id_: self._after.get(id_, 0) for id_ in self._topics}
        for _ in range(min(len(self._topics), MOST_LOOKED)):
            topic_id = self._topics.popleft()
            topic = self._parts.hub.topics.get(topic_id)
            entry = None if topic is None else await self._entry(topic_id)
            if topic is not None and entry is not None:
                self._after[topic_id] = entry.end
                await self._check(topic, entry, whole=False)
                return

    async def _entry(self, topic_id: int) -> CatalogEntry | None:
        """Return the object of a topic whose turn it is: the one after the last, or the first again."""
        catalog, after = self._parts.catalog, self._after.get(topic_id, 0)
        page = await catalog.entries_page(topic_id, after=after, limit=1)
        if not page and after:
            page = await catalog.entries_page(topic_id, limit=1)
        return page[0] if page else None

    async def _again(self, bad: BadObject) -> None:
        del self.bad[bad.key]
        try:
            topic = self._parts.hub.topics.get(bad.topic.topic_id)
            entry = None if topic is None else await self._parts.catalog.find(topic.topic_id, bad.start)
            if topic is not None and entry is not None and bad.key.endswith(f"/{entry.name}"):
                await self._check(topic, entry, whole=bad.by_reader, since_ms=bad.since_ms)
        except ClusterError:
            self.bad[bad.key] = bad
            raise

    async def _check(
        self, topic: Topic, entry: CatalogEntry, *, whole: bool, since_ms: int | None = None
    ) -> None:
        asked = {**where(self._parts.folders[topic.topic_id], entry), "messages": entry.messages}
        key = str(asked["key"])
        if key in self.bad:
            return  # it has turns of its own
        said, _ = await self._parts.child.call("check", asked | ({"digest": entry.digest} if whole else {}))
        self.checked += 1
        if said["state"] == "ok":
            return
        now = await self._parts.catalog.find(topic.topic_id, entry.start)
        if now is None or now.name != entry.name or len(self.bad) >= MOST_BAD:
            return  # it was merged or deleted since
        if since_ms is None:
            log.error("object_damaged", extra={"topic": topic.name, "object": key, "error": said["why"]})
        self.bad[key] = BadObject(
            topic=topic,
            key=key,
            start=entry.start,
            end=entry.end,
            state=said["state"],
            why=said["why"],
            since_ms=since_ms or now_ms(),
            by_reader=whole,
        )
