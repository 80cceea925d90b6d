"""Key-shared: the held messages, in one line per slot, and the first message that each consumer may be sent.

`key_slots` describes when messages are held. A line is a heap of offsets. A consumer's `due` heap has the first
offset of each of its slots that may be sent. Finding the next message so costs O(log held), however many other
messages are held, for slow consumers or for slots that wait.

Entries are not removed when their message leaves the line, because that would need a search. An entry counts only
if its message is held at that time, and is dropped when it is found otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import compress

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.chunk_list import ChunkList
from pydanube_broker.subscription.ranges import digits_of


class KeyLines:
    """The held messages of one subscription."""

    __slots__ = ("_changed", "_count", "_due", "_lines", "_popped")

    def __init__(self) -> None:
        self._count: dict[int, int] = {}  # slot -> held messages
        self._lines: dict[int, list[int]] = {}  # slot -> offsets, a heap
        self._due: list[list[tuple[int, int]]] = []  # by member: (first offset, slot), a heap
        self._changed: set[int] = set()  # slots whose first message may be due now
        self._popped: list[tuple[int, int]] = []  # taken from lines for the last plan, which may not be sent

    def __bool__(self) -> bool:
        return bool(self._count)

    def __contains__(self, slot: int) -> bool:
        return slot in self._count

    def counts(self) -> dict[int, int]:
        """Return the held messages of each slot, for tests."""
        return dict(self._count)

    def add_member(self) -> None:
        self._due.append([])

    def add(self, chunk: Chunk, mask: int) -> Iterator[int]:
        """Add messages. Yield the slots that had none. O(messages)."""
        offsets = compress(range(chunk.start, chunk.start + mask.bit_length()), digits_of(mask))
        for slot, offset in zip(slots_of(chunk, mask), offsets, strict=True):
            line = self._lines.get(slot)
            if line is None:
                self._lines[slot] = [offset]
                self._count[slot] = 1
                yield slot
            else:
                heappush(line, offset)
                self._count[slot] += 1
            self._changed.add(slot)

    def remove(self, chunk: Chunk, mask: int) -> None:
        """Remove messages that are sent or acknowledged."""
        for slot, count in Counter(slots_of(chunk, mask)).items():
            left = self._count[slot] - count
            if left:
                self._count[slot] = left
                self._changed.add(slot)
            else:
                del self._count[slot], self._lines[slot]
        if not self._count:
            self.clear()

    def recheck(self, slot: int) -> None:
        """Note that a slot's first message may be due."""
        if slot in self._count:
            self._changed.add(slot)

    def recheck_all(self) -> None:
        """Note that the first message of every slot may be due, because owners changed."""
        for due in self._due:
            due.clear()
        self._changed.update(self._count)

    def clear(self) -> None:
        """Forget all messages."""
        self._count.clear()
        self._lines.clear()
        self._changed.clear()
        self._popped.clear()
        for due in self._due:
            due.clear()

    def changed(self, chunks: ChunkList) -> list[tuple[int, int]]:
        """Return the first message of each slot that may be due now, as (offset, slot), ascending."""
        for slot, offset in self._popped:
            if slot in self._count:
                heappush(self._lines[slot], offset)
                self._changed.add(slot)
        self._popped.clear()
        if sum(map(len, self._due)) > 4 * len(self._count) + len(self._due):
            self.recheck_all()  # most entries belong to messages that were sent since
        found = []
        for slot in self._changed:
            line = self._lines.get(slot)
            if line is not None:
                while not is_held(chunks, line[0]):
                    heappop(line)
                found.append((line[0], slot))
        self._changed.clear()
        found.sort()
        return found

    def put_due(self, member: int, offset: int, slot: int) -> None:
        """Note that a slot's first message may be sent to the consumer in that member."""
        heappush(self._due[member], (offset, slot))

    def pop_due(self, member: int, chunks: ChunkList) -> tuple[int, int] | None:
        """Remove the next message of a member from its line, as (offset, slot). `changed` puts it back if it was not sent."""
        due = self._due[member]
        while due:
            offset, slot = heappop(due)
            line = self._lines.get(slot)
            if line and line[0] == offset and is_held(chunks, offset):
                heappop(line)
                self._popped.append((slot, offset))
                return offset, slot
        return None

    def next_of(self, slot: int, offset: int, chunks: ChunkList) -> int | None:
        """Return the message of a slot behind one that was taken."""
        line = self._lines[slot]
        while line and (line[0] == offset or not is_held(chunks, line[0])):
            heappop(line)
        return line[0] if line else None


def is_held(chunks: ChunkList, offset: int) -> bool:
    """Return whether a message is ready and in no queue."""
    chunk = chunks.covering(offset)
    if chunk is None:
        return False
    bit = 1 << (offset - chunk.start)
    return bool(chunk.ready & bit) and not any(mask & bit for mask in chunk.queued.values())


def slots_of(chunk: Chunk, mask: int) -> Iterable[int]:
    """Return the slot of each message of a mask."""
    if not mask & (mask - 1):
        # One message, as clients answer that take them one by one. Writing out a mask takes 10 µs.
        return (chunk.slots[mask.bit_length() - 1],) if mask else ()
    return compress(chunk.slots, digits_of(mask))
