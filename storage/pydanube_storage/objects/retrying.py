"""Retry a call while that may help, within a time budget.

Pure except for the injected clock and sleep. An outage of a second must not fail a flush. An outage of an hour must not
block a thread, because the tier retries later anyway.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Waits of `first_s`, doubled each time up to `longest_s`, with jitter. No attempt begins after `budget_s`."""

    budget_s: float = 20.0
    first_s: float = 0.1
    longest_s: float = 3.0
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def call(self, attempt: Callable[[], T], may_help: Callable[[Exception], bool]) -> T:
        """Return the first result, or raise the last error unchanged."""
        until = self.monotonic() + self.budget_s
        wait = self.first_s
        while True:
            try:
                return attempt()
            except Exception as error:
                pause = wait * (0.5 + self.jitter() / 2)
                if not may_help(error) or self.monotonic() + pause >= until:
                    raise
            self.sleep(pause)
            wait = min(2 * wait, self.longest_s)
