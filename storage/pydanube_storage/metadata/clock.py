"""Time for leases: the machine's clock that runs on while it sleeps."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import anyio


class Clock(Protocol):
    """Milliseconds that never decrease, and waiting for a moment."""

    def now_ms(self) -> int:
        """The present moment; the origin is arbitrary."""

    async def wait_until(self, moment_ms: int) -> None:
        """Return once `now_ms() >= moment_ms`. Cancelling it has no effect."""


# A suspended machine must find its leases expired, which CLOCK_MONOTONIC on Linux would not tell it.
_CLOCK_ID: Final[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", -1))
_read_ns: Callable[[], int] = (
    (lambda: time.clock_gettime_ns(_CLOCK_ID)) if _CLOCK_ID >= 0 else time.monotonic_ns
)
# Timers of the loop stand still while the machine is suspended: look up now and then
_LONGEST_SLEEP_S: Final = 1.0


@functools.cache
def boot_id() -> str:
    """Return an id of this boot of the machine, "" if unknown; `BootClock` times compare between processes with the same id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class BootClock:
    """Milliseconds since boot, suspension included."""

    def now_ms(self) -> int:
        return _read_ns() // 1_000_000

    async def wait_until(self, moment_ms: int) -> None:
        # Not polling for an event: the sleep ends at the moment, and looks up on the way.
        while (left_ms := moment_ms - self.now_ms()) > 0:  # noqa: ASYNC110
            await anyio.sleep(min(left_ms / 1000, _LONGEST_SLEEP_S))
