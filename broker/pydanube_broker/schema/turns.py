"""Serializes changes of a subject in this broker, in the order of arrival.

Without turns, each change of a busy subject makes all concurrent ones retry, and the last of many gives up. The store's
guards remain for changes of other brokers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from pydanube_core.errors import Overloaded

MAX_WAITING: Final = 1_000  # per subject. Each holds a definition of up to 200 kB


class Turns:
    """One lock per subject. Single user: the loop."""

    def __init__(self) -> None:
        self.locks: dict[str, tuple[anyio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def of(self, subject: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises `Overloaded` if too many wait."""
        lock, waiting = self.locks.setdefault(subject, (anyio.Lock(), []))
        if len(waiting) >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} changes of subject {subject!r} wait already. Try again", retry_after_ms=1_000
            )
        waiting.append(None)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                del self.locks[subject]
