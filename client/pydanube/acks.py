"""Acknowledgements gathered into ranges.

One gatherer belongs to one session of one consumer's stream. Acknowledging the next offset in turn is one addition
(`Message.ack` does it inline); everything else comes here. Nothing is sent from here: the lane takes the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pydanube_core.errors import ClusterError

from pydanube.transport import copy_of

__all__ = ["AckGatherer", "cut"]

RANGES_A_REQUEST: Final = 16_384  # a broker takes 65 536, and smaller ones hold up nobody


def cut(flat: Sequence[int]) -> list[Sequence[int]]:
    """Ranges as they are sent: in as many requests as they need, at least one."""
    step = 2 * RANGES_A_REQUEST
    return [flat[at : at + step] for at in range(0, len(flat), step)] or [flat]


class AckGatherer:
    """Ranges of acknowledged offsets that the broker has not been told of.

    `next` is one past the run that is being extended, or -1 when there is none: then the next ack has to come through
    `note`, which is what arms the flush, notices the end of the session and raises a failure.
    """

    __slots__ = (
        "_arm", "_counted", "_dropped", "_first", "_lost", "_ranges", "error", "next", "session", "stale",
    )  # fmt: skip

    def __init__(self, session: int, arm: Callable[[], None], dropped: Callable[[int, bool], None]) -> None:
        self.session = session
        self.next = -1
        self.stale = False
        self._lost = False
        self._dropped = dropped  # told of acks that came too late, and whether a lost connection is to blame
        self.error: ClusterError | None = None
        self._first = 0
        self._ranges: list[tuple[int, int]] = []
        self._arm = arm
        self._counted = 0

    def note(self, first: int, end: int) -> None:
        """Acknowledge [first, end). Stale deliveries are counted and dropped: the broker sends them again.

        Raises:
            ClusterError: the consumer has failed or is closed.
        """
        assert first < end
        if self.error is not None:
            raise copy_of(self.error)
        if self.stale:
            self._dropped(end - first, self._lost)
            return
        if self.next < 0:
            self._arm()
        elif first == self.next:
            self.next = end
            return
        else:
            self._ranges.append((self._first, self.next))
        self._first, self.next = first, end

    def take(self) -> list[int]:
        """The gathered ranges, ascending and merged, flat: first, end, first, end …; empty afterwards."""
        if self.next < 0:
            return []
        self._ranges.append((self._first, self.next))
        self.next = -1
        ranges, self._ranges = self._ranges, []
        if len(ranges) == 1:
            flat = [*ranges[0]]
        else:
            ranges.sort()
            flat = [*ranges[0]]
            for first, end in ranges[1:]:
                if first <= flat[-1]:
                    flat[-1] = max(flat[-1], end)
                else:
                    flat += (first, end)
        self._counted += sum(flat[1::2]) - sum(flat[::2])
        return flat

    def expire(self, *, lost: bool = False) -> None:
        """The session is over: drop what was gathered, and whatever comes later. `lost`: with its connection."""
        flat = self.take()
        dropped = sum(flat[1::2]) - sum(flat[::2])
        self._counted -= dropped
        self._lost = lost
        self._dropped(dropped, lost)
        self.stale = True

    def fail(self, error: ClusterError) -> None:
        self.expire()
        self.error = error

    @property
    def acked(self) -> int:
        """Messages acknowledged in this session, sent or not."""
        if self.next < 0:
            return self._counted
        return self._counted + self.next - self._first + sum(end - first for first, end in self._ranges)
