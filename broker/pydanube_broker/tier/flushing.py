"""Flush topics to the cold tier: which topic is due, and the steps of an object from the journal to the catalog.

A topic is due by size or by age. The oldest goes first, under a budget of objects per second for the whole broker.
The steps of an object: plan (positions of committed batches from the tiered offset on) → the child encodes, uploads,
reads it back → the catalog takes it, guarded by the owner's epoch → the topic's tiered offset moves → the journal may
forget. An object counts only with the catalog's change, and all steps before it may be repeated. A crash leaves an
unlisted object, which its owner collects.

A topic with a long backlog has two objects under way, so that one is encoded while the other is uploaded and read
back. They are committed in order: the second waits for the first, and is deleted if the first fails.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import ClusterError, MetadataUnavailable, StoreUnavailable
from pydanube_core.kill_steps import reached
from pydanube_core.names import TopicName
from pydanube_storage.catalog import CatalogEntry, CatalogFenced
from pydanube_storage.objects import ObjectName, topic_folder

from pydanube_broker.settings.sections import Tier as TierSettings
from pydanube_broker.tier.child import ChildDied, TierChild
from pydanube_broker.tier.failing import Failures
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.steps import TierStep
from pydanube_broker.topics.topic import Topic, now_ms

_FLIGHTS: Final = 2  # objects of one topic under way
_URGENT_FLUSHES: Final = 16  # backlog in flushes from which the child no longer gives way to producers


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A topic with something to flush. `since_ms` is the append time of the oldest message."""

    topic: Topic
    since_ms: int
    bytes: int
    forced: bool = False


@dataclass(slots=True, eq=False)
class _Flight:
    """An object being written. `committed` is set when it ends, and the next object of the topic waits for it."""

    end: int  # one past its last offset
    before: int  # stored bytes of the topic below `end`
    committed: asyncio.Future[bool]


