"""Rings of past states of a log and of a subscription, in arrays of 64-bit numbers.

A row is kept when a value changed, so that an idle subscription costs one row and no time. The times of the rounds are
kept once for all (`Rounds`). To read a window, each of its rounds is paired with the newest row that is not later
than the round. If a window has more rounds than `MOST_ROWS`, only every n-th is kept. Pure.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from pydanube_core import cursor_state
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.causes.topics import LEAST_BURST
from pydanube_core.diagnosis.lag_status import FEWEST_SAMPLES
from pydanube_core.diagnosis.settled_status import SettledStatus
from pydanube_core.diagnosis.views import BURST_TIMES, Count, Production, Tail

MOST_ROWS: Final = 64
SEGMENTS: Final = 8  # of a window at most, to compare its parts
SEGMENT_INTERVALS: Final = 2  # at least, of a part: a shorter one has messages or none by chance

WIDTH: Final = len(CursorState._fields)
#: Index of each counter in a state.
COUNTERS: Final = {name: CursorState._fields.index(name) for name in cursor_state.COUNTERS}


class Rounds:
    """The times of the rounds whose rows are kept, and limits that follow from the settings."""

    def __init__(self, *, interval_s: float, window_s: float) -> None:
        samples = max(3, int(window_s / interval_s))
        self.stride = -(-samples // MOST_ROWS)
        self.interval_s = interval_s * self.stride  # between two rows
        self.window_s = window_s
        self.times: deque[int] = deque(maxlen=max(4, samples // self.stride + 1))

    def note(self, number: int, now_ms: int) -> bool:
        """Begin a round. Return whether its rows are kept."""
        if number % self.stride:
            return False
        self.times.append(now_ms)
        return True

    def precede(self, times: Sequence[int]) -> None:
        """Put the times of the run before in front, as far as there is room."""
        room = (self.times.maxlen or 0) - len(self.times)
        self.times.extendleft(reversed(times[len(times) - min(room, len(times)) :]))

    def within(self, since_ms: int, now_ms: int) -> list[int]:
        """Return the times of rounds in the window that ends now, not before `since_ms`."""
        begin = max(since_ms, now_ms - int(self.window_s * 1000))
        return [time for time in self.times if begin <= time < now_ms]

    def enough(self, since_ms: int) -> bool:
        """Return whether an object first seen at a time has been sampled often enough to be judged."""
        return len(self.times) >= FEWEST_SAMPLES and self.times[-FEWEST_SAMPLES] >= since_ms


class _Ring:
    """A bounded list of rows of one width, oldest first."""

    __slots__ = ("_width", "rows")

    def __init__(self, width: int) -> None:
        self._width = width
        self.rows = array("q")

    def __len__(self) -> int:
        return len(self.rows) // self._width

    def append(self, row: Sequence[int]) -> None:
        rows, width = self.rows, self._width
        rows.extend(row)
        if len(rows) > MOST_ROWS * width:
            del rows[:width]

    def times(self) -> Sequence[int]:
        return self.rows[:: self._width]

    def at(self, index: int) -> Sequence[int]:
        return self.rows[index * self._width : (index + 1) * self._width]

    def column(self, column: int) -> Sequence[int]:
        return self.rows[column :: self._width]


class CursorTrack:
    """The past of one subscription of one log."""

    __slots__ = (
        "cursor_moved_ms", "emitted", "first_ms", "last", "look_at_ms", "noted_status", "rewound",
        "ring", "risen_ms", "settled", "stamp", "subscription_id", "unread_since_ms",
    )  # fmt: skip

    def __init__(self, subscription_id: int, now_ms: int) -> None:
        self.subscription_id = subscription_id
        self.first_ms = now_ms
        self.ring = _Ring(WIDTH)
        self.last: CursorState | None = None
        self.stamp: object = None  # compared before a state is made
        self.emitted = -1  # number of the round in which observers got it last
        self.cursor_moved_ms: int | None = None
        self.unread_since_ms: int | None = None
        self.rewound: tuple[int, int, int] | None = None  # at, from, to: without an event of its own
        self.risen_ms: dict[str, int] = {}  # time of each counter's last rise
        self.look_at_ms = 0  # deadline of its next assessment
        self.settled: SettledStatus | None = None
        self.noted_status: object = None  # the settled status and its begin, at the last note for lists

    def see(self, state: CursorState, *, keep: bool) -> None:
        """Record the present state of the subscription."""
        last, now_ms = self.last, state.taken_at_ms
        if not state.lag_messages:
            self.unread_since_ms = None
        elif self.unread_since_ms is None:
            self.unread_since_ms = now_ms
        if last is not None and state.next_unacked != last.next_unacked:
            self.cursor_moved_ms = now_ms
            if state.next_unacked < last.next_unacked:
                self.rewound = (now_ms, last.next_unacked, state.next_unacked)
        for name, place in COUNTERS.items():
            if state[place] > (0 if last is None else last[place]):
                self.risen_ms[name] = now_ms
        if keep or last is None:
            self.ring.append(state)
        self.last = state

    def window(self, rounds: Rounds, live: CursorState) -> list[CursorState]:
        """Return the first look, the states of the window's rounds, each at the time of its round, and `live`."""
        rows, found, at = self.ring.rows.tolist(), [], 0
        if rows and rows[0] == self.first_ms and live.taken_at_ms - rows[0] <= rounds.window_s * 1000:
            found.append(CursorState(*rows[:WIDTH]))
        for time in rounds.within(self.first_ms + len(found), live.taken_at_ms):
            while at + WIDTH < len(rows) and rows[at + WIDTH] <= time:
                at += WIDTH
            found.append(CursorState(time, *rows[at + 1 : at + WIDTH]))
        found.append(live)
        return found

    def seen_by(self, time_ms: int) -> CursorState | None:
        """Return the newest state kept by a time. None if it was not seen yet, or is forgotten."""
        at = bisect_right(self.ring.times(), time_ms) - 1
        return None if at < 0 else CursorState(*self.ring.at(at))

    def count(self, counter: str, live: CursorState, window_ms: int) -> Count:
        """Return a counter's total, its rise in the window that ends with `live`, and the time of its last rise."""
        place, now_ms = COUNTERS[counter], live.taken_at_ms
        total = live[place]
        risen = now_ms if self.last is not None and total > self.last[place] else self.risen_ms.get(counter)
        before = self._before(place, now_ms - window_ms)
        return Count(total=total, in_window=max(0, total - before), last_ms=risen)

    def _before(self, place: int, then_ms: int) -> int:
        """Return a counter's value at a time. 0 before the subscription was first seen."""
        at = bisect_right(self.ring.times(), then_ms) - 1
        if at >= 0:
            return self.ring.at(at)[place]
        if len(self.ring) < MOST_ROWS:
            return 0  # the first row was the first look, and counters begin with their subscription
        # Older ones are forgotten, so the rise is rather too small than too large.
        return self.ring.at(0)[place]


