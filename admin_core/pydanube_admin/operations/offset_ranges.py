"""Offsets as people write them: `3,7,10-90`, both ends included."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from pydanube_core.errors import InvalidArgument


def ranges_of_text(text: str) -> list[tuple[int, int]]:
    """Return half-open ranges of `3,7,10-90`. Raises `InvalidArgument`."""
    ranges: list[tuple[int, int]] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and len(last) < 19 and int(first) <= int(last)):
            ranges = []
            break
        ranges.append((int(first), int(last) + 1))
    if not ranges:
        raise InvalidArgument(
            f"offsets {text[:80]!r}: write offsets such as 3,7,10-90",
            field="offsets",
            value=text[:80],
        )
    return ranges


def within(ranges: Sequence[tuple[int, int]]) -> Callable[[int], bool]:
    """Return a function that returns whether an offset is in any of the half-open ranges. O(log ranges)."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            before = merged.pop()
            start, end = before[0], max(end, before[1])
        merged.append((start, end))

    def is_within(offset: int) -> bool:
        at = bisect_right(merged, offset, key=lambda each: each[0]) - 1
        return at >= 0 and offset < merged[at][1]

    return is_within
