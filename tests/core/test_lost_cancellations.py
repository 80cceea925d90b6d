"""Libraries that our tasks wait in must not swallow the cancellation that ends a task."""

from __future__ import annotations

import asyncio

import anyio
import pytest

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("scope_first", [False, True])
async def test_a_task_ends_that_is_cancelled_in_the_moment_its_scope_is(scope_first: bool) -> None:
    """Up to anyio 4.15 the scope took both cancellations for its own, and a broker's stop waited for such a task for ever."""
    scopes: list[anyio.CancelScope] = []

    async def waits() -> None:
        while True:
            with anyio.move_on_after(3600) as scope:
                scopes.append(scope)
                await anyio.sleep_forever()

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    cancels = [scopes[0].cancel, task.cancel]
    for cancel in cancels if scope_first else reversed(cancels):
        cancel()
    done, _ = await asyncio.wait({task}, timeout=20)
    task.cancel()  # so that the test itself ends
    assert done
