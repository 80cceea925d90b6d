"""What keeps the objects of a topic few, young enough and accounted for: compaction, retention, orphans.

Each is one guarded change of the catalog, before which nothing is deleted. What leaves the catalog retires: its object is
deleted after a grace time, so that who listed it may finish. Only the topic's owner deletes, and only names that no
catalog has: of lower epochs, or of its own and not in flight.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydanube_storage.catalog import CatalogEntry, ObjectCatalog
from pydanube_storage.catalog.catalog import MAX_CHANGED
from pydanube_storage.objects import ObjectName

from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.cold_reads import ColdReads
from pydanube_broker.tier.flushing import Flusher, entry_of
from pydanube_broker.tier.steps import Step, reached
from pydanube_broker.topics.topic import Topic, now_ms

__all__ = ["Keep", "Upkeep", "expired", "neighbours"]

log = logging.getLogger("pydanube.tier")

GRACE_MS: Final = 300_000
_DELETE_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How much of a topic stays; None: everything."""

    bytes: int | None = None
    age_ms: int | None = None
    drop_unread: bool = False

    @classmethod
    def of(cls, *policies: Mapping[str, Any]) -> Keep:
        """The first of the tables that sets a policy decides it: the topic's, then the namespace's."""

        def first(name: str) -> Any:
            return next((table[name] for table in policies if table.get(name)), None)

        age_s = first("retention_age_s")
        return cls(
            bytes=first("retention_bytes"),
            age_ms=None if age_s is None else int(age_s * 1000),
            drop_unread=bool(first("drop_unread")),
        )

    @property
    def everything(self) -> bool:
        return self.bytes is None and self.age_ms is None


def neighbours(
    entries: Sequence[CatalogEntry], *, object_bytes: int, at_least: int
) -> list[list[CatalogEntry]]:
    """Runs of neighbours worth merging: small ones that fit one object together, `at_least` of them. Pure."""
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
    """The first objects that retention takes: whole ones, never past the slowest cursor unless told so. Pure."""
    found: list[CatalogEntry] = []
    for entry in entries[:MAX_CHANGED]:
        too_old = keep.age_ms is not None and entry.max_append_time_ms < now - keep.age_ms
        too_much = keep.bytes is not None and total_bytes > keep.bytes
        unread = slowest is not None and entry.end > slowest and not keep.drop_unread
        if unread or not (too_old or too_much):
            break
        total_bytes -= entry.bytes
        found.append(entry)
    return found


