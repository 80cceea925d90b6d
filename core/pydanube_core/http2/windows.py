"""Flow control on the receiving side (RFC 9113 section 5.2): how much a peer may send without a WINDOW_UPDATE.

A window grows by itself. A peer that has used up half of it within `FAST_S` of the last update is held back by the window
rather than by what it has to say, so the next update doubles it, up to the limit. An idle stream costs what it began with.
"""

from __future__ import annotations

from typing import Final

FAST_S: Final = 0.1


class ReceiveWindow:
    """The bytes that a peer may still send, on one stream or on the whole connection."""

    __slots__ = ("_max", "_since", "left", "size", "used")

    def __init__(self, size: int, largest: int) -> None:
        self.size = size
        self.left = size  # what the peer may send
        self.used = 0  # taken from us and not given back to the peer
        self._max = largest
        self._since = 0.0

    def update(self, now: float) -> int:
        """Return the credit of processed bytes, and more if the window slows the peer down."""
        grown = 0
        if now - self._since < FAST_S and self.size < self._max:
            grown = min(self.size, self._max - self.size)
            self.size += grown
        self._since = now
        increment, self.used = self.used + grown, 0
        self.left += increment
        return increment
