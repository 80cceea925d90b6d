"""The background thread of a sync client, with its event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from pydanube_core.errors import ClosedResource

FETCH_S: Final = 0.05
MOST_FETCHED: Final = 2_000

T = TypeVar("T")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pydanube-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it."""
        if not self._thread.is_alive() or self._thread is threading.current_thread():
            work.close()
            raise ClosedResource("the client is closed, or was called from inside its own thread")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():  # interrupted while waiting: wait until the call has gone
                concurrent.futures.wait([future], timeout=5)
            raise

    def soon(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        self.call(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class RunningLoop(Loop):
    """The running event loop, for plain functions that it calls in threads."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()

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
