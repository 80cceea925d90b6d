"""State of offsets that were not read yet: which are acknowledged, and how often the others were delivered.

It comes from before a restart, or from trimming of the log. All offsets are at or above the window's next
offset, which is an argument of each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.cursor import Attempts, CursorSnapshot, merge_attempts
from pydanube_broker.subscription.ranges import RangeSet, subtract


class UnreadState:
    """See the module."""

    __slots__ = ("acknowledged", "attempts")

    def __init__(self, snapshot: CursorSnapshot) -> None:
        self.acknowledged = RangeSet(snapshot.acknowledged)
        self.attempts = deque(snapshot.attempts)

    def limit(self, next_offset: int, end: int) -> int:
        """Return the end of the next stretch without acknowledged offsets and with equal counts."""
        if self.acknowledged:
            end = min(end, self.acknowledged.first()[0])
        if self.attempts:
            first = self.attempts[0]
            end = min(end, first.end if first.start <= next_offset else first.start)
        return end

    def count(self, next_offset: int) -> int:
        """Return the delivery count of the next message: 1, or more if it was delivered before a restart."""
        if self.attempts and self.attempts[0].start <= next_offset:
            return self.attempts[0].deliveries + 1
        return 1

    def give_counts(self, placed: list[tuple[Chunk, int]], next_offset: int) -> None:
        """Move counts below `next_offset` to the placed messages. Both ascend. O(placed + counts moved)."""
        ahead, at = self.attempts, 0
        while ahead and ahead[0].start < next_offset:
            start, end, counts = ahead[0].start, ahead[0].end, ahead.popleft()[2:]
            while at < len(placed) and placed[at][0].start < end:
                chunk, mask = placed[at]
                if hit := mask & chunk.local(start, end):
                    chunk.history[counts] = chunk.history.get(counts, 0) | hit
                if chunk.end > end:
                    break
                at += 1
            if end > next_offset:
                ahead.appendleft(Attempts._make((next_offset, end, *counts)))

    def acknowledge(self, start: int, end: int) -> None:
        self.acknowledged.add(start, end)
        kept: deque[Attempts] = deque()
        for a in self.attempts:
            for low, high in ((a.start, min(a.end, start)), (max(a.start, end), a.end)):
                if low < high:
                    kept.append(Attempts(start=low, end=high, deliveries=a.deliveries, failures=a.failures))
        self.attempts = kept

    def reopen(self, counts: Sequence[Attempts]) -> None:
        """Remove offsets from the acknowledged ones. `counts` has how often each was delivered."""
        reopened = [(each.start, each.end) for each in counts]
        self.acknowledged = RangeSet(subtract(self.acknowledged.ranges(), reopened))
        self.attempts = deque(merge_attempts(self.attempts, counts))

    def clear(self) -> None:
        self.acknowledged.clear()
        self.attempts.clear()
