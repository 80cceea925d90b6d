"""Messages of stored batches that a plan picks out, as the columns the core routes by."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import BatchColumns
from pydanube_broker.subscription.plan import Plan
from pydanube_broker.subscription.ranges import Range

__all__ = ["RoutedPart", "gather"]

Ints = npt.NDArray[Any]


class RoutedPart:
    """Messages in offset order: of each batch, which of its messages."""

    def __init__(
        self, pieces: Sequence[tuple[BatchColumns, Ints]], ranges: Sequence[Range], next_offset: int
    ) -> None:
        self.pieces = pieces
        self.ranges = ranges
        self.next_offset = next_offset

    def slots(self) -> Sequence[int]:
        """The key slot of each message."""
        found = array("H")
        for columns, indices in self.pieces:
            found.frombytes(columns.slots[indices].tobytes())
        return found

    def sizes(self) -> Sequence[int]:
        """Bytes of each message."""
        found: list[int] = []
        for columns, indices in self.pieces:
            found += columns.sizes[indices].tolist()
        return found

    def keys(self) -> Sequence[str]:
        """The key of each message: its routing key, else its producer's name."""
        found: list[str] = []
        for columns, indices in self.pieces:
            found += map(columns.keys.__getitem__, indices.tolist())
        return found

    def split(self, chosen: Sequence[int]) -> Iterator[tuple[BatchColumns, Ints]]:
        """The batches that hold the chosen messages, and which of their messages these are."""
        wanted = np.asarray(chosen, dtype=np.int64)
        start = 0
        for columns, indices in self.pieces:
            end = start + len(indices)
            low, high = np.searchsorted(wanted, (start, end))
            if low < high:
                yield columns, indices[wanted[low:high] - start]
            start = end


def gather(batches: Sequence[CachedBatch], plan: Plan, known: BatchColumns | None = None) -> RoutedPart:
    """The messages of the batches that lie in the plan's ranges, within its limits and at least one.

    Args:
        known: the last batch of the part before, whose columns need not be worked out again if it is here too.
    """
    pieces: list[tuple[BatchColumns, Ints]] = []
    taken: list[Ints] = []
    bounds = np.array(plan.ranges, dtype=np.int64)
    starts, ends = bounds[:, 0], bounds[:, 1]
    left, left_bytes = plan.max_messages, plan.max_bytes
    next_offset = plan.start if batches else plan.end_limit
    for batch in batches:
        same = known is not None and known.batch.base == batch.base and known.batch.end == batch.end
        columns = known if same and known is not None else BatchColumns(batch)
        offsets = columns.offsets
        indices = _inside(offsets, starts, ends)
        fitting = min(len(indices), left)
        if left_bytes is not None and fitting:
            total = np.cumsum(columns.sizes[indices[:fitting]])
            if total[-1] > left_bytes:
                fitting = int(np.searchsorted(total, left_bytes, side="right"))
                fitting = max(fitting, 0 if pieces else 1)
            left_bytes -= int(total[fitting - 1]) if fitting else 0
        cut = fitting < len(indices)
        if cut:
            next_offset = int(offsets[indices[fitting]])
            indices = indices[:fitting]
        else:
            next_offset = max(next_offset, min(batch.end, plan.end_limit))
        if len(indices):
            pieces.append((columns, indices))
            left -= len(indices)
            taken.append(offsets[indices])
        if cut:
            break
    return RoutedPart(pieces, _runs(taken), min(next_offset, plan.end_limit))


def _inside(offsets: Ints, starts: Ints, ends: Ints) -> Ints:
    """The indices of the ascending offsets that lie in one of the ascending ranges."""
    if len(starts) == 1:
        low, high = np.searchsorted(offsets, (starts[0], ends[0]))
        return np.arange(low, high)
    at = np.searchsorted(ends, offsets, side="right")  # the first range that ends behind the offset
    candidate = at < len(starts)
    at[~candidate] = 0
    return np.flatnonzero(candidate & (starts[at] <= offsets))


def _runs(taken: Sequence[Ints]) -> list[Range]:
    """Ascending offsets as half-open runs."""
    if not taken:
        return []
    offsets = taken[0] if len(taken) == 1 else np.concatenate(taken)
    breaks = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)
    firsts = offsets[np.concatenate(([0], breaks + 1))].tolist()
    lasts = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return list(zip(firsts, lasts.tolist(), strict=True))
