"""What was seen of one subscription of one log over time: arrays, one element a sample.

The arrays are what a report has in its columns and what a broker keeps in its ring. Unknown is None. A cursor was
read no later than its head; where two sources were joined and that does not hold, lag is still never below 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What trims a log. None: it does not."""

    age_s: float | None = None
    bytes: int | None = None
    unread_bytes: int | None = None  # from the oldest unread message to the head
    bytes_per_s: float | None = None  # it grows by
    waits_for_cursors: bool = True  # unread messages stay, whatever age and size say


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWindow:
    """Samples of one subscription, oldest first, and what is known of it beyond them.

    Args:
        times_ms: when each sample was taken, ascending.
        start_offset, next_offset: of the log; None where the head is not known.
        next_unacked, acked_above: of the cursor; None where no cursor is known. None is never read as offset 0.
        in_flight: delivered and not answered.
        members: consumers attached.
        now_ms: when it is judged; not before the last sample.
        interval_s: expected between two samples.
        window_s: how long the window is meant to be.
        oldest_unread_append_ms: append time of the message at the cursor; None: not known, or nothing is unread.
        oldest_unread_between_ms: where that time is not known, but its bounds are.
        cursor_moved_ms: when the cursor was seen to move last, if that is before the window.
        unread_since_ms: since when there has been unread mail without a break, if that is before the window.
        head_times_ms, head_offsets: heads seen, oldest first, reaching back further than the window, if there are.
    """

    times_ms: Sequence[int]
    start_offset: Sequence[int | None]
    next_offset: Sequence[int | None]
    next_unacked: Sequence[int | None]
    acked_above: Sequence[int]
    in_flight: Sequence[int]
    members: Sequence[int]
    now_ms: int
    interval_s: float
    window_s: float
    oldest_unread_append_ms: int | None = None
    oldest_unread_between_ms: tuple[int, int] | None = None
    cursor_moved_ms: int | None = None
    unread_since_ms: int | None = None
    head_times_ms: Sequence[int] = ()
    head_offsets: Sequence[int] = ()
    head_of_line_failures: int = 0  # how often the message at the cursor has failed
    blocked: bool = False  # a message that exhausted its retries stops the subscription
    in_flight_limit: int | None = None  # what its consumers may hold together; None: not known
    retention: Retention | None = None

    def __post_init__(self) -> None:
        count = len(self.times_ms)
        columns = (self.start_offset, self.next_offset, self.next_unacked, self.acked_above, self.in_flight)
        assert all(len(column) == count for column in columns)
        assert len(self.members) == count
        assert len(self.head_times_ms) == len(self.head_offsets)

    @property
    def expected_samples(self) -> int:
        """How many there would be had none been missed."""
        return max(1, int(self.window_s / self.interval_s))

    def lag_at(self, i: int) -> int | None:
        """Unread messages at a sample; None where cursor or head is not known."""
        head, cursor = self.next_offset[i], self.next_unacked[i]
        if head is None or cursor is None:
            return None
        start = self.start_offset[i]
        floor = cursor if start is None else max(cursor, start)
        return max(0, head - floor - self.acked_above[i])

    def lost_at(self, i: int) -> int | None:
        """Messages that were trimmed before they were read."""
        start, cursor = self.start_offset[i], self.next_unacked[i]
        return None if start is None or cursor is None else max(0, start - cursor)
