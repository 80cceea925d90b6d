"""A process that waits for a disk that hangs cannot be ended by anybody: the broker goes on, and stops, without it."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import anyio
from pydanube_broker.tier.child import TierChild
from pydanube_storage.objects import StoreOptions


class Stuck:
    """As a process in uninterruptible sleep: SIGKILL waits with it."""

    pid = 1
    killed = False

    def kill(self) -> None:
        self.killed = True

    def __init__(self) -> None:
        self.disk_is_back = threading.Event()
        self.reaped = threading.Event()

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None:
            raise subprocess.TimeoutExpired("tier", timeout)
        assert threading.current_thread() is not threading.main_thread(), "this wait has no end"
        self.disk_is_back.wait(60)
        self.reaped.set()
        return -9


def test_a_stop_does_not_wait_for_a_disk_that_hangs() -> None:
    async def stop() -> None:
        child = TierChild(StoreOptions(url="/nowhere"))
        process: Any = Stuck()
        child._process = process
        with anyio.fail_after(30):
            await child.close()
        assert process.killed
        assert child.pid is None
        process.disk_is_back.set()
        assert process.reaped.wait(60)  # nothing stays behind when the disk is back

    anyio.run(stop)
