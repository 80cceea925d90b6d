"""Waiting in tests: for what nobody announces, which is looked at now and then under a deadline, and for a child to stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final

import anyio

from tests.support.warm_commands import ForkedProcess

DEADLINE_S: Final = 100.0  # below the time limit of a test, so that the failure names the condition's line
STEP_S: Final = 0.02


def wait_until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {deadline_s:g} s"
        time.sleep(STEP_S)


async def until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for what another task or process does; `holds` may have to be awaited."""
    with anyio.fail_after(deadline_s):
        while not (await found if isawaitable(found := holds()) else found):  # noqa: ASYNC110
            await anyio.sleep(STEP_S)


async def turns_during(work: Awaitable[Any]) -> int:
    """Await the work; return how many turns of the loop another task had meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await work
        group.cancel_scope.cancel()
    return turns


def pause(child: subprocess.Popen[Any] | ForkedProcess) -> None:
    """Stop a child by SIGSTOP, and wait until none of its threads runs: one that waits for the disk is stopped later."""
    child.send_signal(signal.SIGSTOP)
    if isinstance(child, ForkedProcess):
        child.until_stopped()
        return
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it had ended"
