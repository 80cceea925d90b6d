"""The delivery window: all messages between the floor and the next one, each in exactly one state.

Only *unacknowledged* messages are stored. Open messages live in chunks, which are short stretches of offsets
(usually one batch) with one bit mask per state. A batch of two thousand messages therefore costs two or three
small objects and a few operations on 250-byte integers, single messages in any order cost bits, and holes in
the log cost nothing, however long. Every offset below `next` that is in no chunk is acknowledged. `floor` is
the first open message.

Invariants, which `invariants` checks in the tests:

- Chunks ascend and do not overlap.
- In a chunk the masks of ready, flights, waits and poisons are disjoint and make up `open`.
- `floor <= next`, with at most the span of messages between them (its owner plans within `room()`).

`snapshot()` returns the state that survives a crash: acknowledgements, and how often each message came back.
Deliveries that were in flight for the first time start again at 1.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Protocol

from pydanube_core.errors import NotDelivered

from pydanube_broker.subscription.chunk import (
    CHUNK_OFFSETS,
    NO_SLOTS,
    NOT_FIRST,
    Chunk,
    Flight,
    Poison,
    Timers,
    Wait,
)
from pydanube_broker.subscription.chunk_list import ChunkList
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.cursor import Attempts, CursorSnapshot, merge_attempts
from pydanube_broker.subscription.ranges import Range, RangeSet, joined, normalise, subtract, total
from pydanube_broker.subscription.unread_state import UnreadState
from pydanube_broker.subscription.unsaved import UnsavedChanges, attempts_of

# Small batches that follow each other share a chunk up to this size. A larger chunk would slow the search
# through its flights.
MERGE_OFFSETS: Final = 256
# Newest flights of a chunk that messages with a new deadline may join. Looking at all of them for each flight of a
# consumer that was sent single messages would be quadratic.
MERGE_FLIGHTS: Final = 8

_END: Final = itemgetter(1)

assert MERGE_OFFSETS <= CHUNK_OFFSETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened:
    """An acknowledged message that is delivered again. `deliveries` counts the earlier ones, from 1."""

    offset: int
    deliveries: int
    slot: int = 0  # the key's, for key-shared

    @property
    def attempts(self) -> Attempts:
        return Attempts(start=self.offset, end=self.offset + 1, deliveries=self.deliveries, failures=0)


class StateListener(Protocol):
    """Listener notified when messages of a chunk enter or leave a state. Key-shared updates its slots."""

    def ready_added(self, chunk: Chunk, mask: int) -> None: ...
    def queued(self, chunk: Chunk, mask: int, member: int) -> None: ...
    def ready_removed(self, chunk: Chunk, mask: int) -> None: ...
    def stop_added(self, chunk: Chunk, mask: int, *, retry: bool) -> None: ...
    def stop_removed(self, chunk: Chunk, mask: int, *, retry: bool) -> None: ...
    def flight_added(self, chunk: Chunk, mask: int, consumer: Consumer) -> None: ...
    def flight_removed(self, chunk: Chunk, mask: int, consumer: Consumer) -> None: ...


class Window:
    """The window of one subscription. It keeps states and counts, and contains no rules of types or policies.

    `version` changes whenever an earlier plan may have become wrong: ready messages, `next` or a barrier
    moved.
    """

    __slots__ = (
        "blocked", "chunks", "floor", "gaps", "generation", "in_flight", "listener", "next", "ready", "timers",
        "unread_state", "unsaved", "version", "waiting",
    )  # fmt: skip

    def __init__(self, snapshot: CursorSnapshot, *, durable: bool) -> None:
        self.generation = snapshot.generation
        self.floor = snapshot.floor
        self.next = snapshot.floor
        self.chunks = ChunkList()
        self.gaps = RangeSet()  # offsets between the floor and next that hold no message to deliver
        self.unread_state = UnreadState(snapshot)
        self.timers = Timers()
        self.in_flight = 0
        self.ready = 0
        self.waiting = 0
        self.blocked = 0
        self.version = 0
        self.listener: StateListener | None = None
        self.unsaved = UnsavedChanges(snapshot.floor) if durable else None

    # -- reading ahead --------------------------------------------------------------------------------------------

    def room(self, span: int) -> int:
        """Return how many more messages fit between the floor and the next one."""
        return span - (self.next - self.floor - self.gaps.size)

    def place(
        self, ranges: Sequence[Range], next_offset: int, slots: array[int] | None = None
    ) -> list[tuple[Chunk, int]]:
        """Open the unseen messages of `ranges`. Offsets up to `next_offset` outside the ranges are gaps.

        `ranges` ascend within `[next, next_offset)`. The messages are in no state yet: the caller immediately
        gives each one a state with `launch` or `make_ready`.

        Returns:
            (chunk, mask) pairs, ascending.
        """
        if len(ranges) == 1 and slots is None:
            start, end = ranges[0]
            if start == self.next and end == next_offset and MERGE_OFFSETS < end - start <= CHUNK_OFFSETS:
                placed = [self._place_batch(start, end)]
                self._placed(placed)
                return placed
        at = self.next
        placed = []
        chunk = self.chunks[-1] if self.chunks else None
        bound = MERGE_OFFSETS
        taken = 0
        for start, end in ranges:
            if start > at:
                self._gap(at, start)
            at = end
            while start < end:
                if chunk is None or min(end, start + MERGE_OFFSETS) - chunk.start > bound:
                    chunk = Chunk(start, start)
                    self.chunks.add(chunk)
                    bound = CHUNK_OFFSETS
                cut = min(end, chunk.start + bound)
                if slots is not None:
                    if chunk.slots is NO_SLOTS:
                        chunk.slots = array("H")
                    chunk.slots.extend([0] * (start - chunk.start - len(chunk.slots)))
                    chunk.slots.extend(slots[taken : taken + cut - start])
                taken += cut - start
                mask = ((1 << (cut - start)) - 1) << (start - chunk.start)
                chunk.end = cut
                chunk.open |= mask
                if placed and placed[-1][0] is chunk:
                    placed[-1] = (chunk, placed[-1][1] | mask)
                else:
                    placed.append((chunk, mask))
                start = cut
        if next_offset > at:
            self._gap(at, next_offset)
        self.next = next_offset
        self._placed(placed)
        return placed

    def _place_batch(self, start: int, end: int) -> tuple[Chunk, int]:
        """Open one full batch that begins where the last one ended, the usual case of `place`."""
        chunk = Chunk(start, end)
        chunk.open = mask = (1 << (end - start)) - 1
        self.chunks.add(chunk)
        self.next = end
        return chunk, mask

    def _placed(self, placed: list[tuple[Chunk, int]]) -> None:
        if self.unread_state.attempts:
            self.unread_state.give_counts(placed, self.next)
        if self.unread_state.acknowledged:
            self._jump()
        self.raise_floor()
        self.version += 1

    def _gap(self, start: int, end: int) -> None:
        self.gaps.add(start, end)
        if self.unsaved is not None:
            self.unsaved.range(start, end, self.floor)

    def _jump(self) -> None:
        """Advance `next` past acknowledged offsets."""
        known = self.unread_state.acknowledged
        while known and known.first()[0] <= self.next:
            end = known.first()[1]
            if end > self.next:
                self.gaps.add(self.next, end)
                self.next = end
            known.discard_below(self.next)

    def raise_floor(self) -> None:
        """Raise the floor to the first open message."""
        if self.chunks:
            first = self.chunks[0]
            mask = first.open
            self.floor = first.start if mask & 1 else first.start + (mask & -mask).bit_length() - 1
        else:
            self.floor = self.next
        if self.gaps:
            self.gaps.discard_below(self.floor)

    # -- states ---------------------------------------------------------------------------------------------------

    def launch(self, chunk: Chunk, mask: int, consumer: Consumer, now_ms: int) -> None:
        """Put messages in no state in flight with `consumer`. The caller charges its credit."""
        deadline = now_ms + consumer.ack_timeout_ms if consumer.ack_timeout_ms else None
        self.in_flight += mask.bit_count()
        if consumer.has_answered:
            consumer.date_answers(now_ms)
        if chunk.not_first is not NOT_FIRST:
            chunk.sent_again(mask)
        if consumer.reports:
            consumer.unhandled.sent(chunk, mask)
        if self.listener is not None:
            self.listener.flight_added(chunk, mask, consumer)
        if chunk.flights:
            last = chunk.flights[-1]
            same = last.consumer is consumer and last.taken is not consumer.reports
            if same and last.sent_at_ms == now_ms and last.deadline_ms == deadline:
                last.mask |= mask
                return
        flight = Flight(chunk, consumer, mask, now_ms, deadline, taken=not consumer.reports)
        chunk.flights.append(flight)
        consumer.flights[flight] = None
        if deadline is not None:
            self.timers.set(deadline, flight)

    def make_ready(self, chunk: Chunk, mask: int) -> None:
        """Make messages in no state ready to be sent."""
        chunk.ready |= mask
        self.ready += mask.bit_count()
        self.version += 1
        if self.listener is not None:
            self.listener.ready_added(chunk, mask)

    def queue(self, chunk: Chunk, mask: int, member: int) -> None:
        """Queue messages in no state for the consumer in that member, until it has credit (key-shared)."""
        assert self.listener is not None
        chunk.ready |= mask
        self.ready += mask.bit_count()
        self.version += 1
        self.listener.queued(chunk, mask, member)

    def take_ready(self, chunk: Chunk, mask: int) -> None:
        """Take messages out of the ready state. The caller launches or closes them."""
        assert chunk.ready & mask == mask, "only ready messages can be taken"
        chunk.ready ^= mask
        self.ready -= mask.bit_count()
        self.version += 1
        if self.listener is not None:
            self.listener.ready_removed(chunk, mask)

    def wait(self, chunk: Chunk, mask: int, due_ms: int, reason: str, *, wall_ms: int | None = None) -> None:
        """Let messages in no state wait until `due_ms`. `time_anew` recomputes a wait that has `wall_ms`."""
        wait = Wait(chunk, mask, due_ms, reason, wall_ms)
        chunk.waits.append(wait)
        self.waiting += mask.bit_count()
        self.timers.set(due_ms, wait)
        self.version += 1
        if self.listener is not None:
            self.listener.stop_added(chunk, mask, retry=True)

    def poison(self, chunk: Chunk, mask: int, reason: str, deliveries: int, *, blocked: bool) -> Poison:
        """Mark messages in no state as exhausted: they are not sent again."""
        poison = Poison(chunk, mask, reason, deliveries, blocked=blocked)
        chunk.poisons.append(poison)
        if blocked:
            self.blocked += mask.bit_count()
            if self.listener is not None:
                self.listener.stop_added(chunk, mask, retry=False)
        self.version += 1
        return poison

    def end_flight(self, flight: Flight, mask: int) -> None:
        """Take messages out of a flight. The caller gives them another state."""
        flight.mask ^= mask
        messages = mask.bit_count()
        self.in_flight -= messages
        flight.consumer.landed(messages)
        if not flight.mask:
            flight.chunk.flights.remove(flight)
            del flight.consumer.flights[flight]
            if flight.deadline_ms is not None:
                self.timers.died()
        if self.listener is not None:
            self.listener.flight_removed(flight.chunk, mask, flight.consumer)

    def end_wait(self, wait: Wait, mask: int) -> None:
        """Take messages out of their wait. The caller gives them another state."""
        wait.mask ^= mask
        self.waiting -= mask.bit_count()
        if not wait.mask:
            wait.chunk.waits.remove(wait)
            self.timers.died()
        self.version += 1
        if self.listener is not None:
            self.listener.stop_removed(wait.chunk, mask, retry=True)

    def time_anew(self, wall_now_ms: int, now_ms: int) -> bool:
        """Shorten waits that end earlier after a step of the wall clock. Return whether there are any."""
        late = [
            (wait, due_ms)
            for chunk in self.chunks
            for wait in chunk.waits
            if wait.wall_ms is not None and (due_ms := wait.wall_ms - wall_now_ms + now_ms) < wait.due_ms
        ]
        for wait, due_ms in late:
            chunk, mask = wait.chunk, wait.mask
            self.end_wait(wait, mask)
            self.wait(chunk, mask, max(due_ms, now_ms), wait.reason, wall_ms=wait.wall_ms)
        return bool(late)

    def end_poison(self, poison: Poison, mask: int) -> None:
        """Take messages out of their poison. The caller gives them another state."""
        poison.mask ^= mask
        if poison.blocked:
            self.blocked -= mask.bit_count()
            if self.listener is not None:
                self.listener.stop_removed(poison.chunk, mask, retry=False)
        if not poison.mask:
            poison.chunk.poisons.remove(poison)
        self.version += 1

    def count_return(self, chunk: Chunk, mask: int, *, failed: bool) -> list[tuple[int, int, int]]:
        """Count one more delivery (and failure) for messages that came back.

        Returns:
            (mask, deliveries, failures), one entry for each pair of counts.
        """
        counted: list[tuple[int, int, int]] = []
        for (deliveries, failures), part in chunk.by_history(mask):
            if deliveries:
                left = chunk.history[deliveries, failures] ^ part
                if left:
                    chunk.history[deliveries, failures] = left
                else:
                    del chunk.history[deliveries, failures]
            counted.append((part, deliveries + 1, failures + failed))
        for part, deliveries, failures in counted:
            chunk.history[deliveries, failures] = chunk.history.get((deliveries, failures), 0) | part
        chunk.history_dirty = True
        if self.unsaved is not None:
            self.unsaved.chunk(chunk, self.floor)
        return counted

    # -- closing --------------------------------------------------------------------------------------------------

    def check_delivered(self, found: dict[Chunk, int], ranges: Sequence[Range], consumer: Consumer) -> None:
        """Refuse an answer to messages that `consumer` was never sent.

        A message that came back may still be answered late. The window does not store which consumer held it,
        so any consumer of the subscription may answer it.

        Raises `NotDelivered` with the first such offset. Nothing has changed then.
        """
        if max(map(_END, ranges), default=0) > self.next:
            for start, end in ranges:
                start = max(start, self.next)
                if not self.unread_state.acknowledged.covers(start, end):
                    raise _not_delivered(start, consumer)
        for chunk, mask in found.items():
            for flight in chunk.flights:
                if not mask:
                    break
                if flight.consumer is consumer:
                    mask = 0 if flight.mask == mask else mask & ~flight.mask
            if mask and (mask := mask & ~chunk.returned()):
                raise _not_delivered(chunk.start + (mask & -mask).bit_length() - 1, consumer)

    def close(self, chunk: Chunk, mask: int) -> None:
        """Acknowledge open messages of one chunk in any state. Call `raise_floor` after the last one."""
        for flight, hit in chunk.held(mask):
            self.end_flight(flight, hit)
        if chunk.ready and (hit := chunk.ready & mask):
            self.take_ready(chunk, hit)
        if chunk.waits:
            for wait in chunk.waits.copy():
                if hit := wait.mask & mask:
                    self.end_wait(wait, hit)
        if chunk.poisons:
            for poison in chunk.poisons.copy():
                if hit := poison.mask & mask:
                    self.end_poison(poison, hit)
        chunk.open ^= mask
        if chunk.history:
            for counts, part in list(chunk.history.items()):
                if part & mask:
                    if part & ~mask:
                        chunk.history[counts] = part & ~mask
                    else:
                        del chunk.history[counts]
        if self.unsaved is not None:
            chunk.dirty |= mask
            self.unsaved.chunk(chunk, self.floor)
        if not chunk.open:
            self.chunks.drop(chunk)

    def close_range(self, start: int, end: int) -> int:
        """Acknowledge every offset of `[start, end)`, read or not. Return how many messages were open."""
        closed = 0
        for chunk, mask in self.chunks.locate([(start, end)]).items():
            closed += mask.bit_count()
            self.close(chunk, mask)
        if end > self.next:
            start = max(start, self.next)
            self.unread_state.acknowledge(start, end)
            if self.unsaved is not None:
                self.unsaved.range(start, end, self.floor)
            self._jump()
            self.version += 1
        self.raise_floor()
        return closed

    def reset(self, offset: int) -> None:
        """Begin a new generation at `offset`: everything below is acknowledged, nothing at or above is."""
        for chunk in self.chunks:
            for flight in chunk.flights:
                flight.consumer.landed(flight.mask.bit_count())
                flight.consumer.flights.clear()
        self.generation += 1
        self.floor = self.next = offset
        self.chunks.clear()
        self.gaps.clear()
        self.unread_state.clear()
        self.timers.clear()
        if self.unsaved is not None:
            self.unsaved.reset()
        self.in_flight = self.ready = self.waiting = self.blocked = 0
        self.version += 1

    def is_open(self, offset: int) -> bool:
        """Return whether a message is not acknowledged."""
        if offset >= self.next:
            return not self.unread_state.acknowledged.covers(offset, offset + 1)
        chunk = self.chunks.covering(offset)
        return chunk is not None and bool(chunk.open >> (offset - chunk.start) & 1)

    def open_of(self, offsets: Sequence[int]) -> list[int]:
        """Return those of ascending offsets that are not acknowledged. O(chunks + acknowledged and open ranges), not O(offsets)."""
        if not offsets:
            return []
        first, end = offsets[0], offsets[-1] + 1
        sent = joined((mask, chunk.start) for chunk, mask in self.chunks.locate([(first, end)]).items())
        unread = [(max(first, self.next), end)] if end > self.next else []
        found: list[int] = []
        for start, stop in (*sent, *subtract(unread, self.unread_state.acknowledged.ranges())):
            found += offsets[bisect_left(offsets, start) : bisect_left(offsets, stop)]
        return found

    def count_open(self, ranges: Sequence[Range]) -> int:
        """Return how many messages of a normal list are not acknowledged. O(chunks + acknowledged ranges + ranges)."""
        unread = [(max(start, self.next), end) for start, end in ranges if end > self.next]
        return sum(mask.bit_count() for mask in self.chunks.locate(ranges).values()) + total(
            subtract(unread, self.unread_state.acknowledged.ranges())
        )

    def is_unsent(self, message: Reopened) -> bool:
        """Return whether a reopened message is open and has not been sent since."""
        if message.offset >= self.next:
            return self.is_open(message.offset)
        chunk = self.chunks.covering(message.offset)
        if chunk is None:
            return False
        bit = 1 << (message.offset - chunk.start)
        return bool(chunk.ready & bit & chunk.history.get((message.deliveries, 0), 0))

    @property
    def leaving(self) -> bool:
        """Return whether copies of exhausted messages are on the way to the dead-letter topic. O(chunks)."""
        return any(not poison.blocked for chunk in self.chunks for poison in chunk.poisons)

    def reopen(self, messages: Sequence[Reopened]) -> None:
        """Begin a new generation in which acknowledged messages are ready again. Other state is unchanged.

        Offsets between the new floor and the old one stay acknowledged and take no room. Consumers keep the
        messages they hold. O(chunks + messages).

        Args:
            messages: ascending. None is open.
        """
        assert not any(self.is_open(each.offset) for each in messages), (
            "only acknowledged messages are reopened"
        )
        self.generation += 1
        if self.unsaved is not None:
            self.unsaved.reset(whole=True)
        known = [each for each in messages if each.offset < self.next]
        unread = [each for each in messages if each.offset >= self.next]
        if unread:
            self.unread_state.reopen([each.attempts for each in unread])
        if known:
            old_floor = self.floor
            found = self._chunks_for(known)
            reopened = [(each.offset, each.offset + 1) for each in known]
            gaps = self.gaps.ranges()
            if reopened[0][0] < old_floor:
                gaps = normalise([(reopened[0][0], old_floor), *gaps])
            self.gaps = RangeSet(subtract(gaps, reopened))
            for chunk, mask in found.items():
                self.make_ready(chunk, mask)
        self.raise_floor()
        self.version += 1

    def _chunks_for(self, messages: Sequence[Reopened]) -> dict[Chunk, int]:
        """Mark messages as open in chunks that cover them, or in new ones. Return them by ascending chunk."""
        found: dict[Chunk, int] = {}
        new: list[Chunk] = []
        for each in messages:
            chunk = self.chunks.covering(each.offset)
            if chunk is None:
                chunk = new[-1] if new else None
                if (
                    chunk is None
                    or each.offset >= chunk.start + MERGE_OFFSETS
                    or self.chunks.begins_within(chunk.start, each.offset)
                ):
                    chunk = Chunk(each.offset, each.offset)
                    new.append(chunk)
                chunk.end = each.offset + 1
            at = each.offset - chunk.start
            bit = 1 << at
            chunk.open |= bit
            chunk.history[each.deliveries, 0] = chunk.history.get((each.deliveries, 0), 0) | bit
            if self.listener is not None:
                if chunk.slots is NO_SLOTS:
                    chunk.slots = array("H")
                chunk.slots.extend([0] * (at + 1 - len(chunk.slots)))
                chunk.slots[at] = each.slot
            found[chunk] = found.get(chunk, 0) | bit
        if new:
            self.chunks.insert_all(new)
        return found

    # -- time -----------------------------------------------------------------------------------------------------

    def extend(self, flight: Flight, mask: int, deadline_ms: int) -> None:
        """Give messages of a flight a new deadline."""
        self._split(flight, mask, flight.sent_at_ms, deadline_ms, taken=flight.taken)

    def take(self, flight: Flight, mask: int, now_ms: int) -> None:
        """Note that the application has taken these messages of a flight. Their ack timeout begins now."""
        timeout_ms = flight.consumer.ack_timeout_ms
        self._split(flight, mask, now_ms, now_ms + timeout_ms if timeout_ms else None, taken=True)

    def _split(
        self, flight: Flight, mask: int, sent_at_ms: int, deadline_ms: int | None, *, taken: bool
    ) -> None:
        chunk = flight.chunk
        flight.mask ^= mask
        if not flight.mask:
            chunk.flights.remove(flight)
            del flight.consumer.flights[flight]
            if flight.deadline_ms is not None:
                self.timers.died()
        for other in chunk.flights[-MERGE_FLIGHTS:]:
            if (
                other.consumer is flight.consumer
                and other.deadline_ms == deadline_ms
                and other.sent_at_ms == sent_at_ms
                and other.taken is taken
            ):
                other.mask |= mask
                return
        other = Flight(chunk, flight.consumer, mask, sent_at_ms, deadline_ms, taken=taken)
        chunk.flights.append(other)
        other.consumer.flights[other] = None
        if deadline_ms is not None:
            self.timers.set(deadline_ms, other)

    # -- durable state --------------------------------------------------------------------------------------------

    @property
    def acked_above(self) -> int:
        """Return how many offsets at or above the floor are acknowledged or hold no message. O(chunks)."""
        still_open = sum(chunk.open.bit_count() for chunk in self.chunks)
        return self.next - self.floor - still_open + self.unread_state.acknowledged.size

    def snapshot(self) -> CursorSnapshot:
        """Return the state that must survive a restart. O(chunks + runs of unacknowledged messages)."""
        # Acknowledged ranges lie between one run of open messages and the next.
        acknowledged: list[Range] = []
        if open_runs := self.chunks.open_ranges():
            edges = [edge for run in open_runs for edge in run]
            edges.append(self.next)
            acknowledged = list(zip(edges[1::2], edges[2::2], strict=True))
            if edges[-1] == edges[-2]:
                acknowledged.pop()
        if self.unread_state.acknowledged:
            acknowledged = normalise([*acknowledged, *self.unread_state.acknowledged.ranges()])
        attempts = attempts_of(self.chunks)
        if self.unread_state.attempts:
            attempts = merge_attempts(attempts, self.unread_state.attempts)
        return CursorSnapshot(
            generation=self.generation,
            floor=self.floor,
            acknowledged=tuple(acknowledged),
            attempts=tuple(attempts),
        )


def _not_delivered(offset: int, consumer: Consumer) -> NotDelivered:
    return NotDelivered(
        f"offset {offset} was never delivered to consumer {consumer.name!r}. Acknowledge only what arrived",
        field="ranges",
        value=offset,
        offset=offset,
        consumer=consumer.name,
    )
