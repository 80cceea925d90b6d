"""Whether one of several parts carries an unfair share: partitions of a topic, consumers of a subscription.

A part is hot if it has more than twice its fair share and stands out by more than 3.5 robust z (0.6745·|x − median| ÷
MAD; Iglewicz and Hoaglin, 1993). Where all others are alike the MAD is 0, and the share alone decides. The usual
"mean + 2 standard deviations" cannot fire for five parts or fewer: the largest possible z of N values is √(N−1).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

FEWEST_PARTS: Final = 3
SHARE: Final = 2.0
ROBUST_Z: Final = 3.5


def hot_parts(loads: Sequence[float]) -> list[int]:
    """Return the hot parts, hottest first. Empty for fewer than three parts or without load."""
    total = sum(loads)
    if len(loads) < FEWEST_PARTS or total <= 0:
        return []
    fair = total / len(loads)
    middle = median(loads)
    deviation = median(abs(load - middle) for load in loads)
    hot = [
        i
        for i, load in enumerate(loads)
        if load > SHARE * fair
        and load > middle
        and (deviation == 0 or 0.6745 * (load - middle) / deviation > ROBUST_Z)
    ]
    return sorted(hot, key=lambda i: -loads[i])