class Flusher:
    """The task that writes journal records as objects. Single user: the loop."""

    def __init__(self, parts: TierParts, sizes: TierSettings) -> None:
        self._parts = parts
        self._flush_bytes = sizes.flush_bytes
        self._object_bytes = max(sizes.object_bytes, sizes.flush_bytes)
        self._flush_age_ms = int(sizes.flush_age * 1000)
        self._flushed: dict[int, int] = {}  # topic id → its stored bytes at the last flush
        # topic id → next offset, its age when first seen, and the loop's time then
        self._waiting_since: dict[int, tuple[int, int, float]] = {}
        self._claimed: dict[int, int] = {}  # topic id → epoch
        self._flights: dict[int, list[_Flight]] = {}  # topic id → in order of their offsets
        self.in_flight: dict[int, str] = {}  # topic id → key of the object under way that was planned last
        self.merging: set[str] = set()  # keys of the other objects under way: compacted, or planned before
        self.failures = Failures("tier_flush_failed")
        self.objects = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.errors = 0
        self.after_commit: Callable[[Topic], None] = lambda topic: None

    # -- which -----------------------------------------------------------------------------------------------

    def backlog_bytes(self, topic: Topic) -> int:
        """Return about how many stored bytes are not tiered, uncommitted ones included."""
        state = topic.state
        flushed = self._flushed.get(topic.topic_id)
        if flushed is None:
            waiting = self._parts.hub.journal.stored_bytes(topic.topic_id, state.tiered_offset)
            flushed = self._flushed[topic.topic_id] = state.stored_bytes - waiting
        return state.stored_bytes - flushed

    def due(self, topic: Topic, now: int, *, force: bool = False) -> Due | None:
        """Return the topic if it should be flushed now, else None."""
        state = topic.state
        if state.tiered_offset >= topic.commit or topic.closed is not None:
            return None
        if self.failures.pausing(topic.topic_id) and not force:
            return None
        flights = self._flights.get(topic.topic_id)
        if flights is not None:
            following = self._following(topic)
            if following is None:
                return None
            start, size = following
        elif topic.topic_id in self.in_flight:
            return None
        else:
            start, size = state.tiered_offset, self.backlog_bytes(topic)
        age_ms = self._age_ms(topic.topic_id, start, now)
        if age_ms is None:
            return None
        if not (force or size >= self._flush_bytes or age_ms >= self._flush_age_ms):
            return None
        return Due(topic=topic, since_ms=now - age_ms, bytes=size, forced=force)

    def waiting(self, topic: Topic, now: int, *, force: bool = False) -> int | None:
        """Return the append time of a topic's oldest message that should be tiered by now, or None if there is none."""
        state = topic.state
        if state.tiered_offset >= topic.commit or topic.closed is not None:
            return None
        if topic.topic_id in self._flights:  # `_age_ms` keeps the age of the message after those
            time_ms = self._parts.hub.journal.time_at_offset(topic.topic_id, state.tiered_offset)
            age_ms = None if time_ms is None else max(0, now - time_ms)
        else:
            age_ms = self._age_ms(topic.topic_id, state.tiered_offset, now)
        if age_ms is None:
            return None
        late = force or age_ms >= self._flush_age_ms or self.backlog_bytes(topic) >= self._flush_bytes
        return now - age_ms if late else None

    def _age_ms(self, topic_id: int, start: int, now: int) -> int | None:
        """Return the age of the next message to flush: by the wall clock when first seen, from then on by the loop's clock."""
        known = self._waiting_since.get(topic_id)
        now_s = asyncio.get_running_loop().time()
        if known is None or known[0] != start:
            time_ms = self._parts.hub.journal.time_at_offset(topic_id, start)
            if time_ms is None:
                return None
            known = self._waiting_since[topic_id] = (start, max(0, now - time_ms), now_s)
        return known[1] + round((now_s - known[2]) * 1000)

    def _following(self, topic: Topic) -> tuple[int, int] | None:
        """Return the start of the object after those under way, and the bytes from there. None: none is to be written."""
        flights = self._flights[topic.topic_id]
        size = topic.state.stored_bytes - flights[-1].before
        if len(flights) >= _FLIGHTS or topic.topic_id in self.failures or size < self._object_bytes:
            return None
        return flights[-1].end, size

    @property
    def urgent_bytes(self) -> int:
        """The broker's backlog in bytes from which the child gets its full share of the processor: it must not grow for ever."""
        return _URGENT_FLUSHES * self._flush_bytes

    # -- one object ------------------------------------------------------------------------------------------

    async def flush(self, topic: Topic, *, urgent: bool = False) -> bool:
        """Flush the topic's next part. Return whether that succeeded. Raises only when cancelled.

        Args:
            urgent: the backlog is long, so the child does not give way to consumers and producers.
        """
        topic_id = topic.topic_id
        flights = self._flights.get(topic_id)
        if topic_id in self.in_flight and (flights is None or self._following(topic) is None):
            return False
        if flights is None:
            self.in_flight[topic_id] = ""
        try:
            done = await self._flush(topic, urgent=urgent)
        except ClusterError as error:
            self._note(topic, error)
            return False
        finally:
            if topic_id not in self._flights:
                self.in_flight.pop(topic_id, None)
        if done and topic_id not in self._flights:
            self.failures.pop(topic_id, None)
        return done

    def _note(self, topic: Topic, error: ClusterError) -> None:
        if topic.closed is not None:
            return
        self.errors += 1
        self.failures.note(topic.topic_id, topic.name, error, at_once=isinstance(error, ChildDied))

    async def claim(self, topic: Topic) -> None:
        """Reserve the topic's objects for this owner's epoch, and take over the head's folder and tiered offset."""
        epoch = topic.assigned_epoch
        if self._claimed.get(topic.topic_id) == epoch:
            return
        name = TopicName.parse(topic.name)
        held = await self._parts.catalog.claim(
            topic.topic_id,
            epoch=epoch,
            folder=topic_folder(self._parts.cluster, name.namespace, name.name, topic.topic_id),
            start_offset=topic.start_offset,
        )
        if not held.head.objects and topic.start_offset > held.head.tiered_offset:
            held = await self._parts.catalog.skip(
                topic.topic_id, start_offset=topic.start_offset, epoch=epoch
            )
        self._parts.folders[topic.topic_id] = held.head.folder
        topic.raise_tiered_offset(held.head.tiered_offset)
        self._claimed[topic.topic_id] = epoch

    async def _flush(self, topic: Topic, *, urgent: bool) -> bool:
        self._parts.hold.check()
        self._parts.room.for_flush()
        await self.claim(topic)
        state, epoch, topic_id = topic.state, topic.assigned_epoch, topic.topic_id
        flights = self._flights.get(topic_id, [])
        former = flights[-1] if flights else None
        start = state.tiered_offset if former is None else former.end
        room = self._parts.room.for_flush()
        segments, end, size = self._parts.hub.journal.places(
            topic_id, start, topic.commit, min(self._object_bytes, room)
        )
        if not segments:
            return True
        if size > room:
            self._parts.room.for_flush(size)  # one batch is more than there is room for
        flight = _Flight(
            end=end,
            before=state.stored_bytes - self._parts.hub.journal.stored_bytes(topic_id, end),
            committed=asyncio.get_running_loop().create_future(),
        )
        name = ObjectName(
            start=start,
            end=end,
            epoch=epoch,
            generation=0,
            random=f"{self._parts.hold.life}{secrets.token_hex(2)}",
        )
        key = f"{self._parts.folders[topic_id]}/{name}"
        self._flights[topic_id] = [*flights, flight]
        if former is not None:
            self.merging.add(self.in_flight[topic_id])
        self.in_flight[topic_id] = key
        try:
            with self._parts.room.taken(size):
                return await self._write(topic, flight, former, segments, name, key, size, urgent=urgent)
        finally:
            if not flight.committed.done():
                flight.committed.set_result(False)
            self.merging.discard(key)
            left = [each for each in self._flights[topic_id] if each is not flight]
            if left:
                self._flights[topic_id] = left
            else:
                del self._flights[topic_id]

    async def _write(
        self,
        topic: Topic,
        flight: _Flight,
        former: _Flight | None,
        segments: list[tuple[Path, bytes]],
        name: ObjectName,
        key: str,
        size: int,
        *,
        urgent: bool,
    ) -> bool:
        """Have the child write the object, then commit it after the previous one. Return False if that one failed."""
        epoch = topic.assigned_epoch
        subscriptions = subscriptions_of(topic)
        schemas = dict(topic.options.settings.schema or {})
        reached(TierStep.PLANNED)
        meta = meta_of(self._parts.cluster, topic.name, topic.topic_id, name)
        meta |= {
            "subscriptions": subscriptions,
            "schemas": schemas,
            "format_version": self._parts.object_format(),
        }
        try:
            facts = await write_object(self._parts.child, key, meta, segments, urgent=urgent)
        except ClusterError:
            if topic.state.needed_offset > name.start:
                return False  # trimmed since: the journal may have deleted the batches, so plan again
            raise
        reached(TierStep.ANSWERED)
        # Shielded: cancelling this wait must not cancel the other flight's result.
        if topic.closed is not None or (former is not None and not await asyncio.shield(former.committed)):
            await self._parts.child.call("delete", {"keys": [key]})
            return False
        entry = entry_of(name, facts, epoch=epoch)
        try:
            await self._parts.catalog.append(
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
        reached(TierStep.COMMITTED)
        # From here on the object holds the messages: catalog and object are on stable storage, read back and compared.
        topic.raise_tiered_offset(flight.end)
        self._flushed[topic.topic_id] = flight.before
        self.objects += 1
        self.bytes_in += size
        self.bytes_out += entry.bytes
        flight.committed.set_result(True)
        self.after_commit(topic)
        return True

    def forget(self, topic_id: int) -> None:
        """Forget a deleted topic."""
        self._flushed.pop(topic_id, None)
        self._waiting_since.pop(topic_id, None)
        self._claimed.pop(topic_id, None)
        self.failures.pop(topic_id, None)

    def store_error(self) -> StoreUnavailable | None:
        """The error with which the object store refuses objects now, or None."""
        for failure in self.failures.values():
            error = failure.error
            if isinstance(error, StoreUnavailable) and not isinstance(error, MetadataUnavailable):
                return error
        return None


def entry_of(name: ObjectName, facts: dict[str, Any], *, epoch: int) -> CatalogEntry:
    """Return the catalog's entry for an object, from the facts of the tier's process. `epoch`: of its newest message."""
    now = now_ms()
    return CatalogEntry(
        name=str(name),
        start=name.start,
        end=name.end,
        messages=facts["messages"],
        bytes=facts["bytes"],
        # at most now, because a clock may have run ahead, and retention and seeking by time use these
        min_append_time_ms=min(facts["min_append_time_ms"], now),
        max_append_time_ms=min(facts["max_append_time_ms"], now),
        epoch=epoch,
        generation=name.generation,
        digest=facts["digest"],
        footer_bytes=facts["footer_bytes"],
        footer_crc=facts["footer_crc"],
        committed_at_ms=now,
    )


def meta_of(cluster: str, topic: str, topic_id: int, name: ObjectName) -> dict[str, Any]:
    """Return the metadata in an object's footer."""
    return {"cluster": cluster, "topic": topic, "topic_id": topic_id, "start": name.start, "end": name.end}


async def write_object(
    child: TierChild, key: str, meta: dict[str, Any], segments: Sequence[tuple[Path, bytes]], *, urgent: bool
) -> dict[str, Any]:
    """Have the tier's process write batches of the journal as an object. Return its facts.

    Args:
        segments: as `Journal.places` gives them.
        urgent: it does not give way to consumers and producers.
    """
    runs = [[str(path), len(places) // 8] for path, places in segments]
    facts, _ = await child.call(
        "flush",
        {"key": key, "urgent": urgent, "segments": runs, "meta": meta},
        b"".join(places for _, places in segments),
    )
    return facts


def subscriptions_of(topic: Topic) -> dict[str, Any]:
    """Return a topic's subscriptions for a head or footer: id, type, first offset that is not acknowledged."""
    return {
        name: {"id": pump.subscription_id, "type": pump.type.value, "next_unacked": pump.floor}
        for name, pump in sorted(topic.subscriptions.items())
    }


def producers_of(topic: Topic) -> list[Any]:
    """Return the sessions of idempotent producers: id, epoch, name, next sequence."""
    return [
        [session.producer_id, session.epoch, session.name, session.next_sequence]
        for session in topic.state.producers.sessions()
    ]
