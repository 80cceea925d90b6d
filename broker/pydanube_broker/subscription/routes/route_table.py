"""slot -> consumer index, one byte a slot, looked up for whole parts at once.

A look-up costs some 2 ns a message. The table takes 64 KiB, so it exists only while there are consumers and large parts.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from pydanube_broker.subscription.routes.spreading import LARGE_PART, NOBODY

_SLOTS: Final = 65_536


class RouteTable:
    """The free slots and whom they belong to; every other slot says `NOBODY`.

    A dictionary while parts are small, so that quiet subscriptions stay small; a table from the first large part on.
    """

    __slots__ = ("_few", "_table")

    def __init__(self) -> None:
        self._few: dict[int, int] = {}
        self._table = bytearray()  # once there is one, `_few` is empty

    def set(self, slot: int, index: int) -> None:
        if self._table:
            self._table[slot] = index
        else:
            self._few[slot] = index

    def unset(self, slot: int) -> None:
        if self._table:
            self._table[slot] = NOBODY
        else:
            self._few.pop(slot, None)

    def get(self, slot: int) -> int:
        return self._table[slot] if self._table else self._few.get(slot, NOBODY)

    def clear(self) -> None:
        self._table = bytearray()
        self._few = {}

    def look_up(self, slots: array[int]) -> bytearray:
        """The index of each slot of a part."""
        if not self._table:
            if len(slots) < LARGE_PART:
                return bytearray(self._few.get(slot, NOBODY) for slot in slots)
            self._table = bytearray([NOBODY]) * _SLOTS
            for slot, index in self._few.items():
                self._table[slot] = index
            self._few = {}
        return bytearray(np.frombuffer(self._table, np.uint8)[np.frombuffer(slots, np.uint16)])

    def items(self) -> list[tuple[int, int]]:
        """(slot, index) of every free slot; for tests."""
        table = [(slot, index) for slot, index in enumerate(self._table) if index != NOBODY]
        return table or sorted(self._few.items())
