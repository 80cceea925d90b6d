"""Counts of the last one to two minutes, in constant memory and without a timer."""

from __future__ import annotations

from array import array
from typing import Final

MINUTE_MS: Final = 60_000
SHORTEST_S: Final = 1.0  # a rate over less time would be noise


class Recent:
    """Some counters that forget. Each minute the present counts become the former ones, and the former are dropped.

    A reader gets the sum of both, and the seconds that they cover: from the beginning of the former minute, or from the
    first moment. Times are monotonic milliseconds.
    """

    __slots__ = ("_before", "_before_ms", "_now", "_since_ms")

    def __init__(self, counters: int, now_ms: int) -> None:
        self._now = array("Q", bytes(8 * counters))
        self._since_ms = now_ms
        self._before: array[int] | None = None
        self._before_ms = now_ms

    def add(self, counter: int, count: int, now_ms: int) -> None:
        if now_ms - self._since_ms >= MINUTE_MS:
            self._turn(now_ms)
        self._now[counter] += count

    def read(self, now_ms: int) -> tuple[list[int], float]:
        """Return each counter's sum, and the seconds that the sums cover."""
        if now_ms - self._since_ms >= MINUTE_MS:
            self._turn(now_ms)
        if self._before is None:
            return list(self._now), (now_ms - self._since_ms) / 1000
        sums = [now + before for now, before in zip(self._now, self._before, strict=True)]
        return sums, (now_ms - self._before_ms) / 1000

    def _turn(self, now_ms: int) -> None:
        """Begin a new minute. The former one is kept if it has just ended, and is empty if that was longer ago."""
        empty = array("Q", bytes(8 * len(self._now)))
        ended_ms = self._since_ms + MINUTE_MS
        if now_ms - ended_ms < MINUTE_MS:
            self._before, self._before_ms, self._since_ms = self._now, self._since_ms, ended_ms
        else:
            self._before, self._before_ms, self._since_ms = empty, now_ms - MINUTE_MS, now_ms
            empty = array("Q", bytes(8 * len(self._now)))
        self._now = empty