class LogTrack:
    """The past of one log, and of its subscriptions by name."""

    __slots__ = (
        "burst_ms",
        "bytes_in",
        "cursors",
        "emitted",
        "first_ms",
        "last_growth_ms",
        "last_offset",
        "last_start",
        "limits",
        "longest_gap_ms",
        "look_at_ms",
        "name",
        "ring",
        "round",
        "sessions",
        "stamp",
        "steady_from_ms",
        "steady_offset",
        "tail",
        "tail_offset",
        "tail_round",
        "usual",
    )  # fmt: skip

    def __init__(self, name: str, next_offset: int, start_offset: int, now_ms: int) -> None:
        self.name = name
        self.first_ms = now_ms
        self.ring = _Ring(2)  # (time_ms, next_offset), when it grew
        self.ring.append((now_ms, next_offset))
        self.last_offset = next_offset
        self.last_start = start_offset
        self.last_growth_ms: int | None = None
        self.steady_from_ms: int | None = None
        self.steady_offset = next_offset
        self.longest_gap_ms = 0
        self.usual = 0.0  # recent number of messages between two looks
        self.bytes_in = 0  # of the log, at the last look
        self.sessions = _Ring(2)  # (time_ms, producers), when their number changed
        self.burst_ms: int | None = None  # time of a much larger number than that
        self.round = -1  # in which it was seen last
        self.emitted = -1
        self.stamp: object = None
        self.look_at_ms = 0
        # The newest messages at the last look at them: all diagnoses until the next one agree
        self.tail: Tail | None = None
        self.tail_round = 0  # in which its newest messages were looked at last
        self.tail_offset = start_offset  # its head then: at first nothing was looked at
        self.limits: object = None  # the policies in effect when its subscriptions were considered last
        self.cursors: dict[str, CursorTrack] = {}

    def grew(self, now_ms: int, next_offset: int, start_offset: int, interval_ms: int, *, keep: bool) -> None:
        """Record that the log's head or start moved."""
        self.last_start = start_offset
        if next_offset <= self.last_offset:
            return
        came = next_offset - self.last_offset
        if came >= LEAST_BURST and came > BURST_TIMES * self.usual:
            self.burst_ms = now_ms
        self.usual += (came - self.usual) / SEGMENTS
        last = self.last_growth_ms
        broken = last is None or now_ms - last > max(4 * self.longest_gap_ms, 5 * interval_ms)
        if broken:
            self.steady_from_ms, self.steady_offset, self.longest_gap_ms = (
                now_ms,
                self.last_offset,
                interval_ms,
            )
        else:
            assert last is not None
            self.longest_gap_ms = max(self.longest_gap_ms, now_ms - last)
        self.last_growth_ms = now_ms
        self.last_offset = next_offset
        if keep:
            self.ring.append((now_ms, next_offset))

    def producers(self, now_ms: int, count: int) -> bool:
        """Record the number of connected producers. Return whether it changed."""
        rows = self.sessions.rows
        if rows and rows[-1] == count:
            return False
        self.sessions.append((now_ms, count))
        return True

    def sessions_since(self, then_ms: int) -> tuple[int, ...]:
        """Return the numbers of producers since a time, the one at that time first."""
        at = max(0, bisect_right(self.sessions.times(), then_ms) - 1)
        return tuple(self.sessions.column(1)[at:])

    def steady_ms(self) -> int:
        """Return for how many milliseconds it grew without a break, up to its last growth."""
        if self.steady_from_ms is None or self.last_growth_ms is None:
            return 0
        return self.last_growth_ms - self.steady_from_ms

    def offset_at(self, then_ms: int) -> int:
        """Return its head at a time, as sampled."""
        times = self.ring.times()
        at = bisect_right(times, then_ms) - 1
        return self.ring.rows[max(0, at) * 2 + 1]

    def production(self, now_ms: int, next_offset: int, *, window_s: float, interval_s: float) -> Production:
        """Return its growth over the window that ends now, without the time before it grew first."""
        begin = max(self._grew_first_ms(int(interval_s * 1000)), now_ms - int(window_s * 1000))
        span = max(1, now_ms - begin)
        parts = max(1, min(SEGMENTS, int(span / (SEGMENT_INTERVALS * interval_s * 1000))))
        bounds = [begin + span * i // parts for i in range(parts)]
        offsets = [self.offset_at(bound) for bound in bounds] + [max(next_offset, self.last_offset)]
        last = now_ms if next_offset > self.last_offset else self.last_growth_ms
        return Production(
            window_s=span / 1000,
            messages=offsets[-1] - offsets[0],
            last_ms=last,
            steady_since_ms=self.steady_from_ms,
            longest_gap_s=self.longest_gap_ms / 1000,
            steady_messages=self.last_offset - self.steady_offset,
            segments=tuple(after - before for before, after in itertools.pairwise(offsets)),
        )

    def _grew_first_ms(self, interval_ms: int) -> int:
        """Return when the interval began in which it was first seen to grow. The first look, if it has not."""
        times = self.ring.times()
        if times[0] > self.first_ms or len(times) < 2:  # else earlier rows are forgotten, or there are none
            return self.first_ms
        return max(self.first_ms, times[1] - interval_ms)

    def heads(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the sampled (times, heads), ascending."""
        return self.ring.times(), self.ring.column(1)


class Rises:
    """Totals of rarely changing counters by key, with the times of their rises, bounded for each key."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[deque[int], deque[int]]] = {}

    def see(self, key: tuple[str, str], total: int, now_ms: int) -> bool:
        """Record a total. Return whether it rose."""
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = (deque(maxlen=MOST_ROWS), deque(maxlen=MOST_ROWS))
        elif found[1][-1] == total:
            return False
        found[0].append(now_ms)
        found[1].append(total)
        return True

    def count(self, key: tuple[str, str], total: int, now_ms: int, window_ms: int) -> Count:
        """Return a total, its rise in the window, and the time of its last rise."""
        found = self._seen.get(key)
        if found is None:
            return Count(total=total, in_window=total, last_ms=now_ms if total else None)
        times, totals = found
        at = bisect_left(times, now_ms - window_ms) - 1
        before = totals[at] if at >= 0 else 0
        if at < 0 and len(times) == MOST_ROWS:
            before = totals[0]  # older rises are forgotten, so the rise is rather too small than too large
        return Count(
            total=total, in_window=max(0, total - before), last_ms=now_ms if total > totals[-1] else times[-1]
        )

    def forget(self, topic: str) -> None:
        """Forget the counters of a topic that is gone."""
        for key in [key for key in self._seen if key[0] == topic]:
            del self._seen[key]
