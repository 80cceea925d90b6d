"""Messages of stored batches that a plan selects, as the columns by which the core routes."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import BatchColumns
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.planning import Plan
from pydanube_broker.subscription.ranges import Range

Ints = npt.NDArray[Any]

KEPT_BYTES: Final = 8 << 20
_MANY: Final = 64  # minimum messages of a batch for which arranging them saves more than it costs


class KeptColumns:
    """The columns of the batches that a subscription routed last, and whose rest is probably routed next.

    Bounded by the bytes of the batches, inflated. One is kept in any case.
    """

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: OrderedDict[int, BatchColumns] = OrderedDict()  # by base offset, oldest use first
        self._bytes = 0

    def of(self, batch: CachedBatch) -> BatchColumns:
        """Return the columns of a batch."""
        columns = self._kept.get(batch.base)
        if columns is not None and columns.batch.end == batch.end:
            self._kept.move_to_end(batch.base)
            return columns
        if columns is not None:
            self._bytes -= columns.weight
        columns = self._kept[batch.base] = BatchColumns(batch)
        self._kept.move_to_end(batch.base)
        self._bytes += columns.weight
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].weight
        return columns

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)


class RoutedPart:
    """Messages in offset order: batches, and the indices of their messages."""

    def __init__(
        self, pieces: Sequence[tuple[BatchColumns, Ints]], ranges: Sequence[Range], next_offset: int
    ) -> None:
        self.pieces = pieces
        self.ranges = ranges
        self.next_offset = next_offset
        self._edges = [0, *accumulate(len(indices) for _, indices in pieces)]

    def slots(self) -> array[int]:
        """Return the key slot of each message."""
        found = array("H")
        for columns, indices in self.pieces:
            found.frombytes(_of(columns, columns.slots, indices).tobytes())
        return found

    def sizes(self) -> Sequence[int]:
        """Return the bytes of each message."""
        found = array("q")
        for columns, indices in self.pieces:
            found.frombytes(_of(columns, columns.sizes, indices).tobytes())
        return found

    def keys(self) -> Sequence[str]:
        """Return the key of each message: its routing key, else its producer's name."""
        found: list[str] = []
        for columns, indices in self.pieces:
            found += map(columns.keys.__getitem__, indices.tolist())
        return found

    def arrange(self, members: bytes | bytearray) -> None:
        """Lay each batch out by the member of its messages, so that each member's part is a slice.

        Args:
            members: one byte a message.
        """
        owners = np.frombuffer(members, np.uint8)
        start = 0
        for columns, indices in self.pieces:
            end = start + len(indices)
            if len(indices) >= _MANY:
                columns.arrange(np.asarray(indices)[np.argsort(owners[start:end], kind="stable")])
            start = end

    def split(self, chosen: Sequence[int]) -> Iterator[tuple[BatchColumns, Ints]]:
        """Return the batches with chosen messages, and the indices of these messages."""
        wanted = np.asarray(chosen, dtype=np.int64)
        cuts = np.searchsorted(wanted, self._edges).tolist()
        for (columns, indices), start, low, high in zip(
            self.pieces, self._edges, cuts, cuts[1:], strict=False
        ):
            if low < high:
                rows = wanted[low:high] - start
                yield columns, rows if len(indices) == columns.batch.count else indices[rows]


def _of(columns: BatchColumns, column: Ints, indices: Ints) -> Ints:
    """Return a column's values of these messages."""
    return column if len(indices) == columns.batch.count else column[indices]


