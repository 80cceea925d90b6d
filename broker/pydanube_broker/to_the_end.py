"""Changes in two places, such as catalog and journal, that no cancellation may cut in half."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import anyio

P = ParamSpec("P")
T = TypeVar("T")


def to_the_end(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a function that ends before a cancellation of its caller counts.

    The server cancels the task of a call whose client is gone by `Task.cancel`. A shield of anyio holds only the
    cancellations of its own scopes back.
    """

    @wraps(function)
    async def whole(*args: P.args, **more: P.kwargs) -> T:
        work = asyncio.get_running_loop().create_task(function(*args, **more))
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while not work.done():
                try:
                    await asyncio.wait([work])
                except asyncio.CancelledError as error:
                    cancelled = error
        if cancelled is None:
            return work.result()
        if not work.cancelled():
            work.exception()  # else asyncio logs that it was never retrieved
        raise cancelled

    return whole
