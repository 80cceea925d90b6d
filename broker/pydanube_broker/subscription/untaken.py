"""Messages sent to a consumer that wait in its buffer, in the order of sending.

A consumer that reports says how many messages of its session its application was handed; the order of sending tells
which these are. Messages that were acknowledged, or expired, stay here until they are passed over: they count.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from pydanube_broker.subscription.ranges import head_of_mask

Place: TypeAlias = Any  # a `Chunk`; to import it would close a circle over `Consumer`, which has one of these


class Untaken:
    """See the module. `messages` counts what is here, `taken` what was handed out in this session."""

    __slots__ = ("_sent", "messages", "taken")

    def __init__(self) -> None:
        self._sent: deque[tuple[Place, int]] = deque()
        self.messages = 0
        self.taken = 0

    def sent(self, chunk: Place, mask: int) -> None:
        """Messages of one chunk are on their way, in the order of their offsets."""
        self._sent.append((chunk, mask))
        self.messages += mask.bit_count()

    def take(self, total: int) -> list[tuple[Place, int]]:
        """The application has been handed `total` messages of this session: those it had not before.

        A smaller number than before is none; a larger one than were sent is all. O(what is taken).
        """
        left = min(total - self.taken, self.messages)
        found: list[tuple[Place, int]] = []
        if left <= 0:
            return found
        self.taken += left
        self.messages -= left
        while left:
            chunk, mask = self._sent.popleft()
            count = mask.bit_count()
            if count > left:
                first = head_of_mask(mask, left)
                self._sent.appendleft((chunk, mask ^ first))
                mask, count = first, left
            found.append((chunk, mask))
            left -= count
        return found

    def parts(self) -> list[tuple[Place, int]]:
        """Everything that is here, in the order of sending. O(parts)."""
        return list(self._sent)

    def given_back(self, back: dict[Place, int]) -> None:
        """These are not in the buffer any more. What was sent last goes first, should one be here twice. O(parts)."""
        left = dict(back)
        kept: deque[tuple[Place, int]] = deque()
        while self._sent:
            chunk, mask = self._sent.pop()
            gone = mask & left.get(chunk, 0)
            if gone:
                left[chunk] ^= gone
                self.messages -= gone.bit_count()
                mask ^= gone
            if mask:
                kept.appendleft((chunk, mask))
        self._sent = kept

    def clear(self) -> None:
        """A new session has begun."""
        self._sent.clear()
        self.messages = self.taken = 0
