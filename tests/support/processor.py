"""Bounds on processor time and on work, for tests of costs. Other processes on the machine do not count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time of this thread."""
    began = time.thread_time()
    yield
    spent = time.thread_time() - began
    assert spent < seconds, f"{spent:.3f} s of processor time, at most {seconds:g} s are allowed"


def lines_of(work: Callable[[], Any]) -> int:
    """Return how many lines of Python ran. A loop over all consumers shows, however fast each turn is."""
    count = 0

    def trace(_frame: FrameType, event: str, _value: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
