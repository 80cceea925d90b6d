"""Tiering: which topic is due, and the way of one object from the journal to the catalog.

A topic is due by size or by age; the oldest goes first, under a budget of objects a second for the whole broker. One
object: plan (positions of committed batches behind the tiered offset) → the child encodes, uploads, reads it back →
the catalog takes it, guarded by the owner's epoch → the topic's tiered offset moves → the journal may forget. Nothing
before the catalog's change counts, and everything before it may be repeated; a crash leaves an object that nobody
lists, which its owner collects.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import ClusterError, StoreUnavailable
from pydanube_core.names import TopicName
from pydanube_storage.catalog import CatalogEntry, CatalogFenced, ObjectCatalog
from pydanube_storage.objects import ObjectName, topic_folder

from pydanube_broker.tier.child import ChildDied, TierChild
from pydanube_broker.tier.steps import Step, reached
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.topic import Topic, now_ms

__all__ = ["Due", "Failure", "Flusher"]

log = logging.getLogger("pydanube.tier")

_FIRST_PAUSE_MS: Final = 1_000
_LONGEST_PAUSE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A topic that has something to flush; `since_ms` is the append time of the oldest."""

    topic: Topic
    since_ms: int
    bytes: int
    forced: bool = False


@dataclass(slots=True)
class Failure:
    """A topic that could not be tiered, and when it is tried again."""

    error: ClusterError
    count: int
    again_ms: int


