"""Worker threads of one broker, and the release of the interpreter lock for them.

A loop that never sleeps keeps the interpreter lock. So while any thread has work, one callback releases it in each
iteration of the loop. There is one callback for all threads, because one per request stopped all progress
(docs/design.md#4-the-journal). A loop with nothing else to do sleeps in between, which also releases the lock. Kept
awake, it would use a processor for as long as a thread waits for the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")
_READERS: Final = 2
# An iteration of this length had nothing but our callback.
_IDLE_S: Final = 50e-6
# How long a loop that begins to work may keep the lock.
_NAP_S: Final = 0.001


class WorkerThreads:
    """Counts the work of threads, and owns the threads of cold reads."""

    def __init__(self) -> None:
        self._pending = 0
        self._armed = False
        self._released_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="danube-read")

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Enter while a thread works for the caller."""
        self._pending += 1
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._tick)
        try:
            yield
        finally:
            self._pending -= 1

    def _tick(self) -> None:
        if not self._pending:
            self._armed = False
            return
        idle = time.monotonic() - self._released_s < _IDLE_S
        time.sleep(0)
        self._released_s = time.monotonic()
        if idle:
            self._loop.call_later(_NAP_S, self._tick)
        else:
            self._loop.call_soon(self._tick)

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` in a thread and call `done` in the loop with its result or its error."""
        context = self.pending()
        context.__enter__()

        def finish(result: T | BaseException) -> None:
            context.__exit__(None, None, None)
            done(result)

        def task() -> None:
            try:
                result: T | BaseException = work()
            except BaseException as error:
                result = error
            self._loop.call_soon_threadsafe(finish, result)

        self._pool.submit(task)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
