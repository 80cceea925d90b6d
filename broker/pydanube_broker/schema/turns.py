"""Turns of changes to a subject: one at a time in this broker, in the order of their arrival.

Without turns a hot subject is a race in which each change makes all others begin again, and the last of many gives
up. What is left for the store's guards are the changes of other brokers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from pydanube_core.errors import Overloaded

MAX_WAITING: Final = 1_000  # for one subject; each holds a definition of up to 200 kB


class Turns:
    """Turns of calls that change one subject. Single user: the loop."""

    def __init__(self) -> None:
        self.locks: dict[str, tuple[anyio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def of(self, subject: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises `Overloaded` if too many wait."""
        lock, waiting = self.locks.setdefault(subject, (anyio.Lock(), []))
        if len(waiting) >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} changes of subject {subject!r} wait already; try again", retry_after_ms=1_000
            )
        waiting.append(None)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                del self.locks[subject]
