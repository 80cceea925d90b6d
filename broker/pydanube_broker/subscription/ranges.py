"""Offset ranges and the bit masks that stand for them.

A range is a half-open pair `(start, end)` of offsets. A list of ranges is *normal* when it is ascending, without
empty, overlapping or touching members. Inside a chunk (see `window`) a set of messages is a Python integer: bit i
stands for offset `chunk.start + i`, because `&`, `|` and `~` over two thousand messages then cost some 50 ns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import lt
from typing import Final, TypeAlias

from pydanube_core.errors import InvalidArgument

Range: TypeAlias = tuple[int, int]

_DIGIT: Final = bytes(1 if code == ord("1") else 0 for code in range(256))
# A run costs one pass over the mask in `ranges_of`'s loop. Reading every bit once costs as much as this many
# passes.
_BITS_A_RUN: Final = 16


def check_ranges(ranges: Sequence[Range]) -> None:
    """Refuse ranges from outside that are empty, inverted or negative.

    Raises `InvalidArgument`, which names the bad range.
    """
    # One ack of a key-shared batch has hundreds of ranges, where three passes in C beat one loop here
    if len(ranges) > 8:
        starts, ends = zip(*ranges, strict=True)
        if min(starts) >= 0 and all(map(lt, starts, ends)):
            return
    for start, end in ranges:
        if not 0 <= start < end:
            raise InvalidArgument(
                f"ranges: [{start}, {end}) is not a range of offsets: start is >= 0 and below end",
                field="ranges",
                value=[start, end],
            )


def normalise(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets as a normal list, without empty ranges. O(n log n)."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def joined(masks: Iterable[tuple[int, int]]) -> list[Range]:
    """Return the normal list of the offsets of (mask, base) pairs, which ascend and at most touch."""
    found: list[Range] = []
    for mask, base in masks:
        runs = ranges_of(mask, base)
        if found and runs and found[-1][1] == runs[0][0]:
            runs[0] = (found.pop()[0], runs[0][1])
        found += runs
    return found


def total(ranges: Iterable[Range]) -> int:
    """Return how many offsets are in ranges that do not overlap."""
    return sum(end - start for start, end in ranges)


def subtract(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """Return `ranges` without `removed`. Both are normal, and so is the result. O(n + m)."""
    left: list[Range] = []
    at = 0
    for start, end in ranges:
        while at < len(removed) and removed[at][1] <= start:
            at += 1
        cut = at
        while start < end and cut < len(removed) and removed[cut][0] < end:
            if start < removed[cut][0]:
                left.append((start, removed[cut][0]))
            start = max(start, removed[cut][1])
            cut += 1
        if start < end:
            left.append((start, end))
    return left


def digits_of(mask: int) -> bytes:
    """Return one byte 0 or 1 per bit of a mask that is not 0, the lowest first: selectors for `compress`."""
    return bin(mask)[:1:-1].encode().translate(_DIGIT)


def head_of_mask(mask: int, count: int) -> int:
    """Return the lowest `count` (≥ 1) set bits of a mask."""
    if mask.bit_count() <= count:
        return mask
    set_bits = compress(range(mask.bit_length()), digits_of(mask))
    for _ in range(count):
        next(set_bits)
    return mask & ((1 << next(set_bits)) - 1)


def ranges_of(mask: int, base: int) -> list[Range]:
    """Return the normal list of a mask."""
    if (mask & ~(mask << 1)).bit_count() * _BITS_A_RUN > mask.bit_length():
        edges = mask ^ (mask << 1)  # where a run begins, and one past where it ends
        at = compress(range(base, base + edges.bit_length()), digits_of(edges))
        return list(zip(at, at, strict=True))
    found: list[Range] = []
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        base += zeros
        found.append((base, base + ones))
        mask >>= ones
        base += ones
    return found


class RangeSet:
    """A growing set of offsets that forgets those below a floor.

    `add` takes ranges in any order. Adding at the end, the usual case, is O(1).
    """

    __slots__ = ("_ends", "_starts", "size")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.size = 0  # offsets covered
        for start, end in ranges:
            self.add(start, end)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def ranges(self) -> list[Range]:
        return list(zip(self._starts, self._ends, strict=True))

    def first(self) -> Range:
        return self._starts[0], self._ends[0]

    def covers(self, start: int, end: int) -> bool:
        """Return whether every offset of `[start, end)` is in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and self._ends[at] >= end)

    def add(self, start: int, end: int) -> int:
        """Add `[start, end)`. Return how many of the offsets are new."""
        if start >= end:
            return 0
        before = self.size
        if not self._starts or start > self._ends[-1]:
            self._starts.append(start)
            self._ends.append(end)
            self.size += end - start
            return end - start
        low = bisect_left(self._ends, start)  # the first range that touches or follows
        high = bisect_right(self._starts, end)  # one past the last that touches
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
            self.size -= sum(self._ends[low:high]) - sum(self._starts[low:high])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        self.size += end - start
        return self.size - before

    def discard_below(self, floor: int) -> None:
        """Forget every offset below `floor`."""
        keep = bisect_right(self._ends, floor)
        if keep:
            self.size -= sum(self._ends[:keep]) - sum(self._starts[:keep])
            del self._starts[:keep], self._ends[:keep]
        if self._starts and self._starts[0] < floor:
            self.size -= floor - self._starts[0]
            self._starts[0] = floor

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
        self.size = 0


def runs_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending offsets as half-open runs."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
