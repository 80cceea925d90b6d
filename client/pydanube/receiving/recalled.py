"""Give back buffered deliveries for another consumer that has nothing to do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pydanube.message import Delivered


def without(
    delivered: Delivered, wanted: Sequence[tuple[int, int]], back: list[int]
) -> list[Delivered] | None:
    """Return the parts of a delivery outside of the wanted ranges (ascending). None if nothing of it is inside.

    The parts inside are added to `back`, as flat ranges.
    """
    offsets = delivered.offsets
    pieces: list[Delivered] = []
    at = 0
    for first, end in wanted:
        low, high = bisect_left(offsets, first), bisect_left(offsets, end)
        if low < high:
            for run in delivered.part(low, high).ranges():
                back += run
            if at < low:
                pieces.append(delivered.part(at, low))
            at = high
    if not at:
        return None
    if at < len(offsets):
        pieces.append(delivered.part(at, len(offsets)))
    return pieces