class Flusher:
    """Single user: the loop."""

    def __init__(
        self,
        hub: Hub,
        catalog: ObjectCatalog,
        child: TierChild,
        folders: dict[int, str],
        *,
        cluster: str,
        flush_bytes: int,
        object_bytes: int,
        flush_age_ms: int,
    ) -> None:
        self._hub = hub
        self._catalog = catalog
        self._child = child
        self._folders = folders
        self._cluster = cluster
        self._flush_bytes = flush_bytes
        self._object_bytes = max(object_bytes, flush_bytes)
        self._flush_age_ms = flush_age_ms
        self._flushed: dict[int, int] = {}  # topic id → its stored bytes at the last flush
        self._claimed: dict[int, int] = {}  # topic id → epoch
        self.in_flight: dict[int, str] = {}  # topic id → key of the object under way
        self.merging: set[str] = set()  # keys of compacted objects under way
        self.failures: dict[int, Failure] = {}
        self.objects = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.errors = 0
        self.after_commit: Callable[[Topic], None] = lambda topic: None

    # -- which -----------------------------------------------------------------------------------------------

    def backlog_bytes(self, topic: Topic) -> int:
        """Stored bytes that are not tiered, about: what was appended and not committed is among them."""
        state = topic.state
        flushed = self._flushed.get(topic.topic_id)
        if flushed is None:
            waiting = self._hub.journal.stored_bytes(topic.topic_id, state.tiered_offset)
            flushed = self._flushed[topic.topic_id] = state.stored_bytes - waiting
        return state.stored_bytes - flushed

    def due(self, topic: Topic, now: int, *, force: bool = False) -> Due | None:
        """Whether a topic should be flushed now."""
        state = topic.state
        if state.tiered_offset >= topic.commit or topic.closed is not None:
            return None
        failure = self.failures.get(topic.topic_id)
        if topic.topic_id in self.in_flight or (failure is not None and now < failure.again_ms and not force):
            return None
        since = self._hub.journal.time_at_offset(topic.topic_id, state.tiered_offset)
        if since is None:
            return None
        size = self.backlog_bytes(topic)
        if not (force or size >= self._flush_bytes or now - since >= self._flush_age_ms):
            return None
        return Due(topic=topic, since_ms=since, bytes=size, forced=force)

    # -- one object ------------------------------------------------------------------------------------------

    async def flush(self, topic: Topic) -> bool:
        """Tier the topic's next part; whether it went well. Never raises but when cancelled."""
        if topic.topic_id in self.in_flight:
            return False
        self.in_flight[topic.topic_id] = ""
        try:
            await self._flush(topic)
        except ClusterError as error:
            self._note(topic, error)
            return False
        finally:
            self.in_flight.pop(topic.topic_id, None)
        self.failures.pop(topic.topic_id, None)
        return True

    def _note(self, topic: Topic, error: ClusterError) -> None:
        if topic.closed is not None:
            return
        self.errors += 1
        former = self.failures.get(topic.topic_id)
        count = 1 if former is None else former.count + 1
        pause = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS << min(count - 1, 6))
        if isinstance(error, ChildDied) and count <= 2:
            pause = 0
        self.failures[topic.topic_id] = Failure(error, count, now_ms() + pause)
        log.warning(
            "tier_flush_failed",
            extra={
                "event": "tier_flush_failed",
                "topic": topic.name,
                "code": error.code,
                "error": error.message,
                "attempts": count,
                "again_in_s": pause / 1000,
            },
        )

    async def claim(self, topic: Topic) -> None:
        """Make this owner's epoch the one that may change the topic's objects, and take over what the head says."""
        epoch = topic.assigned_epoch
        if self._claimed.get(topic.topic_id) == epoch:
            return
        name = TopicName.parse(topic.name)
        held = await self._catalog.claim(
            topic.topic_id,
            epoch=epoch,
            folder=topic_folder(self._cluster, name.namespace, name.name, topic.topic_id),
            start_offset=topic.start_offset,
        )
        if not held.head.objects and topic.start_offset > held.head.tiered_offset:
            held = await self._catalog.skip(topic.topic_id, start_offset=topic.start_offset, epoch=epoch)
        self._folders[topic.topic_id] = held.head.folder
        topic.state.tiered_offset = max(topic.state.tiered_offset, held.head.tiered_offset)
        self._claimed[topic.topic_id] = epoch

    async def _flush(self, topic: Topic) -> None:
        await self.claim(topic)
        state, epoch = topic.state, topic.assigned_epoch
        start = state.tiered_offset
        segments, end, size = self._hub.journal.places(
            topic.topic_id, start, topic.commit, self._object_bytes
        )
        if not segments:
            return
        before = state.stored_bytes - self._hub.journal.stored_bytes(topic.topic_id, end)
        name = ObjectName(start=start, end=end, epoch=epoch, generation=0, random=secrets.token_hex(4))
        key = f"{self._folders[topic.topic_id]}/{name}"
        self.in_flight[topic.topic_id] = key
        subscriptions = subscriptions_of(topic)
        schemas = dict(topic.options.settings.schema or {})
        reached(Step.PLANNED)
        facts, _ = await self._child.call(
            "flush",
            {
                "key": key,
                "segments": [[str(path), len(places) // 8] for path, places in segments],
                "meta": {
                    "cluster": self._cluster,
                    "topic": topic.name,
                    "topic_id": topic.topic_id,
                    "start": start,
                    "end": end,
                    "subscriptions": subscriptions,
                    "schemas": schemas,
                },
            },
            b"".join(places for _, places in segments),
        )
        reached(Step.ANSWERED)
        if topic.closed is not None:
            await self._child.call("delete", {"keys": [key]})
            return
        entry = entry_of(str(name), facts, start=start, end=end, epoch=epoch, generation=0)
        try:
            await self._catalog.append(
                topic.topic_id,
                entry,
                epoch=epoch,
                epochs=[(number, first) for number, first in facts["epochs"]],
                producers=producers_of(topic),
                subscriptions=subscriptions,
                schemas=schemas,
            )
        except CatalogFenced:
            self._claimed.pop(topic.topic_id, None)
            raise
        reached(Step.COMMITTED)
        # From here on the object is the topic: catalog and object are on stable storage, read back and compared.
        state.tiered_offset = end
        self._flushed[topic.topic_id] = before
        self.objects += 1
        self.bytes_in += size
        self.bytes_out += entry.bytes
        self.after_commit(topic)

    def forget(self, topic_id: int) -> None:
        """The topic was deleted."""
        self._flushed.pop(topic_id, None)
        self._claimed.pop(topic_id, None)
        self.failures.pop(topic_id, None)

    def store_error(self) -> StoreUnavailable | None:
        """Why the store takes nothing now, if that is so."""
        for failure in self.failures.values():
            if isinstance(failure.error, StoreUnavailable):
                return failure.error
        return None


def entry_of(
    name: str, facts: dict[str, Any], *, start: int, end: int, epoch: int, generation: int
) -> CatalogEntry:
    return CatalogEntry(
        name=name,
        start=start,
        end=end,
        messages=facts["messages"],
        bytes=facts["bytes"],
        min_append_time_ms=facts["min_append_time_ms"],
        max_append_time_ms=facts["max_append_time_ms"],
        epoch=epoch,
        generation=generation,
        digest=facts["digest"],
        footer_bytes=facts["footer_bytes"],
        footer_crc=facts["footer_crc"],
        committed_at_ms=now_ms(),
    )


def subscriptions_of(topic: Topic) -> dict[str, Any]:
    """The topic's subscriptions as a head and a footer carry them: id, type, everything below is acknowledged."""
    return {
        name: {"id": pump.subscription_id, "type": pump.type.value, "next_unacked": pump.cursor.floor}
        for name, pump in sorted(topic.subscriptions.items())
    }


def producers_of(topic: Topic) -> list[Any]:
    """Sessions of idempotent producers: id, epoch, name, next sequence."""
    return [
        [session.producer_id, session.epoch, session.name, session.next_sequence]
        for session in topic.state.producers.sessions()
    ]
