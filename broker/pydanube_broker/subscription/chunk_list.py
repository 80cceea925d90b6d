"""The chunks of a window: they ascend, do not overlap, and are found by offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from pydanube_broker.subscription.chunk import CHUNK_OFFSETS, Chunk
from pydanube_broker.subscription.ranges import Range, joined

_START: Final = attrgetter("start")
_ONE: Final = ord("1")
_ONES: Final = b"1" * CHUNK_OFFSETS


class ChunkList(list[Chunk]):
    """Ascending chunks, each with an open message. Changed by `add`, `insert_all`, `drop` and `clear`."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[int] = []  # chunk.start of each, for bisect

    def add(self, chunk: Chunk) -> None:
        """Add a chunk behind the others."""
        self.append(chunk)
        self._starts.append(chunk.start)

    def insert_all(self, chunks: Sequence[Chunk]) -> None:
        """Insert chunks between the others. O(all chunks)."""
        self[:] = sorted([*self, *chunks], key=_START)
        self._starts = [chunk.start for chunk in self]

    def covering(self, offset: int) -> Chunk | None:
        """Return the chunk whose stretch contains the offset."""
        at = bisect_right(self._starts, offset) - 1
        return self[at] if at >= 0 and offset < self[at].end else None

    def begins_within(self, start: int, end: int) -> bool:
        """Return whether a chunk begins in `[start, end)`."""
        return bisect_left(self._starts, start) < bisect_left(self._starts, end)

    def drop(self, chunk: Chunk) -> None:
        at = bisect_right(self._starts, chunk.start) - 1
        del self[at], self._starts[at]

    def clear(self) -> None:
        super().clear()
        self._starts.clear()

    def open_ranges(self) -> list[Range]:
        """Return the ranges of open messages as a normal list."""
        return joined((chunk.open, chunk.start) for chunk in self)

    def locate(self, ranges: Sequence[Range]) -> dict[Chunk, int]:
        """Return the open messages of the ranges by chunk, ascending if the ranges are."""
        found: dict[Chunk, int] = {}
        if len(ranges) == 1:
            self._locate_one(found, *ranges[0])
            return found
        # Many ranges are mostly in one chunk, with one or two messages each. Their mask is written as text,
        # one digit per message, and parsed once. This costs a third of one `|=` per range.
        chunk: Chunk | None = None
        digits = bytearray()
        low = high = top = 0
        for start, end in ranges:
            if low <= start and end <= high:
                if end - start == 1:
                    digits[top - start] = _ONE
                else:
                    digits[top - end + 1 : top - start + 1] = _ONES[: end - start]
                continue
            if chunk is not None and (hit := int(digits, 2) & chunk.open):
                found[chunk] = found.get(chunk, 0) | hit
            self._locate_one(found, start, end)
            at = bisect_right(self._starts, start) - 1
            chunk = self[at] if at >= 0 else None
            low, high = (0, 0) if chunk is None else (chunk.start, chunk.end)
            top = high - 1
            digits = bytearray(b"0") * (high - low)
        if chunk is not None and (hit := int(digits, 2) & chunk.open):
            found[chunk] = found.get(chunk, 0) | hit
        return found

    def locate_masks(self, found: dict[Chunk, int], masks: Sequence[tuple[int, int]]) -> None:
        """Add the open messages of masks, each given with the offset of its lowest bit. O(chunks touched)."""
        for first, mask in masks:
            begin, stop = (
                bisect_right(self._starts, first) - 1,
                bisect_left(self._starts, first + mask.bit_length()),
            )
            for chunk in self[max(begin, 0) : stop]:
                shift = chunk.start - first
                if chunk.end > first and (
                    hit := (mask >> shift if shift >= 0 else mask << -shift) & chunk.open
                ):
                    found[chunk] = found.get(chunk, 0) | hit

    def _locate_one(self, found: dict[Chunk, int], start: int, end: int) -> None:
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self) and self._starts[at] < end:
            chunk = self[at]
            whole = start <= chunk.start and chunk.end <= end
            if hit := chunk.open if whole else chunk.local(start, end) & chunk.open:
                found[chunk] = found.get(chunk, 0) | hit
            at += 1
