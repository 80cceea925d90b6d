"""The clock for leases: the machine's monotonic clock that includes suspension."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import anyio


class Clock(Protocol):
    """Milliseconds that never decrease, and waiting for a moment."""

    def now_ms(self) -> int:
        """Return the current time from an arbitrary origin."""

    async def wait_until(self, moment_ms: int) -> None:
        """Return once `now_ms() >= moment_ms`. Cancelling it has no effect."""


# Leases must expire while the machine is suspended. CLOCK_MONOTONIC on Linux stops then.
_CLOCK_ID: Final[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", -1))
_read_ns: Callable[[], int] = (
    (lambda: time.clock_gettime_ns(_CLOCK_ID)) if _CLOCK_ID >= 0 else time.monotonic_ns
)
# The loop's timers stop while the machine is suspended, so the clock is read at least this often
_LONGEST_SLEEP_S: Final = 1.0


class BootClock:
    """Milliseconds since boot, suspension included."""

    def now_ms(self) -> int:
        return _read_ns() // 1_000_000

    async def wait_until(self, moment_ms: int) -> None:
        # Not polling for an event: the last sleep ends at the moment.
        while (left_ms := moment_ms - self.now_ms()) > 0:  # noqa: ASYNC110
            await anyio.sleep(min(left_ms / 1000, _LONGEST_SLEEP_S))
