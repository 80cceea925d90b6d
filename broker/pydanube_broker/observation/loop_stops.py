"""The longest stop of the event loop: one step of a task, a garbage collection, or a machine without processor time.

A tick is due every `TICK_S`. Its delay is the length of the stop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TICK_S: Final = 0.1  # ten wake-ups per second cost about 0.02 % of a processor
WINDOW_S: Final = 300.0  # how long a stop is shown. Scrapes are more frequent
_PART_S: Final = 30.0  # of the window, by which old stops are dropped


class LoopStops:
    """See the module. Single user: the loop that it watches."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, float]] = deque()  # begin of a part of the window, its longest stop
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which stops are measured."""
        self._due = time.monotonic() + TICK_S
        self._again()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def longest_s(self) -> float:
        """Return the longest stop of the last `WINDOW_S` seconds. 0 if there was none."""
        now = time.monotonic()
        return max((longest for begun, longest in self._parts if now - begun < WINDOW_S), default=0.0)

    def note(self, now: float, late_s: float) -> None:
        """Record the delay of a tick."""
        if not self._parts or now - self._parts[-1][0] >= _PART_S:
            self._parts.append((now, late_s))
            if now - self._parts[0][0] > WINDOW_S:
                self._parts.popleft()
        elif late_s > self._parts[-1][1]:
            self._parts[-1] = (self._parts[-1][0], late_s)

    def _tick(self) -> None:
        now = time.monotonic()
        self.note(now, max(0.0, now - self._due))
        self._due = now + TICK_S
        self._again()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
