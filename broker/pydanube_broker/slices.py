"""Yield to the loop regularly in work over all topics."""

from __future__ import annotations

import asyncio
import time
from typing import Final

SLICE_S: Final = 0.005


class Slices:
    """`await slices()` between steps: yields to the loop once this work has had it for 5 ms."""

    def __init__(self) -> None:
        self._from = time.perf_counter()

    async def __call__(self) -> None:
        """Yield to the loop if the time is up."""
        if time.perf_counter() - self._from > SLICE_S:
            await asyncio.sleep(0)
            self._from = time.perf_counter()
