"""The background thread of a sync client, with its event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from pydanube_core.errors import ClosedResource

FETCH_S: Final = 0.05
MOST_FETCHED: Final = 2_000
CANCEL_S: Final = 5.0

T = TypeVar("T")


class Loop:
    """An event loop in a thread. Calls that are still running when it closes end with `ClosedResource`."""

    def __init__(self) -> None:
        self._serves(
            asyncio.new_event_loop(), threading.Thread(target=self._run, name="pydanube-client", daemon=True)
        )
        self._thread.start()

    def _serves(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self.loop, self._thread = loop, thread
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closed = False
        # No call may be scheduled after the stop: no iteration would run it. Reentrant, because a signal handler
        # may close the client in the middle of a call.
        self._scheduling = threading.RLock()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:  # also if a task has raised SystemExit
            with self._scheduling:
                self._closed = True
            self.loop.run_until_complete(self._end_calls())
            self.loop.close()

    async def _end_calls(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_S)
        for call in list(self._calls):  # those that would not end
            call.cancel()
        await self.loop.shutdown_asyncgens()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it."""
        future = self._schedule(work)
        self._calls.add(future)
        try:
            return future.result()
        except BaseException as error:
            if future.cancel():  # interrupted while waiting: wait until the call has gone
                concurrent.futures.wait([future], timeout=CANCEL_S)
            if self._closed and isinstance(error, concurrent.futures.CancelledError):
                raise ClosedResource("the client was closed during the call") from None
            raise
        finally:
            self._calls.discard(future)

    def _schedule(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._is_elsewhere():
            with self._scheduling:
                if not self._closed:
                    with suppress(RuntimeError):  # the loop is closed
                        return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise ClosedResource("the client is closed, or was called from inside its own thread")

    def _is_elsewhere(self) -> bool:
        """Whether another thread runs the loop. None does in a forked child, where the lock may be held for ever."""
        return self._thread.is_alive() and self._thread is not threading.current_thread()

    def soon(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        if self._is_elsewhere():
            with self._scheduling:
                if not self._closed:
                    self._closed = True
                    self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class RunningLoop(Loop):
    """The running event loop, for plain functions that it calls in threads."""

    def __init__(self) -> None:
        self._serves(asyncio.get_running_loop(), threading.current_thread())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """As `Loop.call`. In the loop itself it returns the coroutine: a plain function may have returned one that awaits it."""
        if threading.current_thread() is self._thread:
            return work  # type: ignore[return-value]
        return super().call(work)


class Pace:
    """How many messages to fetch together: about as many as were handled in a twentieth of a second before.

    A fetch costs some tens of microseconds, and fetched messages count as handed out, so that their ack timeout runs.
    """

    def __init__(self) -> None:
        self._messages = 16
        self._at_s = 0.0

    def next_messages(self, now_s: float) -> int:
        """Return the number for the next fetch. The messages of the last one have been handled."""
        took_s, self._at_s = now_s - self._at_s, now_s
        if took_s < FETCH_S / 2:
            self._messages = min(self._messages * 2, MOST_FETCHED)
        elif took_s > FETCH_S * 2:
            self._messages = max(self._messages // 4, 1)
        return self._messages
