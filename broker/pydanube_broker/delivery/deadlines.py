"""One timer for all subscriptions: who wants to be ticked next."""

from __future__ import annotations

import asyncio
import heapq
from typing import Final, Protocol

EARLY_S: Final = 0.001  # a millisecond late rather than ticked for nothing


class Ticked(Protocol):
    """Something with deadlines. `due_at_ms` is what it was last scheduled for; None if it is not."""

    due_at_ms: int | None

    def tick(self) -> None: ...


class Deadlines:
    """A heap of (due, object), entries replaced lazily. Times are monotonic milliseconds of the loop's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Ticked]] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._serial = 0

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def want(self, ticked: Ticked, due_ms: int | None) -> None:
        """Tick at `due_ms`. A later wish than the one noted changes nothing: the tick finds nothing due then."""
        if due_ms is None or (ticked.due_at_ms is not None and ticked.due_at_ms <= due_ms):
            return
        ticked.due_at_ms = due_ms
        self._serial += 1
        heapq.heappush(self._heap, (due_ms, self._serial, ticked))
        self._arm()

    def _arm(self) -> None:
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer_ms <= due:
                return
            self._timer.cancel()
        self._timer_ms = due
        self._timer = self._loop.call_at(due / 1000 + EARLY_S, self._fire)

    def _fire(self) -> None:
        """Tick when all that has arrived by now was read: an answer among it is in time.

        uvloop runs timers right behind its reads, and what came during a long one is read in the next turn. What is called
        soon runs before the reads of a turn, so it takes two of them.
        """
        self._loop.call_soon(self._loop.call_soon, self._tick)

    def _tick(self) -> None:
        if self._timer is None:  # closed meanwhile
            return
        self._timer.cancel()  # another one may have been armed since
        self._timer = None
        now = self.now_ms()
        while self._heap and self._heap[0][0] <= now:
            due, _, ticked = heapq.heappop(self._heap)
            if ticked.due_at_ms == due:
                ticked.due_at_ms = None
                ticked.tick()
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
