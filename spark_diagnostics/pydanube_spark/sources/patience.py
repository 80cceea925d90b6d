"""Retries of a stream's calls: a broker that restarts is away for seconds, and a streaming query goes on after it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from pydanube.retry import Retry
from pydanube_core.errors import ClusterError, error_for

PATIENCE: Final = Retry(max_elapsed_s=60.0, initial_s=0.2, max_delay_s=5.0)
T = TypeVar("T")
log = logging.getLogger("pydanube.spark")


def patiently(call: Callable[[], T], patience: Retry = PATIENCE) -> T:
    """Return the result of a call that only reads. Retry it with back-off while its error may pass.

    Raises `ClusterError`: the call failed, and did so until the time of `patience` was over if it is retryable.
    """
    began, attempt = time.monotonic(), 0
    while True:
        try:
            return call()
        except ClusterError as error:
            waited_s = time.monotonic() - began
            if not error.retryable:
                raise
            attempt += 1
            delay_s = patience.delay_s(attempt, draw=random.random(), retry_after_ms=error.retry_after_ms)
            if waited_s + delay_s > patience.max_elapsed_s:
                raise error_for(
                    error.code,
                    f"{error.message}. The stream tried for {waited_s:.0f} s. Start the query again when the broker is back: it "
                    "continues from its checkpoint",
                    error.details,
                    error.next,
                    error.retry_after_ms,
                ) from error
            if attempt == 1:
                log.warning("%s. The stream retries for up to %g s", error, patience.max_elapsed_s)
            time.sleep(delay_s)
