"""End the calls of lost connections, a few milliseconds in each turn of the loop.

A client process that is killed loses all its connections in one turn. With thousands of consumers, their departure
would stop the loop for all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

TURN_S: Final = 0.01


class LostConnections:
    """Runs the end of each connection: immediately while this turn has time, otherwise in a later one, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._until: float | None = None  # end of this turn's time. None: no connection was lost in it

    def end(self, end: Callable[[], None]) -> None:
        if self._until is None:
            self._begin()
        assert self._until is not None
        if self._waiting or self._clock() >= self._until:
            self._waiting.append(end)
        else:
            end()

    def _begin(self) -> None:
        self._until = self._clock() + TURN_S
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._until = None
        if not self._waiting:
            return
        self._begin()
        assert self._until is not None
        while self._waiting and self._clock() < self._until:
            self._waiting.popleft()()
