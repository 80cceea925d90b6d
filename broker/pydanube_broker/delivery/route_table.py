"""slot -> consumer index, one byte a slot, looked up for whole parts at once.

The only module of the core that knows numpy, and it does without: with it a look-up costs some 2 ns a message,
without 40. The table takes 64 KiB, so it exists only while there is somebody to route to.
"""

from __future__ import annotations

from array import array
from typing import Final

try:
    import numpy as np
except ImportError:  # the base install; the broker always has it
    np = None  # type: ignore[assignment]

from pydanube_broker.delivery.routing import NOBODY

__all__ = ["RouteTable"]

_SLOTS: Final = 65_536


class RouteTable:
    """The free slots and whom they belong to; every other slot says `NOBODY`."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table = bytearray()  # empty: nothing is set

    def set(self, slot: int, index: int) -> None:
        if not self._table:
            self._table = bytearray([NOBODY]) * _SLOTS
        self._table[slot] = index

    def unset(self, slot: int) -> None:
        if self._table:
            self._table[slot] = NOBODY

    def get(self, slot: int) -> int:
        return self._table[slot] if self._table else NOBODY

    def clear(self) -> None:
        self._table = bytearray()

    def look_up(self, slots: array[int]) -> bytearray:
        """The index of each slot of a part."""
        if not self._table:
            return bytearray([NOBODY]) * len(slots)
        if np is None:
            return bytearray(map(self._table.__getitem__, slots))
        return bytearray(np.frombuffer(self._table, np.uint8)[np.frombuffer(slots, np.uint16)])

    def items(self) -> list[tuple[int, int]]:
        """(slot, index) of every free slot; for tests."""
        return [(slot, index) for slot, index in enumerate(self._table) if index != NOBODY]
