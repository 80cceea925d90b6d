"""Offsets as people write them: `3,7,10-90`, both ends included."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument

MOST_AT_ONCE: Final = 10_000  # offsets of one query: some 60 KB on its way to another broker


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


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same offsets as ascending ranges that neither overlap nor touch. Empty ranges are left out."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return found


def within(ranges: Sequence[tuple[int, int]]) -> Callable[[int], bool]:
    """Return a function that returns whether an offset is in any of the half-open ranges. O(log ranges)."""
    found = merged(ranges)

    def is_within(offset: int) -> bool:
        at = bisect_right(found, offset, key=lambda each: each[0]) - 1
        return at >= 0 and offset < found[at][1]

    return is_within
