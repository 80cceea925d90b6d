"""Key-shared: messages that wait only for their owner's credit, one mask for each owner and chunk.

`key_slots` describes when messages are queued and when the queues are dissolved. The masks are in the chunks
(`Chunk.queued`), so that all states of a message are in one place. This class keeps which chunks have queued
messages, and how many messages wait for each member.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydanube_broker.subscription.chunk import NOTHING_QUEUED, Chunk
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.ranges import head_of_mask


class KeyQueues:
    """The queues of all members of one subscription."""

    __slots__ = ("_chunks", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[int] = []  # messages, by member
        self._chunks: dict[int, Chunk] = {}  # start -> chunk with queued messages, ascending

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add_member(self) -> None:
        self._waiting.append(0)

    def has(self, consumer: Consumer) -> bool:
        return self._waiting[consumer.slot_index] > 0

    def put(self, chunk: Chunk, mask: int, member: int) -> None:
        """Queue messages of the newest chunk."""
        if not chunk.queued:
            chunk.queued = {}
            self._chunks[chunk.start] = chunk
        chunk.queued[member] = chunk.queued.get(member, 0) | mask
        self._waiting[member] += mask.bit_count()

    def next(self, consumers: Iterable[Consumer], *, limit: int) -> tuple[Consumer, ChunkMasks] | None:
        """Return the first queued messages of the first consumer that has credit and any. O(chunks)."""
        for consumer in consumers:
            member = consumer.slot_index
            if not (self._waiting[member] and consumer.has_credit):
                continue
            left = min(limit, consumer.room_messages)
            found: list[tuple[Chunk, int]] = []
            for chunk in self._chunks.values():
                mask = chunk.queued.get(member)
                if mask:
                    mask = head_of_mask(mask, left)
                    found.append((chunk, mask))
                    left -= mask.bit_count()
                    if not left:
                        break
            return consumer, ChunkMasks(found)
        return None

    def remove(self, chunk: Chunk, mask: int) -> int:
        """Remove messages from their queues. Return those of `mask` that were in one."""
        gone = 0
        for member, waiting in list(chunk.queued.items()):
            if hit := waiting & mask:
                gone |= hit
                self._waiting[member] -= hit.bit_count()
                if waiting == hit:
                    del chunk.queued[member]
                else:
                    chunk.queued[member] = waiting ^ hit
        if gone and not chunk.queued:
            chunk.queued = NOTHING_QUEUED
            del self._chunks[chunk.start]
        return gone

    def take_all(self) -> list[tuple[Chunk, int]]:
        """Empty the queues. Return their messages."""
        taken = [(chunk, mask) for chunk in self._chunks.values() for mask in chunk.queued.values()]
        for chunk in self._chunks.values():
            chunk.queued = NOTHING_QUEUED
        self.clear()
        return taken

    def clear(self) -> None:
        """Empty the queues after a seek, whose chunks are gone."""
        self._waiting = [0] * len(self._waiting)
        self._chunks.clear()