def pick(
    batches: Sequence[CachedBatch], plan: Plan, kept: KeptColumns, *, frame_bytes: int | None = None
) -> RoutedPart:
    """Gather messages of a plan whose ranges are a `ChunkMasks`. End after the batch that fills a frame.

    The part's ranges are a `ChunkMasks` too, unless a message is no longer in the log.
    """
    picked = plan.ranges
    assert isinstance(picked, ChunkMasks)
    wanted = np.concatenate([_offsets_of(mask, chunk.start) for chunk, mask in picked.masks])
    pieces: list[tuple[BatchColumns, Ints]] = []
    taken: list[Ints] = []
    left, left_bytes = min(plan.max_messages, len(wanted)), plan.max_bytes
    messages = framed = 0
    next_offset = plan.start if batches else plan.end_limit
    for batch in batches:
        low, high = np.searchsorted(wanted, (batch.base, batch.end)).tolist()
        here = wanted[low:high]
        if not len(here):
            next_offset = max(next_offset, min(batch.end, plan.end_limit))
            continue
        columns = kept.of(batch)
        indices = columns.indices_of(here)
        sizes = columns.sizes[indices[:left]]
        fitting = len(sizes)
        size_bytes = int(sizes.sum())
        if left_bytes is not None and size_bytes > left_bytes:
            fitting = int(np.searchsorted(np.cumsum(sizes), left_bytes, side="right"))
            fitting = max(fitting, 0 if pieces else 1)
            size_bytes = int(sizes[:fitting].sum())
        if left_bytes is not None:
            left_bytes -= size_bytes
        cut = fitting < len(indices)
        next_offset = max(next_offset, min(batch.end, plan.end_limit))
        if cut:
            next_offset = int(columns.offsets[indices[fitting]])
            indices = indices[:fitting]
        if len(indices):
            pieces.append((columns, indices))
            taken.append(columns.offsets[indices])
            left -= len(indices)
            messages += len(indices)
            framed += size_bytes
        if cut or (frame_bytes is not None and framed >= frame_bytes):
            break
    masks = picked.below(next_offset)
    if messages and messages == sum(mask.bit_count() for _, mask in masks):
        return RoutedPart(pieces, picked if messages == picked.messages else ChunkMasks(masks), next_offset)
    return RoutedPart(pieces, _runs(taken), next_offset)


def _offsets_of(mask: int, base: int) -> Ints:
    """Return the offsets of a mask, ascending."""
    octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    found: Ints = np.flatnonzero(np.unpackbits(octets, bitorder="little")) + base
    return found


def gather(
    batches: Sequence[CachedBatch], plan: Plan, kept: KeptColumns | None = None, *, whole: bool = False
) -> RoutedPart:
    """Gather the messages of the batches in the plan's ranges, within its limits and at least one.

    Args:
        whole: end before a batch that would be cut off, unless it is the first. Otherwise all consumers would
            be sent a small piece of it now and another later, and a piece costs more than its messages.
    """
    kept = KeptColumns() if kept is None else kept
    pieces: list[tuple[BatchColumns, Ints]] = []
    taken: list[Ints] = []
    bounds = np.array(list(plan.ranges), dtype=np.int64)
    starts, ends = bounds[:, 0], bounds[:, 1]
    left, left_bytes = plan.max_messages, plan.max_bytes
    next_offset = plan.start if batches else plan.end_limit
    for batch in batches:
        columns = kept.of(batch)
        offsets = columns.offsets
        indices = _inside(offsets, starts, ends)
        fitting = min(len(indices), left)
        if left_bytes is not None and fitting:
            sizes = _of(columns, columns.sizes, indices[:fitting])
            size_bytes = int(sizes.sum())
            if size_bytes > left_bytes:
                fitting = int(np.searchsorted(np.cumsum(sizes), left_bytes, side="right"))
                fitting = max(fitting, 0 if pieces else 1)
                size_bytes = int(sizes[:fitting].sum())
            left_bytes -= size_bytes
        cut = fitting < len(indices)
        if cut and pieces and whole:
            break
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
    """Return the indices of the ascending offsets that lie in one of the ascending ranges."""
    if len(starts) == 1:
        low, high = np.searchsorted(offsets, (starts[0], ends[0]))
        return np.arange(low, high)
    at = np.searchsorted(ends, offsets, side="right")  # the first range that ends behind the offset
    candidate = at < len(starts)
    at[~candidate] = 0
    return np.flatnonzero(candidate & (starts[at] <= offsets))


def _runs(taken: Sequence[Ints]) -> list[Range]:
    """Return ascending offsets as half-open runs."""
    if not taken:
        return []
    offsets = taken[0] if len(taken) == 1 else np.concatenate(taken)
    breaks = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)
    firsts = offsets[np.concatenate(([0], breaks + 1))].tolist()
    lasts = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return list(zip(firsts, lasts.tolist(), strict=True))
