"""Spread the messages of one part over consumers, and return masks and indices.

`assigned` holds one byte a message: the index of its consumer. Translating these bytes and parsing them as a
binary number costs a few nanoseconds per message and consumer, in C. A loop over messages in Python costs ten
times that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from itertools import accumulate, compress
from typing import Final

import numpy as np

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.ranges import Range, ranges_of

NO_MEMBER: Final = 255
MAX_ROUTED: Final = 250  # consumers over which one routed part can be spread: one byte a message

# Minimum messages of a part for which numpy, and a table of 64 KiB, are worth it.
LARGE_PART: Final = 256

_ONE: Final = [bytes(k) + b"\1" + bytes(255 - k) for k in range(256)]
_DIGIT: Final = [b"0" * k + b"1" + b"0" * (255 - k) for k in range(256)]


def indices_for(assigned: bytes | bytearray, index: int) -> list[int]:
    """Return the messages of one consumer, ascending."""
    return list(compress(range(len(assigned)), assigned.translate(_ONE[index])))


def masks_for(
    placed: Sequence[tuple[Chunk, int]], assigned: bytes | bytearray, index: int
) -> Iterator[tuple[Chunk, int]]:
    """Yield the messages of one consumer as masks. `placed` are the chunks of all, in the order of `assigned`."""
    digits = assigned.translate(_DIGIT[index])
    at = 0
    for chunk, mask in placed:
        found = 0
        for start, end in ranges_of(mask, 0):
            run = digits[at : at + end - start]
            found |= int(run[::-1], 2) << start
            at += end - start
        if found:
            yield chunk, found


def head_of(ranges: Sequence[Range], messages: int) -> list[Range]:
    """Return the first `messages` messages of the ranges."""
    kept: list[Range] = []
    for start, end in ranges:
        if messages <= 0:
            break
        end = min(end, start + messages)
        kept.append((start, end))
        messages -= end - start
    return kept


def affordable(
    consumer: Consumer, indices: Sequence[int], sizes: Sequence[int] | None, together: int | None = None
) -> int:
    """Return how many of a consumer's messages, from the first, its credit allows. With credit, at least one.

    Args:
        together: the bytes of all of them, if computed already.
    """
    if not consumer.has_credit:
        return 0
    fitting = min(len(indices), consumer.room_messages)
    if sizes is None or consumer.credit_bytes is None:
        return fitting
    if together is not None and together <= consumer.credit_bytes:
        return fitting
    if sum(map(sizes.__getitem__, indices[:fitting])) <= consumer.credit_bytes:
        return fitting
    for at, size in enumerate(accumulate(map(sizes.__getitem__, indices[:fitting]))):
        if size > consumer.credit_bytes:
            return max(at, 1)
    return fitting


def learn_keys(placed: Sequence[tuple[Chunk, int]], keys: Sequence[str]) -> None:
    """Store the key of each message of the masks, in order."""
    at = 0
    for chunk, mask in placed:
        chunk.keyed |= mask
        for start, end in ranges_of(mask, 0):
            chunk.keys.update(zip(range(start, end), keys[at : at + end - start], strict=True))
            at += end - start


def round_robin(
    consumers: Sequence[Consumer], messages: int, sizes: Sequence[int] | None
) -> tuple[bytearray, int]:
    """Assign messages one by one to consumers with credit left, beginning with the first.

    Returns:
        (assigned, next): `assigned` is shorter than `messages` when credit ran out. `next` is the index of the consumer
        whose turn is next.
    """
    left = [c.room_messages for c in consumers]
    bytes_left = [c.credit_bytes for c in consumers]
    assigned = bytearray()
    turn = 0
    count = len(consumers)
    for message in range(messages):
        for _ in range(count):
            room = bytes_left[turn]
            if left[turn] > 0 and (room is None or room > 0):
                break
            turn = (turn + 1) % count
        else:
            break
        assigned.append(turn)
        left[turn] -= 1
        if room is not None and sizes is not None:
            bytes_left[turn] = room - sizes[message]
        turn = (turn + 1) % count
    return assigned, turn


def indices_of(assigned: bytes | bytearray, member: int) -> MutableSequence[int]:
    """Return the messages of one member, ascending.

    For a large part they are 64-bit numbers, which the shell need not convert.
    """
    if len(assigned) < LARGE_PART:
        return indices_for(assigned, member)
    found = np.flatnonzero(np.frombuffer(assigned, np.uint8) == member)
    return array("q", found.astype(np.int64, copy=False).tobytes())


def bytes_by_member(assigned: bytes | bytearray, sizes: Sequence[int] | None) -> Sequence[int] | None:
    """Return the bytes for each member. None if that is not cheaper than adding up the indices of each."""
    if not isinstance(sizes, array) or len(assigned) < LARGE_PART:
        return None
    # Sums of whole numbers far below 2^53, so exact.
    totals = np.bincount(np.frombuffer(assigned, np.uint8), np.frombuffer(sizes, np.int64), 256)
    return totals.astype(np.int64).tolist()  # type: ignore[no-any-return]


_SLOTS: Final = 65_536


class RouteTable:
    """The free slots and their owners. Every other slot has `NO_MEMBER`.

    One byte a slot, looked up for a whole part in some 2 ns a message. The table takes 64 KiB, so it is a
    dictionary until the first large part, to keep quiet subscriptions small.
    """

    __slots__ = ("_few", "_table")

    def __init__(self) -> None:
        self._few: dict[int, int] = {}
        self._table = bytearray()  # if there is one, `_few` is empty

    def set(self, slot: int, index: int) -> None:
        if self._table:
            self._table[slot] = index
        else:
            self._few[slot] = index

    def unset(self, slot: int) -> None:
        if self._table:
            self._table[slot] = NO_MEMBER
        else:
            self._few.pop(slot, None)

    def get(self, slot: int) -> int:
        return self._table[slot] if self._table else self._few.get(slot, NO_MEMBER)

    def clear(self) -> None:
        self._table = bytearray()
        self._few = {}

    def look_up(self, slots: array[int]) -> bytearray:
        """Return the index of each slot of a part."""
        if not self._table:
            if len(slots) < LARGE_PART:
                return bytearray(self._few.get(slot, NO_MEMBER) for slot in slots)
            self._table = bytearray([NO_MEMBER]) * _SLOTS
            for slot, index in self._few.items():
                self._table[slot] = index
            self._few = {}
        return bytearray(np.frombuffer(self._table, np.uint8)[np.frombuffer(slots, np.uint16)])

    def items(self) -> list[tuple[int, int]]:
        """Return (slot, index) of every free slot, for tests."""
        table = [(slot, index) for slot, index in enumerate(self._table) if index != NO_MEMBER]
        return table or sorted(self._few.items())
