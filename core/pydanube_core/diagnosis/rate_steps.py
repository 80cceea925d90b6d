"""Steps of a rate: from some moment on it is several times what it was, and stays so. Pure.

Medians of the differences between samples are compared, before and after. So a burst within an interval is no step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

FEWEST_BEFORE: Final = 4  # intervals
AFTER: Final = (4, 6, 8, 12, 16, 24)  # intervals since the step that are tried
STILL: Final = 3  # the last intervals must all show it
STEP_TIMES: Final = 3.0  # of the rate before, or a third of it
FEWEST_MESSAGES: Final = 20  # in the larger part


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStep:
    """A rate changed at a moment, in messages a second."""

    at_ms: int
    before: float
    after: float
    intervals: int  # since the step

    @property
    def times(self) -> float:
        return self.after / self.before


def rate_step(times_ms: Sequence[int], values: Sequence[int]) -> RateStep | None:
    """Return the largest step of a counter's rate that still lasts. None if there is none.

    Args:
        times_ms: ascending. The last sample may be of any moment: an interval shorter than half of the others is left
            out.
        values: of a counter, at those times.
    """
    steps = [
        (at, (after - before) / (at - since) * 1000)
        for since, at, before, after in zip(times_ms, times_ms[1:], values, values[1:], strict=False)
        if at > since
    ]
    if len(times_ms) > 2 and 2 * (times_ms[-1] - times_ms[-2]) < times_ms[-2] - times_ms[-3]:
        steps = steps[:-1]
    best: RateStep | None = None
    for count in AFTER:
        earlier, later = steps[:-count], steps[-count:]
        if len(earlier) < FEWEST_BEFORE:
            break
        before, after = median(rate for _, rate in earlier), median(rate for _, rate in later)
        if before <= 0 or after <= 0:
            continue
        found = RateStep(at_ms=earlier[-1][0], before=before, after=after, intervals=count)
        last = [rate for _, rate in later[-STILL:]]
        up = found.times >= STEP_TIMES and min(last) >= STEP_TIMES * before
        down = found.times <= 1 / STEP_TIMES and STEP_TIMES * max(last) <= before and max(last) > 0
        seconds = (later[-1][0] - found.at_ms) / 1000
        if (up or down) and max(before, after) * seconds >= FEWEST_MESSAGES:
            distance = max(found.times, 1 / found.times)
            if best is None or distance >= max(best.times, 1 / best.times):
                best = found
    return None if best is None else _since_it_changed(steps, best)


def _since_it_changed(steps: Sequence[tuple[int, float]], found: RateStep) -> RateStep:
    """Return the step with its moment: since then every interval is nearer to the rate after it."""
    middle, count = math.sqrt(found.before * found.after), 0
    for _, rate in reversed(steps):
        if (rate > middle) is not (found.after > middle):
            break
        count += 1
    at_ms = steps[-count - 1][0] if count < len(steps) else found.at_ms
    return replace(found, at_ms=at_ms, intervals=count)
