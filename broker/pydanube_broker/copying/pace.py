"""Decide from the rounds of a topic's copy whether its producers outrun the copy. Pure."""

from __future__ import annotations

from typing import Final

# Bytes of a round of copying after which the owner stops: the rest is copied in less time than a transaction takes.
LITTLE_BYTES: Final = 2 << 20
# A copy that works halves the missing bytes in so many rounds, and no round doubles them. Otherwise the producers are
# slowed down. After doubling, a wait for more rounds would let the missing bytes grow exponentially.
ROUNDS: Final = 3


class Pace:
    """The rounds of one move of a topic, which `revision` identifies. `rate_bytes_s`: the rate of the newest round."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.rate_bytes_s = 0
        self._missing: list[int] = []

    def round_begins(self, missing_bytes: int) -> int | None:
        """Note the bytes that the target lacks. Return the producers' limit in bytes per second, or None for no change."""
        missing = self._missing
        missing.append(missing_bytes)
        has_grown = len(missing) > 1 and missing_bytes > 2 * missing[-2]
        is_slow = len(missing) > ROUNDS and missing_bytes > missing[-1 - ROUNDS] // 2
        if missing_bytes <= LITTLE_BYTES or not (has_grown or is_slow):
            return None
        return self.rate_bytes_s // 2 or None
