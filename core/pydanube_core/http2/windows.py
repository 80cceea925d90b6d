"""Flow control on the receiving side (RFC 9113 section 5.2): how much a peer may send without a WINDOW_UPDATE.

A window grows automatically. If a peer uses up half of it within `FAST_S` of the last update, the window limits its rate,
so the next update doubles it, up to the maximum. An idle stream keeps its initial window.
"""

from __future__ import annotations

from typing import Final

FAST_S: Final = 0.1


class ReceiveWindow:
    """The bytes that a peer may still send, on one stream or on the whole connection."""

    __slots__ = ("_max", "_since", "left", "size", "used")

    def __init__(self, size: int, largest: int) -> None:
        self.size = size
        self.left = size  # bytes that the peer may send
        self.used = 0  # bytes that were processed and not yet granted again
        self._max = largest
        self._since = 0.0

    def update(self, now: float) -> int:
        """Return the increment to grant: the processed bytes, and more if the window slows the peer down."""
        grown = 0
        if now - self._since < FAST_S and self.size < self._max:
            grown = min(self.size, self._max - self.size)
            self.size += grown
        self._since = now
        increment, self.used = self.used + grown, 0
        self.left += increment
        return increment
