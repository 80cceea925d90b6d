"""A stretch of offsets with open messages, and the states of these messages. See `window`."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeAlias

from pydanube_broker.subscription.consumer import Consumer

# Maximum offsets of a chunk. A mask is then at most a 1 KiB integer, and an operation takes about 0.1 µs.
CHUNK_OFFSETS: Final = 8192
ACK_TIMEOUT: Final = "ack timeout"  # the reason of a failure without an answer

NO_SLOTS: Final = array("H")  # shared by all chunks that need none
NOTHING_QUEUED: Final[dict[int, int]] = {}  # the same
NOT_FIRST: Final[dict[int, int]] = {}  # the same


@dataclass(slots=True, eq=False)
class Flight:
    """Messages of one chunk that one consumer holds, sent together.

    `taken`: as far as the broker can see, the application has them. Messages of a consumer that reports begin
    as not taken. When it reports them as taken, `sent_at_ms` becomes that time.
    """

    chunk: Chunk
    consumer: Consumer
    mask: int
    sent_at_ms: int
    deadline_ms: int | None
    _: KW_ONLY
    taken: bool


@dataclass(slots=True, eq=False)
class Wait:
    """Messages of one chunk that are sent again at `due_ms`.

    `wall_ms` is the same time by the wall clock, None for a span of time.
    """

    chunk: Chunk
    mask: int
    due_ms: int
    reason: str
    wall_ms: int | None = None


@dataclass(slots=True, eq=False)
class Poison:
    """Exhausted messages of one chunk: blocked, or waiting until the dead-letter topic has them."""

    chunk: Chunk
    mask: int
    reason: str
    deliveries: int
    _: KW_ONLY
    blocked: bool
    attempts: int = field(default=0, init=False)  # failed attempts to publish the dead letter
    terminated: bool = field(default=False, init=False)  # by the consumer: no retry even with a low count


Timer: TypeAlias = Flight | Wait | Poison


class Chunk:
    """A stretch of offsets with open messages. Masks are relative to `start`."""

    __slots__ = (
        "dirty", "end", "flights", "history", "history_dirty", "keyed", "keys", "not_first", "open",
        "poisons", "queued", "ready", "reasons", "slots", "start", "waits",
    )  # fmt: skip

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.open = 0
        self.ready = 0
        self.flights: list[Flight] = []
        self.waits: list[Wait] = []
        self.poisons: list[Poison] = []
        self.reasons: dict[str, int] = {}  # the latest reasons of failures, with their messages
        # (deliveries, failures) -> messages that came back so often. Sparse: most messages never do.
        self.history: dict[tuple[int, int], int] = {}
        self.dirty = 0  # acknowledged since the last delta
        self.history_dirty = False
        # Shared: messages that came back, by the id of their consumer, until sent again. Redelivery prefers
        # others.
        self.not_first: dict[int, int] = NOT_FIRST
        # Key-shared: the slot of each offset (0 where there is no message). With filters also the key of each
        # bit, and the mask of bits whose key is stored.
        self.slots = NO_SLOTS
        self.keys: dict[int, str] = {}
        self.keyed = 0
        # Key-shared: the part of `ready` that only waits for its owner's credit, by the owner's member (see
        # `key_slots`).
        self.queued: dict[int, int] = NOTHING_QUEUED

    def local(self, start: int, end: int) -> int:
        """Return the mask of the part of `[start, end)` that lies in this chunk."""
        low = max(start, self.start) - self.start
        high = min(end, self.end) - self.start
        return ((1 << (high - low)) - 1) << low if high > low else 0

    def held(self, mask: int) -> list[tuple[Flight, int]]:
        """Return the flights of messages, each with its part. O(flights up to the last of them)."""
        found = []
        for flight in self.flights:
            if own := flight.mask & mask:
                found.append((flight, own))
                mask ^= own
                if not mask:
                    break
        return found

    def returned(self) -> int:
        """Return the messages that were delivered at least once and came back."""
        mask = 0
        for part in self.history.values():
            mask |= part
        return mask

    def came_back(self, consumer: Consumer, mask: int) -> None:
        """Note that these messages are offered to other consumers before this one."""
        if self.not_first is NOT_FIRST:
            self.not_first = {}
        self.not_first[consumer.consumer_id] = self.not_first.get(consumer.consumer_id, 0) | mask

    def sent_again(self, mask: int) -> None:
        left = {one: others for one, other in self.not_first.items() if (others := other & ~mask)}
        self.not_first = left or NOT_FIRST

    def by_history(self, mask: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Split `mask` by (deliveries, failures), with (0, 0) for messages that never came back."""
        if self.history:
            for counts, part in list(self.history.items()):
                if hit := part & mask:
                    yield counts, hit
                    mask ^= hit
        if mask:
            yield (0, 0), mask


# Lists are swept when at least this many entries, and more than half, are dead.
SWEEP_ENTRIES: Final = 64


class Timers:
    """Deadlines of flights, retries and dead letters. An entry whose mask has become empty is dead.

    Most flights end long before their deadline. Their entries stay until they are the greater part, and are
    then swept out: amortised O(1), and the heap is never much larger than its living entries.
    """

    __slots__ = ("_dead", "_entries", "_made")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Timer]] = []
        self._made = 0  # the order among equals
        self._dead = 0

    def set(self, when_ms: int, timer: Timer) -> None:
        self._made += 1
        heapq.heappush(self._entries, (when_ms, self._made, timer))

    def died(self) -> None:
        """Count a timer without messages. Once there are many, they are removed."""
        self._dead += 1
        if self._dead >= SWEEP_ENTRIES and self._dead * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].mask]
            heapq.heapify(self._entries)
            self._dead = 0

    def next_ms(self) -> int | None:
        """Return when the next living timer is due, None if there is none."""
        entries = self._entries
        while entries and not entries[0][2].mask:
            heapq.heappop(entries)
            self._dead = max(self._dead - 1, 0)
        return entries[0][0] if entries else None

    def due(self, now_ms: int) -> list[Timer]:
        """Return the timers due by `now_ms` that still have messages, in order. O(due)."""
        found: list[Timer] = []
        while (when := self.next_ms()) is not None and when <= now_ms:
            found.append(heapq.heappop(self._entries)[2])
        return found

    def clear(self) -> None:
        self._entries.clear()
        self._dead = 0
