"""What of a window has changed since its last record in the journal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from pydanube_broker.subscription.chunk import SWEEP_ENTRIES, Chunk
from pydanube_broker.subscription.cursor import Attempts, CursorDelta
from pydanube_broker.subscription.ranges import Range, joined, normalise, ranges_of

_START: Final = attrgetter("start")


class UnsavedChanges:
    """Chunks that changed, with what was acknowledged in them (`Chunk.dirty`), and ranges that no chunk had.

    Both are swept when they have grown to twice what the last sweep left: what lies below the floor is told by the
    floor alone.
    """

    __slots__ = ("_chunks", "_floor", "_most_chunks", "_most_ranges", "_ranges", "whole")

    def __init__(self, floor: int) -> None:
        self._floor: int | None = floor  # as last recorded; None: record it in any case
        self._chunks: list[Chunk] = []
        self._ranges: list[Range] = []
        self.whole = False  # nothing of this generation is recorded, which does not begin empty
        self._most_chunks = self._most_ranges = SWEEP_ENTRIES

    def chunk(self, chunk: Chunk, floor: int) -> None:
        """Note that messages of a chunk were acknowledged, or came back."""
        chunks = self._chunks
        if chunks and chunks[-1] is chunk:
            return
        chunks.append(chunk)
        if len(chunks) > self._most_chunks:
            self._chunks = list(dict.fromkeys(each for each in chunks if each.end > floor))
            self._most_chunks = SWEEP_ENTRIES + 2 * len(self._chunks)

    def range(self, start: int, end: int, floor: int) -> None:
        """Note that offsets without an open message count as acknowledged."""
        self._ranges.append((start, end))
        if len(self._ranges) > self._most_ranges:
            self._ranges = [(s, e) for s, e in normalise(self._ranges) if e > floor]
            self._most_ranges = SWEEP_ENTRIES + 2 * len(self._ranges)

    def delta(self, generation: int, floor: int) -> CursorDelta | None:
        """Return the changes; None if there are none. O(changed chunks)."""
        if not self._chunks and not self._ranges and self._floor == floor:
            return None
        changed = sorted(set(self._chunks), key=_START)
        acknowledged = joined((chunk.dirty, chunk.start) for chunk in changed if chunk.end > floor)
        if self._ranges:
            others = [(max(s, floor), e) for s, e in self._ranges if e > floor]
            acknowledged = normalise([*acknowledged, *others])
        del acknowledged[: bisect_left(acknowledged, (floor, 0))]
        return CursorDelta(
            generation=generation,
            floor=floor,
            acknowledged=tuple(acknowledged),
            attempts=tuple(attempts_of(chunk for chunk in changed if chunk.history_dirty)),
        )

    def saved(self, floor: int) -> None:
        """Start anew: the changes are on their way to the disk.

        Not before the record is appended: what was taken out for a record that found no room is in none.
        """
        for chunk in self._chunks:
            chunk.dirty = 0
            chunk.history_dirty = False
        self._forget()
        self._floor = floor
        self.whole = False

    def reset(self, *, whole: bool = False) -> None:
        """Forget the changes of a generation that is over; the next one is recorded in any case.

        Args:
            whole: the next generation does not begin empty, so its first record is all of it.
        """
        for chunk in self._chunks:
            chunk.dirty = 0
            chunk.history_dirty = False
        self._forget()
        self._floor = None
        self.whole = whole

    def _forget(self) -> None:
        self._chunks.clear()
        self._ranges.clear()
        self._most_chunks = self._most_ranges = SWEEP_ENTRIES


def attempts_of(chunks: Iterable[Chunk]) -> list[Attempts]:
    """Return attempts by range, ascending; touching ranges with equal counts are joined."""
    rows: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        for counts, mask in chunk.history.items():
            rows += [(start, end, *counts) for start, end in ranges_of(mask, chunk.start)]
    rows.sort()
    merged: list[tuple[int, int, int, int]] = []
    for row in rows:
        if merged and merged[-1][1] == row[0] and merged[-1][2:] == row[2:]:
            row = (merged.pop()[0], *row[1:])
        merged.append(row)
    return list(map(Attempts._make, merged))
