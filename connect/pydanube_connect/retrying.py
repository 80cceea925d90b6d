"""Retry failed work: the waits, the maximum attempts, and the failures that no retry mends."""

from __future__ import annotations

import random
from typing import Final

import anyio
from pydanube.retry import Retry
from pydanube_core.errors import ClusterError, Retryable, Unavailable

from pydanube_connect.file import Declared
from pydanube_connect.records import RetryLater
from pydanube_connect.statistics import Statistics

LONGEST_WAIT_S: Final = 60.0
#: seconds. The connector shortens a longer `RetryLater.delay_s` to this.
LONGEST_ASKED_S: Final = 3_600.0


class Stopping(Exception):
    """The connector was stopped while it waited for another attempt."""


class Attempts:
    """The budget of consecutive failures.

    Args:
        declared: the connector. Its `delivery` has the maximum retries and the bound of the first wait.
        statistics: count each failure that is retried.
        stop: set when the connector ends. No attempt follows.
    """

    def __init__(self, declared: Declared, statistics: Statistics, stop: anyio.Event) -> None:
        self._declared = declared
        self._statistics = statistics
        self._waits = Retry(initial_s=declared.delivery.backoff_s, max_delay_s=LONGEST_WAIT_S)
        self._stop = stop
        self._failures = 0

    def succeeded(self) -> None:
        """Reset the budget."""
        self._failures = 0

    async def again(self, failure: Exception) -> None:
        """Wait before another attempt.

        The wait is the `delay_s` of a `RetryLater`, or else an exponential back-off with full jitter.

        Raises:
            ClusterError: the failure itself if no retry mends it, or `Unavailable` if the budget is used up.
            Stopping: the connector was stopped.
        """
        if isinstance(failure, ClusterError) and not failure.retryable and not _lost_change(failure):
            raise failure
        self._failures += 1
        reason = reason_of(failure)
        if self._failures > self._declared.delivery.retries:
            raise Unavailable(
                f"{self._declared.name} failed {self._failures} times, the last time because: {reason}. Mend the other system, or "
                "raise delivery.retries, and start the connector again.",
                attempts=self._failures,
            ) from failure
        self._statistics.failed(self._declared.references.clean(reason))
        wait_s = self._waits.delay_s(self._failures, draw=random.random())
        if isinstance(failure, RetryLater) and failure.delay_s is not None:
            wait_s = max(0.0, min(failure.delay_s, LONGEST_ASKED_S))
        with anyio.move_on_after(wait_s):
            await self._stop.wait()
        if self._stop.is_set():
            raise Stopping(reason)


def _lost_change(failure: ClusterError) -> bool:
    """Return whether the answer to a change was lost. A connector only creates topics, after a look for them.

    A fenced producer's outcome may be unknown too, but another connector took its name over, so it ends.
    """
    return isinstance(failure, Retryable) and failure.details.get("outcome") == "unknown"


def reason_of(error: BaseException) -> str:
    """Return an exception's text on one line, after its type unless pydanube wrote the text."""
    text = error.message if isinstance(error, ClusterError) else str(error)
    text = " ".join(text.split())[:500].rstrip(".")
    own = isinstance(error, ClusterError | RetryLater) or (isinstance(error, TimeoutError) and text)
    return text if own else f"{type(error).__name__}: {text}" if text else type(error).__name__


def alone(error: BaseException) -> BaseException:
    """Return the failure inside nested groups: the first `ClusterError`, else the first exception."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [alone(each) for each in error.exceptions]
    return next((each for each in inner if isinstance(each, ClusterError)), inner[0])
