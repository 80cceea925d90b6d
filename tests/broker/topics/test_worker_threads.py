"""What the loop does while a thread works: it releases the interpreter lock, and spends no processor on that."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from pydanube_broker import worker_threads
from pydanube_broker.worker_threads import WorkerThreads

pytestmark = pytest.mark.anyio


async def test_a_loop_with_nothing_to_do_sleeps_while_a_thread_works() -> None:
    threads = WorkerThreads()
    await anyio.to_thread.run_sync(time.sleep, 0)  # makes the thread
    before_s = time.thread_time()
    with threads.pending():
        await anyio.to_thread.run_sync(time.sleep, 1)
    assert time.thread_time() - before_s < 0.3, "a loop that polls would use all of it"
    threads.close()


async def test_a_busy_loop_releases_the_lock_in_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = 0

    class Counting:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def sleep(_: float) -> None:
            nonlocal releases
            releases += 1

    monkeypatch.setattr(worker_threads, "time", Counting)
    threads = WorkerThreads()
    with threads.pending():
        for _ in range(100):
            until_s = time.monotonic() + 0.0002
            while time.monotonic() < until_s:
                pass
            await anyio.lowlevel.checkpoint()
    assert releases >= 95
    threads.close()
