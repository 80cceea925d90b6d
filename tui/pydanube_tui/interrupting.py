"""An end for what holds the interpreter: a regular expression with repetitions in repetitions would take years for a text made for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float, error: Exception) -> Iterator[None]:
    """Raise the error in a block that takes more of the processor, by a signal: no task could, while a pattern is matched.

    Only the main thread is sent signals; in another the block takes what it takes.
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
