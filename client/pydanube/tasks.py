"""The asyncio tasks of one owner, which starts and ends them.

Not an anyio task group: that binds to the task which entered it and to strict nesting, while a client is opened and
closed from fixtures, exit stacks and the sync facade's thread, producers and consumers in any order. The guarantees of
a task group are kept: nothing outlives `aclose`, and a failure is passed on (each lane catches everything and fails its
waiters).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from pydanube_core.errors import ClosedResource

T = TypeVar("T")


class TaskOwner:
    """Owns asyncio tasks until they end or `aclose` ends them."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str, ended: Callable[[], None] | None = None
    ) -> asyncio.Task[T]:
        """Start a task.

        Args:
            ended: called at its end, also if it was cancelled before its first step and no line of `work` has run.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if ended is not None:
            task.add_done_callback(lambda _: ended())
        return task

    @staticmethod
    async def end(task: asyncio.Task[Any]) -> None:
        """Cancel a task and wait until it has ended. Its own outcome is not raised here."""
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # marks it as seen: a lane has handed it on already

    async def aclose(self, *, within_s: float | None = None) -> int:
        """Cancel every task, wait at most `within_s` until they have ended, and return how many have not."""
        tasks = list(self._tasks)
        for task in tasks:
            task.add_done_callback(_seen)
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return sum(not task.done() for task in tasks)


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # else asyncio logs that it was never retrieved


async def shared(task: asyncio.Task[T]) -> T:
    """Wait for a task that has other waiters too: a cancellation ends the waiting, not the task.

    Raises `ClosedResource` if the task's owner has cancelled it. The waiter was not cancelled then.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiter = asyncio.current_task()
        if task.cancelled() and (waiter is None or not waiter.cancelling()):
            raise ClosedResource("the client is closed") from None
        raise


def take_back_cancellation() -> None:
    """Let the current task go on as if it had not been cancelled."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. Raise the first error when all have ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
