"""Garbage collection of a broker's process, in steps that are short beside a message's latency.

Sessions, streams and connections leave no cycles behind, but libraries do. CPython looks through all objects of the
oldest generation at once, and by itself only once that generation has grown by a quarter: after an hour that was one stop
of 450 ms. Here it is looked through every `EVERY_S`, and what has survived is put aside (`gc.freeze`), so that the next
round looks only at what was made since. An object that is put aside is still freed by its last reference. Cycles among
such objects are not found, so everything is looked through once as much as half of it was added.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Final

EVERY_S: Final = 15.0
#: objects beyond which a half more means a whole round: below it is what a start makes
LEAST: Final = 200_000
LONG_S: Final = 0.05
#: a frame of a key-shared consumer is a thousand short-lived tuples; the oldest generation is collected here alone
THRESHOLDS: Final = (50_000, 20, 1_000_000)

_log = logging.getLogger("pydanube.gc")


class Collecting:
    """Collects garbage until it is cancelled. One for a process."""

    def __init__(self) -> None:
        self._whole = 0  # objects that were left by the last round over everything
        self.longest_s = 0.0

    def begin(self) -> None:
        """Put aside what the start has made: it lives as long as the process."""
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
        """Collect once, and put aside what survives; return the objects that were unreachable."""
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
