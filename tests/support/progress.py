"""Acknowledgements of a load, as an event to wait for."""

from __future__ import annotations

import anyio


class Progress:
    """Counts acknowledgements down to the next event."""

    def __init__(self) -> None:
        self._left = 0
        self._reached = anyio.Event()

    def one(self) -> None:
        """Count one acknowledgement."""
        self._left -= 1
        if self._left <= 0:
            self._reached.set()

    async def more(self, answers: int) -> None:
        """Wait until that many more are counted."""
        self._left, self._reached = answers, anyio.Event()
        await self._reached.wait()
