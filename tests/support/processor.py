"""Bounds on processor time, for tests of the cost of a request. Other processes on the machine do not count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time of this thread."""
    began = time.thread_time()
    yield
    spent = time.thread_time() - began
    assert spent < seconds, f"{spent:.3f} s of processor time, at most {seconds:g} s are allowed"
