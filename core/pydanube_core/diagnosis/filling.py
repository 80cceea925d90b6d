"""How fast a disk fills, and over what time that was observed. Pure.

A copy that runs for two minutes does not predict the next day. So a rate counts for `AHEAD` times as long as it was
observed, and is the lower of the rates of both halves of that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

AHEAD: Final = 10
FEWEST: Final = 5  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    bytes_per_s: float  # that free space shrinks by. 0 or less: it does not
    seen_s: float


def filling(samples: Sequence[tuple[int, int]], *, room: int, least_s: float) -> Filling | None:
    """Return the highest rate at which `room` will be used up. If none does, return the rate over all samples.

    Args:
        samples: (time_ms, free bytes), ascending.
        room: bytes until it is full.
        least_s: minimum time. A shorter one shows only how fast one file was written.

    Returns:
        None if there are too few samples, or they cover less.
    """
    if len(samples) < FEWEST:
        return None
    whole: Filling | None = None
    worst: Filling | None = None
    for begin in range(len(samples) - FEWEST + 1):
        seen_s = (samples[-1][0] - samples[begin][0]) / 1000
        if seen_s < least_s:
            break
        one = Filling(bytes_per_s=_steady(samples[begin:]), seen_s=seen_s)
        whole = whole or one
        counts = one.bytes_per_s > 0 and room / one.bytes_per_s < AHEAD * seen_s
        if counts and (worst is None or one.bytes_per_s > worst.bytes_per_s):
            worst = one
    return worst or whole


def _steady(samples: Sequence[tuple[int, int]]) -> float:
    """Return the lower of the rates of both halves of the time."""
    first, last = samples[0], samples[-1]
    middle = min(samples[1:-1], key=lambda one: abs(2 * one[0] - first[0] - last[0]))
    halves = ((first, middle), (middle, last))
    return min((a[1] - b[1]) / max(0.001, (b[0] - a[0]) / 1000) for a, b in halves)
