"""What was sampled of one subscription, as arrays, and windows of it for the pure rules.

A sample holds until the next one, for `hold_ms` at most: brokers write down what changed, and everything once a
minute. So a window looks at a grid of moments, and at each at the last sample before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from pydanube_core.diagnosis import LagWindow, Retention
from pydanube_core.telemetry.tables import HOLD_ROUNDS

Ints = npt.NDArray[np.int64]
# Columns of `cursors` that the rules need; an age that is null is -1.
ARRAYS: Final = (
    "taken_at",
    "start_offset",
    "next_offset",
    "unread_offsets",
    "acked_above",
    "in_flight",
    "members",
    "redelivered",
    "failed",
    "dead_lettered",
    "generation",
    "oldest_unread_age_ms",
)
# 120 pairs a slope: a third of the time of 24, and as sure for what lasts five minutes
GRID_POINTS: Final = 16
WINDOW_MS: Final = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How long a window is and how far its moments are apart, for samples that are `interval_ms` apart."""

    interval_ms: int  # between two rounds of the broker, or of thinned samples
    window_ms: int
    step_ms: int
    hold_ms: int

    @classmethod
    def of(cls, interval_ms: int, *, thinned_ms: int = 0) -> Grid:
        """For rounds of `interval_ms`, or for samples thinned to one in `thinned_ms`."""
        apart = max(interval_ms, thinned_ms)
        window = max(WINDOW_MS, 10 * apart) if apart > 1000 else max(24 * apart, 1000)
        return cls(
            interval_ms=interval_ms,
            window_ms=window,
            step_ms=max(apart, window // GRID_POINTS),
            hold_ms=max(HOLD_ROUNDS * interval_ms, thinned_ms * 5 // 4),
        )

    @property
    def points(self) -> int:
        return self.window_ms // self.step_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What is known of a log besides, as of the last time its load was told. None: not known, or no limit."""

    message_bytes: float | None = None  # mean of what came in since its broker started
    retention_age_s: int | None = None
    retention_bytes: int | None = None
    drop_unread: bool = False


class History:
    """Everything sampled of one subscription of one log; oldest first."""

    def __init__(self, arrays: dict[str, Ints], log: LogFacts | None = None) -> None:
        self.log = log or LogFacts()
        self.times = arrays["taken_at"]
        self.start = arrays["start_offset"]
        self.head = arrays["next_offset"]
        self.cursor = self.head - arrays["unread_offsets"]
        self.above = arrays["acked_above"]
        self.in_flight = arrays["in_flight"]
        self.members = arrays["members"]
        self.redelivered = arrays["redelivered"]
        self.failed = arrays["failed"]
        self.dead_lettered = arrays["dead_lettered"]
        self.age = arrays["oldest_unread_age_ms"]
        floor = np.maximum(self.cursor, self.start)
        self.lag = np.maximum(0, self.head - floor - self.above)
        count = len(self.times)
        index = np.arange(count)
        moved = np.ones(count, bool)
        moved[1:] = self.cursor[1:] != self.cursor[:-1]
        self._moved = np.maximum.accumulate(
            np.where(moved, index, 0)
        )  # last sample at which the cursor had moved
        self._read = np.maximum.accumulate(np.where(self.lag == 0, index, -1))  # last one with nothing unread

    @property
    def last_ms(self) -> int:
        """When the newest sample was taken."""
        return int(self.times[-1])

    def at(self, moments: Ints, grid: Grid) -> Ints:
        """Index of the sample that holds at each moment; -1 where there is none."""
        found: Ints = np.searchsorted(self.times, moments, "right") - 1
        held = (found >= 0) & (moments - self.times[np.maximum(found, 0)] <= grid.hold_ms)
        return np.where(held, found, -1)

    def ages_s(self, moments: Ints, grid: Grid) -> npt.NDArray[np.float64]:
        """Age of the oldest unread message at each moment, 0 where nothing is unread; moments that are not known are
        left out."""
        index = self.at(moments, grid)
        known = index >= 0
        index, when = index[known], moments[known]
        ages = self.age[index] + (when - self.times[index])
        unread = self.lag[index] > 0
        told = ~unread | (self.age[index] >= 0)
        found: npt.NDArray[np.float64] = np.where(unread, ages / 1000, 0.0)[told]
        return found

    def window(self, end_ms: int, grid: Grid) -> LagWindow:
        """The window that ends at a moment."""
        moments = end_ms - grid.step_ms * np.arange(grid.points - 1, -1, -1, dtype=np.int64)
        index = self.at(moments, grid)
        held = index >= 0
        index, times = index[held], moments[held]
        if not len(index):
            nothing: Sequence[Any] = ()
            return LagWindow(
                times_ms=nothing,
                start_offset=nothing,
                next_offset=nothing,
                next_unacked=nothing,
                acked_above=nothing,
                in_flight=nothing,
                members=nothing,
                now_ms=end_ms,
                interval_s=grid.step_ms / 1000,
                window_s=grid.window_ms / 1000,
            )
        last = int(index[-1])
        age = int(self.age[last])
        unread = bool(self.lag[last])
        # The heads are a second way to an age, where the first one fails: views of integers, looked up by bisection.
        heads = slice(0, last + 1) if unread and age < 0 else slice(0, 0)
        read = int(self._read[last])
        return LagWindow(
            times_ms=times.tolist(),
            start_offset=self.start[index].tolist(),
            next_offset=self.head[index].tolist(),
            next_unacked=self.cursor[index].tolist(),
            acked_above=self.above[index].tolist(),
            in_flight=self.in_flight[index].tolist(),
            members=self.members[index].tolist(),
            now_ms=end_ms,
            interval_s=grid.step_ms / 1000,
            window_s=grid.window_ms / 1000,
            oldest_unread_append_ms=int(self.times[last]) - age if unread and age >= 0 else None,
            cursor_moved_ms=int(self.times[self._moved[last]]),
            unread_since_ms=int(self.times[read + 1]) if unread else None,
            head_times_ms=memoryview(cast(Any, self.times[heads])),
            head_offsets=memoryview(cast(Any, self.head[heads])),
            head_of_line_failures=self._failures(last),
            retention=self._retention(index, times, last),
        )

    def _retention(self, index: Ints, times: Ints, last: int) -> Retention | None:
        log = self.log
        if log.retention_age_s is None and log.retention_bytes is None:
            return None
        size = log.message_bytes
        grown = int(self.head[index[-1]] - self.head[index[0]])
        lasted_s = int(times[-1] - times[0]) / 1000
        return Retention(
            age_s=log.retention_age_s,
            bytes=log.retention_bytes,
            unread_bytes=None if size is None else int(self.lag[last] * size),
            bytes_per_s=None if size is None or lasted_s <= 0 else max(0, grown) / lasted_s * size,
            waits_for_cursors=not log.drop_unread,
        )

    def _failures(self, last: int) -> int:
        """How often messages failed since the cursor stood still: of one that nothing gets past, its own."""
        since = int(self._moved[last])
        return max(0, int(self.failed[last]) - int(self.failed[since - 1 if since else 0]))
