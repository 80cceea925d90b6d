"""Time for leases that a test moves by hand."""

from __future__ import annotations

import anyio


class ManualClock:
    """A clock that stands until `advance` moves it and wakes whoever waited for that moment."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._moved = anyio.Event()

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, by_ms: int) -> None:
        assert by_ms >= 0, "time never goes back"
        self._now_ms += by_ms
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    async def wait_until(self, moment_ms: int) -> None:
        while self._now_ms < moment_ms:
            await self._moved.wait()
