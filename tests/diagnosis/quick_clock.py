"""A broker's clock that goes on once every workload has done its part of a step."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from pydanube_broker.topics import topic as topic_module
from pydanube_broker.wall_clock import WallClock

__all__ = ["STEP_MS", "Clock"]

STEP_MS: Final = 5_000  # between two looks


class Clock:
    """The broker's time, which goes on once every workload has done its part of a step."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000
        self._working = 0
        self._all_done = asyncio.Event()
        self._next = asyncio.Event()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it the clock of brokers in this process."""
        wall = WallClock(wall_ms=lambda: self.now_ms, counter_ms=lambda: self.now_ms)
        monkeypatch.setattr(topic_module, "CLOCK", wall)

    async def step(self) -> None:
        """A workload is done with what it does in these five seconds; returns when the next begin."""
        self._working -= 1
        if not self._working:
            self._all_done.set()
        await self._next.wait()

    async def until_all_are_done(self) -> None:
        await self._all_done.wait()

    def begin(self, workloads: int) -> None:
        self.now_ms += STEP_MS
        self._working = workloads
        self._all_done.clear()
        following, self._next = self._next, asyncio.Event()
        following.set()
