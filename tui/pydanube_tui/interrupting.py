"""Stop a block of code that runs too long, such as a regular expression that would search a text for years."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float, error: Exception) -> Iterator[None]:
    """Raise the error in a block that has taken so many seconds of the processor.

    By a signal: no task runs while a pattern is matched. Python runs handlers of signals in the main thread only; in
    another thread the block has no limit.
    """

    def stop(*_: object) -> None:
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGVTALRM, stop)
    # Again after as long: what is raised while a cell is made is taken for a cell that cannot be read.
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler)
