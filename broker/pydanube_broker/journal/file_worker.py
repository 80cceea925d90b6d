"""Background work on the journal's files: one job at a time, in the order given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class FileWorker:
    """Runs jobs in a thread and reports each outcome in the loop, its single user."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="journal-files")

    def run(self, work: Callable[[], _T], then: Callable[[Future[_T]], None]) -> None:
        loop = asyncio.get_running_loop()
        self._executor.submit(work).add_done_callback(lambda job: loop.call_soon_threadsafe(then, job))

    def close(self) -> None:
        """Finish the queued jobs, and end."""
        self._executor.shutdown(wait=True)
