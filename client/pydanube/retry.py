"""When to retry: exponential back-off with full jitter, bounded by time.

Pure: the caller brings the random number and the elapsed time. Full jitter (a uniform draw between 0 and the
exponential bound) is the variant of the AWS architecture blog's comparison that spreads a herd best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydanube.arguments import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long, and how often, a retryable failure is retried.

    Args:
        max_elapsed_s: from the first failure of an outage until the error is raised. 0: raised immediately.
        initial_s: bound of the first delay. Doubles with each attempt.
        max_delay_s: bound of any delay.
    """

    max_elapsed_s: float = 60.0
    initial_s: float = 0.05
    max_delay_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("max_elapsed_s", "initial_s", "max_delay_s"):
            check_number(f"retry.{name}", getattr(self, name), 0, math.inf)

    def delay_s(self, attempt: int, *, draw: float, retry_after_ms: int | None = None) -> float:
        """Return the seconds before attempt number `attempt` (the first retry is 1).

        Args:
            draw: a random number in [0, 1).
            retry_after_ms: minimum that the broker requested.
        """
        bound = min(self.max_delay_s, self.initial_s * 2.0 ** min(attempt - 1, 32))
        return max(bound * draw, (retry_after_ms or 0) / 1000)
