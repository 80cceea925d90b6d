"""Values between two samples, for charts. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def value_at(times_ms: Sequence[int], values: Sequence[int], time_ms: int) -> int | None:
    """Return the value at a time, on the line between its neighbours. None before the first, the last one after it."""
    after = bisect_right(times_ms, time_ms)
    if after == 0:
        return None
    value = values[after - 1]
    if after == len(times_ms):
        return value
    begin_ms, end_ms = times_ms[after - 1], times_ms[after]
    return value + (values[after] - value) * (time_ms - begin_ms) // (end_ms - begin_ms)
