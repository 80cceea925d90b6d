"""SIGTERM and SIGINT as the end of a worker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopped_by_signals(stop: asyncio.Event | None) -> Iterator[asyncio.Event]:
    """Return the event that ends a loop: the given one, or one that the first SIGTERM or SIGINT sets.

    With an event of the caller's own, and outside the main thread, signals are left alone.
    """
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stop or asyncio.Event()
        return
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    with first_signal(lambda: loop.call_soon_threadsafe(event.set)):
        yield event


@contextmanager
def first_signal(told: Callable[[], object]) -> Iterator[None]:
    """Call a function at the first SIGTERM or SIGINT. A second one has its usual effect. In the main thread only."""
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def heard(number: int, frame: object) -> None:
        restore()
        told()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        restore()
