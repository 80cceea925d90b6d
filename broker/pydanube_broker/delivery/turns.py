"""Turns of delivery: every pump with work takes turns in the loop, with one small step each.

There is no task, timer or thread per topic, subscription or consumer. A pump with work is woken and gets one
step (one frame) per turn, in the order of waking. After 200 µs the rest waits for the next iteration of the
loop, so that publishes, acknowledgements and answers come in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

TURN_S: Final = 0.0002
#: maximum wait of a consumer that holds many messages, so that the next ones leave in one frame
REFILL_S: Final = 0.005


class Pump(Protocol):
    """A subscription's delivery, as `Turns` runs it."""

    queued: bool

    def step(self) -> bool:
        """Do the work of one frame. Return whether there is more to do. Never raises."""


class Turns:
    """Round-robin over the pumps that have work."""

    def __init__(self) -> None:
        self._queue: deque[Pump] = deque()
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._later: dict[Pump, None] = {}  # woken by the next timer
        # Flushes the frames that were sent. Set by the owner of the connections.
        self.flush: Callable[[], None] = lambda: None

    def wake(self, pump: Pump) -> None:
        if not pump.queued:
            pump.queued = True
            self._queue.append(pump)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._run)

    def wake_later(self, pump: Pump) -> None:
        """Wake a pump within `REFILL_S`: its consumers hold many messages, and few large frames cost less than many."""
        if not self._later:
            self._loop.call_later(REFILL_S, self._wake_those)
        self._later[pump] = None

    def _wake_those(self) -> None:
        later, self._later = self._later, {}
        for pump in later:
            self.wake(pump)

    def at_once(self, pump: Pump) -> None:
        """Wake a pump. The first one in a turn of the loop makes its step now, and its frame is flushed."""
        if self._scheduled:
            self.wake(pump)
            return
        self._scheduled = True
        self._loop.call_soon(self._run)  # runs the pumps that are woken after this one
        if pump.step() and not pump.queued:
            pump.queued = True
            self._queue.append(pump)
        self.flush()

    def _run(self) -> None:
        self._scheduled = False
        queue, until = self._queue, time.perf_counter() + TURN_S
        while queue:
            pump = queue.popleft()
            pump.queued = False
            if pump.step() and not pump.queued:
                pump.queued = True
                queue.append(pump)
            if queue and time.perf_counter() > until:
                self._scheduled = True
                self._loop.call_soon(self._run)
                return
