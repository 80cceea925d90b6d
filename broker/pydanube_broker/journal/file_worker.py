"""Work on the journal's files that the loop does not wait for: one job after the other, in the order given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class FileWorker:
    """Single user: the loop, in which each job's outcome is reported."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="journal-files")

    def run(self, work: Callable[[], _T], then: Callable[[Future[_T]], None]) -> None:
        loop = asyncio.get_running_loop()
        self._executor.submit(work).add_done_callback(lambda job: loop.call_soon_threadsafe(then, job))

    def close(self) -> None:
        """Finish what was given, and end."""
        self._executor.shutdown(wait=True)
