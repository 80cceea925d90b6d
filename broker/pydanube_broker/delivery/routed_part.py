"""Messages read for a plan that names no consumer, as the columns the core routes by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydanube_core.batch.select import key_slots, message_sizes

from pydanube_broker.delivery.frame_builder import producer_bytes, runs_of, view_of
from pydanube_broker.delivery.plan import Plan
from pydanube_broker.delivery.ranges import Range
from pydanube_broker.journal import CachedBatch

__all__ = ["RoutedPart", "gather"]

Ints = npt.NDArray[Any]


class RoutedPart:
    """Messages in offset order: of each batch, which of its messages."""

    def __init__(
        self, pieces: Sequence[tuple[CachedBatch, Ints]], ranges: Sequence[Range], next_offset: int
    ) -> None:
        self._pieces = pieces
        self.ranges = ranges
        self.next_offset = next_offset

    def slots(self) -> Sequence[int]:
        """The key slot of each message."""
        found: list[int] = []
        for batch, indices in self._pieces:
            found += key_slots(producer_bytes(batch))[indices].tolist()
        return found

    def sizes(self) -> Sequence[int]:
        """Bytes of each message."""
        found: list[int] = []
        for batch, indices in self._pieces:
            found += message_sizes(producer_bytes(batch))[indices].tolist()
        return found

    def keys(self) -> Sequence[str]:
        """The key of each message: its routing key, else its producer's name."""
        found: list[str] = []
        for batch, indices in self._pieces:
            view = view_of(batch)
            keys = view.keys() or [None] * batch.count
            names = [name for _, name in view.producers()] or [""]
            which = view.producer_index() or (0,) * batch.count
            for i in indices.tolist():
                key = keys[i]
                found.append(names[which[i]] if key is None else key.decode("utf-8", "replace"))
        return found

    def split(self, chosen: Sequence[int]) -> Iterator[tuple[CachedBatch, Ints]]:
        """The batches that hold the chosen messages, and which of their messages these are."""
        wanted = np.asarray(chosen, dtype=np.int64)
        start = 0
        for batch, indices in self._pieces:
            end = start + len(indices)
            low, high = np.searchsorted(wanted, (start, end))
            if low < high:
                yield batch, indices[wanted[low:high] - start]
            start = end


def gather(batches: Sequence[CachedBatch], plan: Plan) -> RoutedPart:
    """The messages of the batches that lie in the plan's ranges, at most `plan.max_messages`."""
    pieces: list[tuple[CachedBatch, Ints]] = []
    ranges: list[Range] = []
    left = plan.max_messages
    next_offset = plan.start if batches else plan.end_limit
    for batch in batches:
        offsets = _offsets(batch)
        inside = np.zeros(len(offsets), dtype=bool)
        for start, end in plan.ranges:
            if start < batch.end and end > batch.base:
                inside |= (offsets >= start) & (offsets < end)
        indices = np.flatnonzero(inside)
        cut = len(indices) > left
        if cut:
            next_offset = int(offsets[indices[left]])
            indices = indices[:left]
        else:
            next_offset = max(next_offset, min(batch.end, plan.end_limit))
        if len(indices):
            pieces.append((batch, indices))
            left -= len(indices)
            taken = offsets[indices]
            first, last = int(taken[0]), int(taken[-1])
            runs = [(first, last + 1)] if last - first + 1 == len(taken) else runs_of(taken.tolist())
            if ranges and ranges[-1][1] == runs[0][0]:
                runs[0] = (ranges.pop()[0], runs[0][1])
            ranges += runs
        if cut:
            break
    return RoutedPart(pieces, ranges, min(next_offset, plan.end_limit))


def _offsets(batch: CachedBatch) -> Ints:
    if batch.end - batch.base == batch.count:
        return np.arange(batch.base, batch.end, dtype=np.int64)
    deltas = view_of(batch).offset_deltas()
    return batch.base + np.asarray(deltas, dtype=np.int64)
