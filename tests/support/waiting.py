"""Waiting in tests for what nobody announces: the condition is looked at now and then, under a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import anyio

DEADLINE_S: Final = 100.0  # below the time limit of a test, so that the failure names the condition's line
STEP_S: Final = 0.02


def wait_until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {deadline_s:g} s"
        time.sleep(STEP_S)


async def until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for what another task or process does."""
    with anyio.fail_after(deadline_s):
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(STEP_S)
