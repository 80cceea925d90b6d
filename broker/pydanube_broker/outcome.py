"""The outcome of work that is reported by a callback: None, or the error that prevented it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydanube_core.errors import ClusterError

#: Called with None on success, or with the error if it failed or its result is unknown.
OutcomeCallback = Callable[[ClusterError | None], None]


def outcome_of(start: Callable[[OutcomeCallback], None]) -> asyncio.Future[None]:
    """Call `start` with a callback. Return a future that ends with the outcome given to the callback."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: ClusterError | None) -> None:
        if outcome.done():
            return  # the waiting task was cancelled
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    start(done)
    return outcome
