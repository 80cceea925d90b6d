"""The changes of a window since its last record in the journal."""

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
    """Changed chunks with their acknowledged messages (`Chunk.dirty`), and acknowledged ranges in no chunk.

    Each list is swept when it has grown to twice the length after the last sweep. Entries below the floor are
    removed, because the floor alone covers them.
    """

    __slots__ = ("_chunks", "_floor", "_most_chunks", "_most_ranges", "_ranges", "whole")

    def __init__(self, floor: int) -> None:
        self._floor: int | None = floor  # as last recorded, None to record it in any case
        self._chunks: list[Chunk] = []
        self._ranges: list[Range] = []
        self.whole = False  # the generation did not begin empty, and none of it is recorded
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
        """Return the changes, None if there are none. O(changed chunks)."""
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
        """Clear the changes: they are on their way to the disk.

        Call it only after the record is appended. If the journal has no room, the changes must stay for the
        next record.
        """
        for chunk in self._chunks:
            chunk.dirty = 0
            chunk.history_dirty = False
        self._forget()
        self._floor = floor
        self.whole = False

    def reset(self, *, whole: bool = False) -> None:
        """Discard the changes of a generation that is over. The next one is recorded in any case.

        Args:
            whole: the next generation does not begin empty, so its first record contains all of it.
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
    """Return attempts by range, ascending. Touching ranges with equal counts are joined."""
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
