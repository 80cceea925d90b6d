"""One subscription of one log at one moment, as broker, diagnosis, telemetry, reports and faces all use it.

A cursor is read before its head, so that lag is never negative and at most a few messages too high. Where a state was
put together from two sources and that does not hold, it is still never below 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class CursorState(NamedTuple):
    """A cursor's numbers. Integers only, so that a ring of them is one array: a round may have ten thousand.

    Offsets are of the log. Counters count since the broker started; the incarnation of the broker says when that was.
    """

    taken_at_ms: int  # milliseconds since 1970, by the broker's clock
    start_offset: int  # what is below was trimmed
    next_offset: int  # one past the newest committed message
    next_unacked: int  # everything below is acknowledged
    acked_above: int  # messages acknowledged above next_unacked
    in_flight: int  # delivered and not answered
    members: int  # consumers attached
    redelivered: int = 0
    failed: int = 0  # nacked or not answered in time
    dead_lettered: int = 0
    dropped: int = 0  # lost on purpose: poison policy drop, or no room on a non-reliable topic
    generation: int = 0  # rises with every seek
    acknowledged: int = 0
    unrouted: int = 0  # key-shared: passed over because no consumer's filter accepts their key

    @property
    def lag_messages(self) -> int:
        """The messages that can still be read and are not acknowledged."""
        lag: int = lag_messages(self.start_offset, self.next_offset, self.next_unacked, self.acked_above)
        return lag

    @property
    def lost_messages(self) -> int:
        """The messages that were trimmed before they were read."""
        lost: int = lost_messages(self.start_offset, self.next_unacked)
        return lost

    @property
    def unread_offsets(self) -> int:
        """The distance of the cursor from the head, which telemetry writes since it changes less than the cursor."""
        return self.next_offset - self.next_unacked

    @property
    def oldest_unread(self) -> int:
        """Offset of the first message that is not acknowledged and not trimmed."""
        return max(self.next_unacked, self.start_offset)


def lag_messages(
    start: Any, head: Any, next_unacked: Any, acked_above: Any, larger: Callable[[Any, Any], Any] = max
) -> Any:
    """Compute lag, for numbers, or for whole columns with `larger=numpy.maximum`."""
    return larger(0, head - larger(next_unacked, start) - acked_above)


def lost_messages(start: Any, next_unacked: Any, larger: Callable[[Any, Any], Any] = max) -> Any:
    """Compute the lost messages, for numbers or columns as `lag_messages`."""
    return larger(0, start - next_unacked)
