"""When a consumer may take the stream of another one with its name.

Two living processes with one name take the stream from each other: whoever loses it opens it again at once, Rust and
Python without any delay (docs/research/data-plane.md#105-recipes). The first takeover is immediate, since it may be a
client that came back before its dead connection was noticed. Those that follow within `QUIET_MS` wait longer each
time, so that two rivals settle at one change every four seconds, and deliver in between.

Pure: monotonic milliseconds go in.
"""

from __future__ import annotations

from typing import Final

QUIET_MS: Final = 10_000
FIRST_DELAY_MS: Final = 250
LONGEST_DELAY_MS: Final = 4_000

assert LONGEST_DELAY_MS < QUIET_MS, "else rivals would be forgotten between two rounds"


class Takeovers:
    """The takeovers of one consumer's name."""

    __slots__ = ("_count", "_last_ms")

    def __init__(self) -> None:
        self._last_ms: int | None = None
        self._count = 0

    def wait_ms(self, now_ms: int) -> int:
        """How long a newcomer has to wait before it may take over; 0: at once."""
        if self._last_ms is None or now_ms - self._last_ms >= QUIET_MS:
            return 0
        delay = min(FIRST_DELAY_MS << min(self._count - 1, 10), LONGEST_DELAY_MS)
        return max(0, self._last_ms + delay - now_ms)

    def happened(self, now_ms: int) -> None:
        """Count a takeover that took place."""
        if self._last_ms is not None and now_ms - self._last_ms >= QUIET_MS:
            self._count = 0
        self._count += 1
        self._last_ms = now_ms
