"""Retries of calls that only read, for programs that outlive a restart of the broker."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from pydanube_core.errors import ClusterError, error_for

from pydanube.retry import Retry

T = TypeVar("T")
log = logging.getLogger("pydanube")


def patiently(call: Callable[[], T], patience: Retry) -> T:
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
                    f"{error.message}. It was retried for {waited_s:.0f} s. Start again when the broker is back. A streaming "
                    "query continues from its checkpoint",
                    error.details,
                    error.next,
                    error.retry_after_ms,
                ) from error
            if attempt == 1:
                log.warning("%s. It is retried for up to %g s", error, patience.max_elapsed_s)
            time.sleep(delay_s)
