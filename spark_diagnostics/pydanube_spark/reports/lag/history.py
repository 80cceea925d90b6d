"""The samples of one subscription as arrays, and windows of them for the rules of diagnosis.

Brokers record a subscription when it changes, and once a minute in any case. So a sample holds until the next one, for at
most `hold_ms`. A window is a grid of moments, each with the last sample before it. The values of a sample are certain until
the round before the next sample, or until the broker's last round if there is no next sample. No value is extrapolated
beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from pydanube_core.cursor_state import CursorState, lag_messages, lost_messages
from pydanube_core.diagnosis import LagWindow, Retention
from pydanube_core.diagnosis.lag_status import RECENT_SAMPLES
from pydanube_core.telemetry.tables import CURSOR_STATE, HOLD_ROUNDS

Ints = npt.NDArray[np.int64]
#: columns of `cursors` that the rules need, with -1 for null
ARRAYS: Final = ("taken_at", *CURSOR_STATE, "incarnation", "oldest_unread_age_ms")
# 120 pairs per slope: takes a third of the time of 24 points, and is as reliable over five minutes
GRID_POINTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The length of a window and the distance of its points, for samples `interval_ms` apart."""

    interval_ms: int  # between two rounds of the broker, or of thinned samples
    window_ms: int
    step_ms: int
    hold_ms: int

    @classmethod
    def of(cls, interval_ms: int, *, thinned_ms: int = 0, window_s: float = 300.0) -> Grid:
        """Return the grid for rounds of `interval_ms`, or for samples thinned to one in `thinned_ms`.

        The window is the broker's, `diagnosis.window`, but at least ten samples. If samples are at most a second apart, it
        is 24 samples, and at least a second.
        """
        apart = max(interval_ms, thinned_ms)
        window = max(round(window_s * 1000), 10 * apart) if apart > 1000 else max(24 * apart, 1000)
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
    """Message size and retention of a log, from the last sample of its load. None if unknown or unlimited."""

    message_bytes: float | None = None  # mean size of the messages since its broker started
    retention_age_s: int | None = None
    retention_bytes: int | None = None
    drop_unread: bool = False


