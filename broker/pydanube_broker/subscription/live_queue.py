"""The bounded queue of one consumer of a non-reliable topic: batches that were published and not sent yet.

A full queue refuses messages, and the caller counts them as dropped. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pydanube_broker.journal.tail_cache import CachedBatch

Indices = range | npt.NDArray[Any]  # a range has no gaps
Piece = tuple[CachedBatch, Indices]  # a batch, and the ascending indices of some of its messages

# One full batch of the usual size, and as many messages as an SDK's usual credit: enough for a burst, and too
# little to let a slow consumer cost much. Behind it are the connection's own buffer and the consumer's
# credit.
QUEUE_MESSAGES: Final = 10_000
QUEUE_BYTES: Final = 4 << 20


class LiveQueue:
    """Holds at most `max_messages` and `max_bytes` of stored batches. A single batch may exceed the bytes."""

    __slots__ = ("_max_bytes", "_max_messages", "_pieces", "bytes", "messages")

    def __init__(self, max_messages: int = QUEUE_MESSAGES, max_bytes: int = QUEUE_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._pieces: deque[Piece] = deque()
        self.messages = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def room(self, batch: CachedBatch) -> int:
        """Return how many messages of this batch may be offered."""
        if self.bytes and self.bytes + batch.stored_bytes > self._max_bytes:
            return 0
        return self._max_messages - self.messages

    def offer(self, batch: CachedBatch, indices: Indices) -> int:
        """Queue the first of these messages, as many as there is room for. Return how many."""
        taken = min(len(indices), self.room(batch))
        if taken <= 0:
            return 0
        self._pieces.append((batch, indices[:taken]))
        self.messages += taken
        self.bytes += batch.stored_bytes
        return taken

    def take(self, max_messages: int) -> Piece | None:
        """Return the next messages of one batch, at most `max_messages` (≥ 1). None if the queue is empty."""
        if not self._pieces:
            return None
        batch, indices = self._pieces[0]
        if len(indices) > max_messages:
            self._pieces[0] = (batch, indices[max_messages:])
            indices = indices[:max_messages]
        else:
            self._pieces.popleft()
            self.bytes -= batch.stored_bytes
        self.messages -= len(indices)
        return batch, indices

    def drain(self) -> Iterator[Piece]:
        """Remove and yield everything that is left, oldest first."""
        pieces, self._pieces = self._pieces, deque()
        self.messages = self.bytes = 0
        yield from pieces


def all_of(batch: CachedBatch) -> range:
    """Return the indices of every message."""
    return range(batch.count)


def array_of(indices: Indices) -> npt.NDArray[Any]:
    """Return the same indices as an array, to pick some of them."""
    return np.arange(indices.start, indices.stop) if isinstance(indices, range) else indices
