"""Maintenance of a topic's objects: compaction, retention, verification.

Each operation is one guarded change of the catalog, and deletes nothing before it. An object that leaves the catalog
is retired: it is deleted after a grace period (`collecting`), so that a reader that has listed it can finish.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from pydanube_core.errors import Conflict
from pydanube_core.kill_steps import reached
from pydanube_storage.catalog import CatalogEntry
from pydanube_storage.catalog.catalog import MAX_CHANGED
from pydanube_storage.objects import ObjectName

from pydanube_broker.long_work import Work
from pydanube_broker.tier.cold_reads import ColdReads, where
from pydanube_broker.tier.flushing import Flusher, entry_of, meta_of
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.steps import TierStep
from pydanube_broker.topics.retention import Keep, slowest_cursor
from pydanube_broker.topics.topic import Topic, earliest_ms

RETAINED_PIECES: Final = 8  # divisor of `retention_bytes`: a merge makes no larger object


def neighbours(
    entries: Sequence[CatalogEntry], *, object_bytes: int, at_least: int
) -> list[list[CatalogEntry]]:
    """Return runs of neighbours worth merging: `at_least` small ones that fit one object together. Pure."""
    found: list[list[CatalogEntry]] = []
    run: list[CatalogEntry] = []
    size = 0
    for entry in entries:
        fits = entry.bytes * 2 <= object_bytes and size + entry.bytes <= object_bytes
        if run and (not fits or len(run) == MAX_CHANGED):
            found.append(run)
            run, size = [], 0
        if entry.bytes * 2 <= object_bytes:
            run.append(entry)
            size += entry.bytes
    found.append(run)
    return [run for run in found if len(run) >= max(2, at_least)]


def expired(
    entries: Sequence[CatalogEntry], keep: Keep, *, total_bytes: int, now: int, slowest: int | None
) -> list[CatalogEntry]:
    """Return the first objects that retention deletes, past the slowest cursor only with `drop_unread`. Pure."""
    found: list[CatalogEntry] = []
    page = entries[:MAX_CHANGED]
    # A clock may have run ahead: an object is no newer than those after it.
    newest = list(accumulate((min(e.max_append_time_ms, now) for e in reversed(page)), min))[::-1]
    for entry, newest_ms in zip(page, newest, strict=True):
        if not keep.may_go(
            end=entry.end, newest_ms=newest_ms, bytes_left=total_bytes - entry.bytes, now=now, slowest=slowest
        ):
            break
        total_bytes -= entry.bytes
        found.append(entry)
    return found


class Upkeep:
    """Maintains objects. Methods raise errors of catalog and child, and leave nothing half done. Single user: the loop."""

    def __init__(self, parts: TierParts, flusher: Flusher, cold: ColdReads, *, object_bytes: int) -> None:
        self._parts = parts
        self._flusher = flusher
        self._cold = cold
        self._object_bytes = object_bytes
        self.merged = 0
        self.dropped = 0

    async def entries(self, topic: Topic) -> list[CatalogEntry]:
        return [entry async for entry in self._parts.catalog.entries(topic.topic_id)]

    async def compact(self, topic: Topic, *, at_least: int = 2, work: Work | None = None) -> int:
        """Merge small neighbours until there are none. Return how many objects were merged."""
        total = 0
        while merged := await self.compact_some(topic, at_least=at_least, work=work):
            total += merged
        return total

    async def compact_some(self, topic: Topic, *, at_least: int, work: Work | None = None) -> int:
        """Merge the first run of small neighbours. Return how many objects were merged."""
        await self._flusher.claim(topic)
        most = self._object_bytes
        if (
            kept := topic.gate.limits.retention_bytes
        ) > 0:  # retention deletes whole objects, so up to one of them is kept in excess
            most = min(most, kept // RETAINED_PIECES)
        runs = neighbours(await self.entries(topic), object_bytes=most, at_least=at_least)
        if work is not None:
            work.total = work.done + sum(len(run) for run in runs)
        if not runs:
            return 0
        await self._merge(topic, runs[0])
        if work is not None:
            work.done += len(runs[0])
        return len(runs[0])

    async def _merge(self, topic: Topic, run: Sequence[CatalogEntry]) -> None:
        self._parts.hold.check()
        size = sum(entry.bytes for entry in run)
        self._parts.room.check(size, f"a merge in {topic.name}")
        with self._parts.room.taken(size):
            await self._merge_into_one(topic, run)

    async def _merge_into_one(self, topic: Topic, run: Sequence[CatalogEntry]) -> None:
        folder, epoch = self._parts.folders[topic.topic_id], topic.assigned_epoch
        name = ObjectName(
            start=run[0].start,
            end=run[-1].end,
            epoch=epoch,
            generation=max(entry.generation for entry in run) + 1,
            random=f"{self._parts.hold.life}{secrets.token_hex(2)}",
        )
        key = f"{folder}/{name}"
        self._flusher.merging.add(key)
        try:
            facts, _ = await self._parts.child.call(
                "merge",
                {
                    "key": key,
                    "meta": meta_of(self._parts.cluster, topic.name, topic.topic_id, name)
                    | {"format_version": self._parts.object_format()},
                    "sources": [where(folder, entry) for entry in run],
                },
            )
            entry = entry_of(name, facts, epoch=run[-1].epoch)
            assert entry.messages == sum(each.messages for each in run), "a merge keeps every message"
            try:
                await self._parts.catalog.replace(topic.topic_id, run, entry, epoch=epoch)
            # Retention dropped a source since, or the topic is gone: the catalog will never list this object
            except Conflict:
                await self._parts.child.call("delete", {"keys": [key]})
                raise
        finally:
            self._flusher.merging.discard(key)
        reached(TierStep.REPLACED)
        self._cold.forget(topic.topic_id)
        self.merged += len(run)

    async def retain(self, topic: Topic, keep: Keep) -> int:
        """Remove the objects that retention permits from the catalog. Return how many."""
        if keep.everything or topic.state.tiered_offset <= topic.start_offset:
            return 0
        held = await self._parts.catalog.head(topic.topic_id)
        if held is None:
            return 0
        first = await self._parts.catalog.entries_page(topic.topic_id, limit=MAX_CHANGED)
        gone = expired(
            first,
            keep,
            total_bytes=held.head.bytes + self._flusher.backlog_bytes(topic),
            now=earliest_ms(),
            slowest=slowest_cursor(topic),
        )
        if not gone:
            return 0
        await self.drop(topic, gone, gone[-1].end)
        return len(gone)

    async def forecast(self, topic: Topic, keep: Keep) -> tuple[int, int]:
        """Return where a topic would begin under these limits, and the bytes that would be deleted."""
        start, taken, held = topic.start_offset, 0, await self._parts.catalog.head(topic.topic_id)
        if keep.everything or held is None:
            return start, taken
        total_bytes = held.head.bytes + self._flusher.backlog_bytes(topic)
        while page := await self._parts.catalog.entries_page(topic.topic_id, after=start, limit=MAX_CHANGED):
            gone = expired(
                page, keep, total_bytes=total_bytes - taken, now=earliest_ms(), slowest=slowest_cursor(topic)
            )
            taken += sum(entry.bytes for entry in gone)
            start = gone[-1].end if gone else start
            if len(gone) < len(page):
                break
        return start, taken

    async def drop(self, topic: Topic, gone: Sequence[CatalogEntry], start_offset: int) -> None:
        """Remove objects from the catalog, and let the topic begin at `start_offset`."""
        await self._flusher.claim(topic)
        await self._parts.catalog.drop(
            topic.topic_id, gone, start_offset=start_offset, epoch=topic.assigned_epoch
        )
        reached(TierStep.DROPPED)
        topic.trim(start_offset)
        reached(TierStep.RETAINED)
        self._cold.forget(topic.topic_id)
        self.dropped += len(gone)

    async def verify(
        self, topic: Topic, *, start: int, end: int | None, work: Work | None = None
    ) -> dict[str, Any]:
        """Read every object of a range back: {checked, damaged, missing, gaps, duplicates}, of paths and [start, end)."""
        gaps, duplicates = [], []
        damaged: list[dict[str, Any]] = []
        missing: list[dict[str, Any]] = []
        held = await self._parts.catalog.head(topic.topic_id)
        begins, tiered = (0, 0) if held is None else (held.head.start_offset, held.head.tiered_offset)
        until = tiered if end is None else min(end, tiered)
        checked, following = 0, begins if start <= begins else None  # where the next object should begin
        folder = self._parts.folders.get(topic.topic_id, "")
        async for entry in self._parts.catalog.entries(topic.topic_id, start=start, end=end):
            if following is not None and entry.start > following:
                gaps.append([following, entry.start])
            elif following is not None and max(entry.start, begins) < following:
                duplicates.append([entry.start, following])
            following = entry.end
            checked += 1
            asked = {**where(folder, entry), "digest": entry.digest, "messages": entry.messages}
            said, _ = await self._parts.child.call("check", asked)
            if said["state"] != "ok":
                found = damaged if said["state"] == "damaged" else missing
                found.append({"path": asked["key"], "why": said["why"]})
            if work is not None:
                work.done += 1
        if following is not None and following < until:
            gaps.append([following, until])
        return {
            "checked": checked,
            "damaged": damaged,
            "missing": missing,
            "gaps": gaps,
            "duplicates": duplicates,
        }