class Upkeep:
    """Single user: the loop. Each method raises what catalog and child raise; nothing is half done."""

    def __init__(
        self,
        catalog: ObjectCatalog,
        child: TierChild,
        folders: dict[int, str],
        flusher: Flusher,
        cold: ColdReads,
        *,
        cluster: str,
        object_bytes: int,
    ) -> None:
        self._catalog = catalog
        self._child = child
        self._folders = folders
        self._flusher = flusher
        self._cold = cold
        self._cluster = cluster
        self._object_bytes = object_bytes
        self.merged = 0
        self.dropped = 0
        self.deleted = 0

    async def entries(self, topic: Topic) -> list[CatalogEntry]:
        return [entry async for entry in self._catalog.entries(topic.topic_id)]

    async def compact(self, topic: Topic, *, at_least: int = 2) -> int:
        """Merge small neighbours, as long as there are any; returns how many objects went into others."""
        await self._flusher.claim(topic)
        total = 0
        while runs := neighbours(
            await self.entries(topic), object_bytes=self._object_bytes, at_least=at_least
        ):
            for run in runs:
                await self._merge(topic, run)
                total += len(run)
                await self.delete_retired(topic, grace_ms=GRACE_MS)
        return total

    async def _merge(self, topic: Topic, run: Sequence[CatalogEntry]) -> None:
        folder, epoch = self._folders[topic.topic_id], topic.assigned_epoch
        generation = max(entry.generation for entry in run) + 1
        start, end = run[0].start, run[-1].end
        name = ObjectName(
            start=start, end=end, epoch=epoch, generation=generation, random=secrets.token_hex(4)
        )
        key = f"{folder}/{name}"
        self._flusher.merging.add(key)
        try:
            facts, _ = await self._child.call(
                "merge",
                {
                    "key": key,
                    "meta": {
                        "cluster": self._cluster,
                        "topic": topic.name,
                        "topic_id": topic.topic_id,
                        "start": start,
                        "end": end,
                    },
                    "sources": [
                        {
                            "key": f"{folder}/{entry.name}",
                            "bytes": entry.bytes,
                            "footer_bytes": entry.footer_bytes,
                            "footer_crc": entry.footer_crc,
                        }
                        for entry in run
                    ],
                },
            )
            entry = entry_of(
                str(name), facts, start=start, end=end, epoch=run[-1].epoch, generation=generation
            )
            assert entry.messages == sum(each.messages for each in run), "a merge keeps every message"
            await self._catalog.replace(topic.topic_id, run, entry, epoch=epoch)
        finally:
            self._flusher.merging.discard(key)
        reached(Step.REPLACED)
        self._cold.forget(topic.topic_id)
        self.merged += len(run)

    async def retain(self, topic: Topic, keep: Keep) -> int:
        """Take what retention allows out of the catalog; returns how many objects."""
        if keep.everything or topic.state.tiered_offset <= topic.start_offset:
            return 0
        held = await self._catalog.head(topic.topic_id)
        if held is None:
            return 0
        slowest = min((pump.cursor.floor for pump in topic.subscriptions.values()), default=None)
        first = await self._catalog.entries_page(topic.topic_id, limit=MAX_CHANGED)
        gone = expired(first, keep, total_bytes=held.head.bytes, now=now_ms(), slowest=slowest)
        if not gone:
            return 0
        await self.drop(topic, gone, gone[-1].end)
        return len(gone)

    async def drop(self, topic: Topic, gone: Sequence[CatalogEntry], start_offset: int) -> None:
        """The topic begins at `start_offset` from now on."""
        await self._flusher.claim(topic)
        await self._catalog.drop(topic.topic_id, gone, start_offset=start_offset, epoch=topic.assigned_epoch)
        reached(Step.DROPPED)
        topic.trim(start_offset)
        self._cold.forget(topic.topic_id)
        self.dropped += len(gone)

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

    async def collect(self, topic: Topic, *, grace_ms: int = GRACE_MS) -> list[dict[str, Any]]:
        """Delete what is not the topic; returns what was."""
        gone = await self.orphans(topic, grace_ms=grace_ms)
        names = [fact["key"].rpartition("/")[2] for fact in gone]
        for first in range(0, len(names), _DELETE_AT_ONCE):
            await self._delete(topic, names[first : first + _DELETE_AT_ONCE])
        held = await self._catalog.head(topic.topic_id)
        if held is not None:  # deleted by hand, or by a life that died before it said so
            left = [each.name for each in held.head.retired if each.at_ms + grace_ms <= now_ms()]
            await self._catalog.forget_retired(topic.topic_id, left, epoch=topic.assigned_epoch)
        return gone

    async def verify(self, topic: Topic, *, start: int, end: int | None) -> dict[str, Any]:
        """Read every object of a range back: {checked, damaged, missing, gaps, duplicates}, of paths and [start, end)."""
        damaged, missing, gaps, duplicates = [], [], [], []
        held = await self._catalog.head(topic.topic_id)
        begins = 0 if held is None else held.head.start_offset
        checked, following = 0, begins if start <= begins else None  # where the next object should begin
        folder = self._folders.get(topic.topic_id, "")
        async for entry in self._catalog.entries(topic.topic_id, start=start, end=end):
            if following is not None and entry.start > following:
                gaps.append([following, entry.start])
            elif following is not None and max(entry.start, begins) < following:
                duplicates.append([entry.start, following])
            following = entry.end
            checked += 1
            key = f"{folder}/{entry.name}"
            said, _ = await self._child.call(
                "check",
                {
                    "key": key,
                    "bytes": entry.bytes,
                    "footer_bytes": entry.footer_bytes,
                    "footer_crc": entry.footer_crc,
                    "digest": entry.digest,
                    "messages": entry.messages,
                },
            )
            if said["state"] == "damaged":
                damaged.append({"path": key, "why": said["why"]})
            elif said["state"] == "missing":
                missing.append({"path": key, "why": said["why"]})
        return {
            "checked": checked,
            "damaged": damaged,
            "missing": missing,
            "gaps": gaps,
            "duplicates": duplicates,
        }