class History:
    """All samples of one subscription of one log, oldest first.

    Args:
        arrays: `ARRAYS`.
        log: facts about its log.
        last_round_ms: the last round of its broker, until which the last sample holds.
    """

    def __init__(
        self, arrays: dict[str, Ints], grid: Grid, log: LogFacts | None = None, *, last_round_ms: int = 0
    ) -> None:
        self.log = log or LogFacts()
        self.times = arrays["taken_at"]
        self.start = arrays["start_offset"]
        self.head = arrays["next_offset"]
        self.cursor = self.head - arrays["unread_offsets"]
        self.above = arrays["acked_above"]
        self.in_flight = arrays["in_flight"]
        self.members = arrays["members"]
        # A message counts as failed only if the consumer answered
        self.failed = arrays["failed"] - arrays["unanswered"]
        self.age = arrays["oldest_unread_age_ms"]
        self.lag = lag_messages(self.start, self.head, self.cursor, self.above, np.maximum)
        self.lost = lost_messages(self.start, self.cursor, np.maximum)
        self.arrays = arrays
        self._states = np.stack(
            [self.start, self.head, self.cursor, self.above, self.in_flight, self.members]
        )
        self._grid = grid
        times, count = self.times, len(self.times)
        gaps = np.diff(times, append=times[-1:] + max(0, last_round_ms - self.last_ms) + grid.interval_ms)
        held = gaps <= grid.hold_ms
        held[-1:] = True
        #: `_lasts`: for how long each sample holds. `_until`: the moment until which its values are certain
        self._lasts = np.where(held, gaps, grid.hold_ms)
        self._lasts[-1:] = np.minimum(gaps[-1:] - grid.interval_ms, grid.hold_ms)
        self._until = times + np.where(held, np.clip(gaps - grid.interval_ms, 0, grid.hold_ms), 0)
        self._known = np.concatenate([[0], np.cumsum(self._lasts)])
        index = np.arange(count)
        moved = np.ones(count, bool)
        moved[1:] = self.cursor[1:] != self.cursor[:-1]
        # Last sample at which the cursor had moved
        self._moved = np.maximum.accumulate(np.where(moved, index, 0))
        self._read = np.maximum.accumulate(np.where(self.lag == 0, index, -1))  # last one with nothing unread

    @property
    def first_ms(self) -> int:
        """The time of the oldest sample."""
        return int(self.times[0])

    @property
    def last_ms(self) -> int:
        """The time of the newest sample."""
        return int(self.times[-1])

    @property
    def known_until_ms(self) -> int:
        """The moment until which the state is certain."""
        return int(self._until[-1])

    def at(self, moments: Ints) -> Ints:
        """Return the index of the sample that holds at each moment, -1 if there is none."""
        found: Ints = np.searchsorted(self.times, moments, "right") - 1
        held = (found >= 0) & (moments - self.times[np.maximum(found, 0)] <= self._grid.hold_ms)
        return np.where(held, found, -1)

    def known_ms(self, begins: Ints, ends: Ints) -> Ints:
        """Return for how many milliseconds of each `[begin, end)` a sample holds."""
        return self._known_before(ends) - self._known_before(begins)

    def _known_before(self, moments: Ints) -> Ints:
        at = np.searchsorted(self.times, moments, "right") - 1
        sample = np.maximum(at, 0)
        covered = self._known[sample] + np.minimum(moments - self.times[sample], self._lasts[sample])
        found: Ints = np.where(at >= 0, covered, 0)
        return found

    def rise(self, counter: str, start_ms: int, end_ms: int) -> int | None:
        """Return a counter's rise in `[start_ms, end_ms)`, None without samples. It restarts at 0 with the broker."""
        first, end = np.searchsorted(self.times, [start_ms, end_ms])
        if end <= first:
            return None
        span = slice(max(0, int(first) - 1), int(end))
        values, incarnations = self.arrays[counter][span], self.arrays["incarnation"][span]
        same = incarnations[1:] == incarnations[:-1]
        return int(np.where(same, np.maximum(0, np.diff(values)), values[1:]).sum())

    def newly_lost(self, start_ms: int, end_ms: int) -> int | None:
        """Return how many messages were lost in `[start_ms, end_ms)`, also those that the cursor has passed since."""
        first, end = np.searchsorted(self.times, [start_ms, end_ms])
        if end <= first:
            return None
        lost = self.lost[max(0, int(first) - 1) : int(end)]
        return int(np.maximum(0, np.diff(lost)).sum()) + (int(lost[0]) if first == 0 else 0)

    def ages_s(self, moments: Ints) -> npt.NDArray[np.float64]:
        """Return the age of the oldest unread message at each moment, 0 if nothing is unread. Moments without a sample
        are left out."""
        index = self.at(moments)
        known = index >= 0
        index, when = index[known], moments[known]
        ages = self.age[index] + np.minimum(when, self._until[index]) - self.times[index]
        unread = self.lag[index] > 0
        is_known = ~unread | (self.age[index] >= 0)
        found: npt.NDArray[np.float64] = np.where(unread, ages / 1000, 0.0)[is_known]
        return found

    def window(self, end_ms: int) -> LagWindow:
        """Return the window that ends at `end_ms`. It is judged as of the time until which its last sample holds."""
        grid = self._grid
        moments = end_ms - grid.step_ms * np.arange(grid.points - 1, -1, -1, dtype=np.int64)
        index = self.at(moments)
        held = index >= 0
        index, times = index[held], np.minimum(moments[held], self._until[index[held]])
        spacing: dict[str, Any] = {"interval_s": grid.step_ms / 1000, "window_s": grid.window_ms / 1000}
        if not len(index):
            return LagWindow(states=(), now_ms=end_ms, **spacing)
        last = int(index[-1])
        age = int(self.age[last])
        unread = bool(self.lag[last])
        # If the sample has no age, the rules find it by bisection in the heads.
        heads = slice(0, last + 1) if unread and age < 0 else slice(0, 0)
        read = int(self._read[last])

        def recent() -> list[CursorState]:
            moments = end_ms - grid.interval_ms * np.arange(RECENT_SAMPLES - 1, -1, -1, dtype=np.int64)
            index = self.at(moments)
            held = index >= 0
            return self._cursor_states(index[held], np.minimum(moments[held], self._until[index[held]]))

        return LagWindow(
            states=self._cursor_states(index, times),
            recent=recent,
            now_ms=int(times[-1]) if held[-1] else end_ms,
            **spacing,
            oldest_unread_append_ms=int(self.times[last]) - age if unread and age >= 0 else None,
            cursor_moved_ms=int(self.times[self._moved[last]]),
            unread_since_ms=int(self.times[read + 1]) if unread else None,
            head_times_ms=memoryview(cast(Any, self.times[heads])),
            head_offsets=memoryview(cast(Any, self.head[heads])),
            head_of_line_failures=self._failures(last),
            retention=self._retention(index, times, last),
        )

    def _cursor_states(self, index: Ints, times: Ints) -> list[CursorState]:
        rows = self._states[:, index].T.tolist()
        return [CursorState(time, *row) for time, row in zip(times.tolist(), rows, strict=True)]

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
        """Return how often messages failed since the cursor last moved. If one message blocks, these are its failures.

        Failures of the round in which the cursor moved count, unless messages were given up in it, because it moved past
        the failed ones then. Failures before the last moment with nothing unread do not count.
        """
        moved = int(self._moved[last])
        before = max(0, moved - 1)
        for counter in ("dead_lettered", "dropped"):
            if self.arrays[counter][moved] > self.arrays[counter][before]:
                before = moved
        before = max(before, int(self._read[last]))
        return max(0, int(self.failed[last]) - int(self.failed[before]))
