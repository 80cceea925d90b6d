"""A token bucket: a number of messages a second, with a burst of at most one second's worth.

It refills continuously. (The reference broker refills only when a whole second has passed, so that traffic leaves it
in bursts.) Pure: time comes in as milliseconds that never fall.
"""

from __future__ import annotations

import math

from pydanube_core.errors import InvalidArgument


class TokenBucket:
    """`rate_per_s` messages a second on average.

    More than the burst may be taken in one call, but only when the bucket is full, and later calls wait for the debt.
    Otherwise a batch larger than the burst would wait for ever, or exceed the rate if it paid less.
    """

    __slots__ = ("_at_ms", "_tokens", "rate_per_s")

    def __init__(self, rate_per_s: int, now_ms: int) -> None:
        if rate_per_s < 1:
            raise InvalidArgument(
                f"rate: {rate_per_s} is below 1 a second; 0 in a policy means no limit, and then there is no bucket",
                field="rate",
                value=rate_per_s,
            )
        self.rate_per_s = rate_per_s
        self._tokens = float(rate_per_s)
        self._at_ms = now_ms

    def set_rate(self, rate_per_s: int, now_ms: int) -> None:
        """Change the rate. Savings beyond its burst are lost, debts remain."""
        self._refill(now_ms)
        self.rate_per_s = rate_per_s
        self._tokens = min(self._tokens, float(rate_per_s))

    def _refill(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            gained = (now_ms - self._at_ms) * self.rate_per_s / 1000
            self._tokens = min(float(self.rate_per_s), self._tokens + gained)
            self._at_ms = now_ms

    def available(self, now_ms: int) -> int:
        """Return how many may be taken now, or 0 if there are none, or a debt."""
        self._refill(now_ms)
        # Sums of fractions may fall a hair short of a whole token
        return max(0, math.floor(self._tokens + 1e-9))

    def wait_ms(self, count: int, now_ms: int) -> int:
        """Return the milliseconds until `count` (at most the burst) may be taken. 0: now."""
        self._refill(now_ms)
        missing = min(count, self.rate_per_s) - self._tokens
        return 0 if missing <= 1e-9 else max(1, math.ceil(missing * 1000 / self.rate_per_s))

    def take(self, count: int, now_ms: int) -> None:
        """Take `count`, into debt if necessary. Check `available` or `wait_ms` before."""
        self._refill(now_ms)
        self._tokens -= count
