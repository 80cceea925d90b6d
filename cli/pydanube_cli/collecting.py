"""Garbage collection of a broker's process, in steps that are short beside a message's latency.

Sessions, streams and connections leave no cycles, but libraries do. CPython scans the oldest generation in
one step, and only once that generation has grown by a quarter: after an hour this was one pause of 450 ms.
Here it is scanned every `EVERY_S`, and the survivors are frozen (`gc.freeze`), so that the next round scans
only new objects. A frozen object is still freed by its last reference. Cycles among frozen objects are not
found, so all objects are scanned once the frozen ones have grown by half.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Final

EVERY_S: Final = 15.0
#: frozen objects, below which there is no full round: a start makes fewer
LEAST: Final = 200_000
LONG_S: Final = 0.05
#: a frame of a key-shared consumer is a thousand short-lived tuples. The oldest generation is collected only
#: here
THRESHOLDS: Final = (50_000, 20, 1_000_000)

_log = logging.getLogger("pydanube.gc")


class Collecting:
    """Collects garbage until it is cancelled. One for a process."""

    def __init__(self) -> None:
        self._whole = 0  # objects that the last full round left
        self.longest_s = 0.0

    def begin(self) -> None:
        """Freeze the objects of the start: they live as long as the process."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self._whole = gc.get_freeze_count()

    async def run(self) -> None:
        """Collect every `EVERY_S`."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.collect()

    def collect(self) -> int:
        """Collect once, and freeze the survivors. Return the number of unreachable objects."""
        begun = time.perf_counter()
        whole = gc.get_freeze_count() > max(LEAST, self._whole + self._whole // 2)
        if whole:
            gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        if whole:
            self._whole = gc.get_freeze_count()
        took_s = time.perf_counter() - begun
        self.longest_s = max(self.longest_s, took_s)
        if took_s > LONG_S:
            _log.info(
                "collected", extra={"took_ms": round(took_s * 1000), "unreachable": found, "whole": whole}
            )
        return found
