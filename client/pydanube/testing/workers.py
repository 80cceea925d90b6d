"""Workers beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(*workers: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run workers, such as `client.run(…)`, for the time of a block, and cancel them at its end.

    If a worker raises, the block is cancelled and the error is raised in its place: a test that waits for that worker
    fails with the cause and does not hang.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in workers]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) == 1:
            raise errors.exceptions[0] from None
        raise
