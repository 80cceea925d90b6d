"""The past of one subscription of one log: from a broker's ring, or from a report's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydanube_core.cursor_state import CursorState


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits that trim a log. None: it has none."""

    age_s: float | None = None
    bytes: int | None = None
    unread_bytes: int | None = None  # from the oldest unread message to the head
    bytes_per_s: float | None = None  # it grows by
    waits_for_cursors: bool = True  # unread messages stay, whatever their age and size


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWindow:
    """The observations of a subscription, and further facts about it.

    Args:
        states: oldest first, each at the time of its sample. Without a cursor or head, there is no state.
        now_ms: when it is judged; not before the last state.
        interval_s: expected between two states.
        window_s: how long the window is meant to be.
        oldest_unread_append_ms: append time of the message at the cursor. None: unknown, or nothing is unread.
        oldest_unread_between_ms: bounds of that time, if it is unknown itself.
        cursor_moved_ms: when the cursor was seen to move last, if that is before the window.
        unread_since_ms: since when there has been unread messages without a break, if that is before the window.
        first_ms: when the subscription was first observed. None: before the window, or the caller keeps no such time.
        moved_ms: when an operation or a client last moved the cursor. Rates do not span that.
        joined_ms: when a consumer last came or went. A short history of the consumers' pace begins there.
        recent: returns the last states at the distance of the broker's rounds. None: `states` has them.
        before: returns the window at the end of the broker's run before this one. None: there is none. Nothing spans both.
        head_times_ms, head_offsets: heads seen, oldest first, reaching back further than the window, if there are.
    """

    states: Sequence[CursorState]
    now_ms: int
    interval_s: float
    window_s: float
    oldest_unread_append_ms: int | None = None
    oldest_unread_between_ms: tuple[int, int] | None = None
    cursor_moved_ms: int | None = None
    unread_since_ms: int | None = None
    first_ms: int | None = None
    moved_ms: int | None = None
    joined_ms: int | None = None
    recent: Callable[[], Sequence[CursorState]] | None = None
    before: Callable[[], LagWindow | None] | None = None
    head_times_ms: Sequence[int] = ()
    head_offsets: Sequence[int] = ()
    head_of_line_failures: int = 0  # how often the message at the cursor has failed
    blocked: bool = False  # a message that exhausted its retries stops the subscription
    in_flight_limit: int | None = None  # maximum that its consumers may hold together. None: unknown
    retention: Retention | None = None

    def __post_init__(self) -> None:
        assert len(self.head_times_ms) == len(self.head_offsets)

    @property
    def expected_samples(self) -> int:
        """The number of samples since the first observation, within the window, if none was missed."""
        return max(1, int(self._observed_s / self.interval_s))

    @property
    def _observed_s(self) -> float:
        """How much of the window has been observed, missed samples included."""
        if self.first_ms is None:
            return self.window_s
        return min(self.window_s, (self.now_ms - self.first_ms) / 1000)

    @property
    def settles_at_ms(self) -> int | None:
        """When half of the window has been observed, if that is still ahead. Until then a status is provisional."""
        if self.first_ms is None or 2 * self._observed_s >= self.window_s:
            return None
        return self.first_ms + int(self.window_s * 500)
