"""The background thread of a sync client, with its event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pydanube_core.errors import ClosedResource

__all__ = ["Loop"]

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
