"""The deadlines of calls, to within `SLOT_S`.

A timer for each call would cost more than the call: Go's clients set a deadline of seconds on every call, and it is
answered in a millisecond. So calls are put into slots of time and dropped from them when they end, and one timer waits
for the first slot in use. The client's own clock is independent of these deadlines.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydanube_broker.rpc.calls import Call


SLOT_S: Final = 1 / 64
LONGEST_S: Final = 86_400.0  # longer deadlines are ignored: the caller cancels, or its connection dies
_STALE: Final = 4096  # slots of the order that may be empty


class Deadlines:
    """The deadlines of all calls of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, set[Call]] = {}
        self._order: list[int] = []  # a heap. May hold slots that are empty by now
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0

    def add(self, call: Call, now: float, wait_s: float) -> None:
        """Expire a call after `wait_s`, or up to a slot later."""
        if wait_s > LONGEST_S:
            return
        slot = int((now + wait_s) / SLOT_S) + 1
        call.due = slot
        calls = self._slots.get(slot)
        if calls is not None:
            calls.add(call)
            return
        self._slots[slot] = {call}
        if len(self._order) > 2 * len(self._slots) + _STALE:
            self._order = sorted(self._slots)
        else:
            heapq.heappush(self._order, slot)
        if self._timer is None or slot < self._timer_slot:
            self._arm(slot)

    def drop(self, call: Call) -> None:
        """Forget the deadline of a call that has ended."""
        calls = self._slots.get(call.due)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._slots[call.due]
        call.due = 0

    @property
    def waiting(self) -> int:
        """The number of calls with a deadline."""
        return sum(map(len, self._slots.values()))

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * SLOT_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = int(self._loop.time() / SLOT_S)
        while self._order and self._order[0] <= now:
            for call in self._slots.pop(heapq.heappop(self._order), ()):
                call.expire()
        while self._order and self._order[0] not in self._slots:
            heapq.heappop(self._order)
        if self._order:
            self._arm(self._order[0])

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
