"""Threads for handler functions that are not coroutines.

Daemons, unlike those of `concurrent.futures`, for which a process waits when it ends: a function that never returns
must not keep a stopped worker from ending. As many as concurrent calls, none before the first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Context, Callable[[], Any]]


class HandlerThreads:
    """The threads of one handler loop, used from its event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._count = self._busy = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, with the current context variables, and return its result or raise its error.

        If cancelled, it stops waiting, but the function runs on.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        if self._busy == self._count:
            self._count += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        self._busy += 1
        self._calls.put((loop, done, copy_context(), function))
        return await done

    def close(self) -> None:
        """End idle threads now, and the others when they are done."""
        for _ in range(self._count):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, done, context, function = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function)
            except StopIteration as stop:  # a future takes none
                error = RuntimeError(f"the function raised StopIteration({stop.value!r})")
                error.__cause__ = stop
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed, and no caller waits any more
                loop.call_soon_threadsafe(self._settle, done, result, error)
            del call, done, context, function, result, error

    def _settle(self, done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
