"""A limit on the bytes per second that producers may append to one topic, for as long as its copy needs it.

Producers wait for the limit as for room in the journal: their messages are delayed and not refused.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import Overloaded

from pydanube_broker.topics.rate_limit import TokenBucket

# Time in milliseconds that a limit stays in force after the newest sign of its copy. A target gives up a copy after the
# same time without data.
HOLD_MS: Final = 20_000


class Brake:
    """See the module. Times are milliseconds of a monotonic clock."""

    __slots__ = ("_again_ms", "_bucket", "_until_ms")

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        self._bucket = TokenBucket(bytes_per_s, now_ms)
        self._until_ms = now_ms + HOLD_MS
        self._again_ms = now_ms  # when the bytes that were refused last may be appended

    def renew(self, now_ms: int) -> None:
        """Keep the limit in force, because its copy makes progress."""
        self._until_ms = now_ms + HOLD_MS

    def is_over(self, now_ms: int) -> bool:
        """Return whether the copy has ended or hangs, so that the limit no longer applies."""
        return now_ms >= self._until_ms

    def take(self, size: int, now_ms: int) -> None:
        """Count bytes that are about to be appended. Raises `Overloaded`: nothing was counted."""
        wait_ms = self._bucket.wait_ms(size, now_ms)
        if wait_ms:
            self._again_ms = now_ms + wait_ms
            raise Overloaded(
                "the topic moves to another broker, and its copy is behind", retry_after_ms=wait_ms
            )
        self._bucket.take(size, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds until the bytes that were refused last may be appended."""
        return 0 if self.is_over(now_ms) else max(0, self._again_ms - now_ms)
