"""Garbage collection of a broker's process, in steps that are short beside a message's latency.

Sessions, streams and connections leave no cycles, but libraries do. CPython scans the oldest generation in
one step, once that generation has grown by a quarter. After an hour this was one pause of 450 ms. Here it is
scanned every `EVERY_S`, and the survivors are frozen (`gc.freeze`), so that the next round scans only new
objects. A frozen object is still freed with its last reference. Cycles among frozen objects are not found, so
all objects are scanned once the frozen ones have grown by half. This full round takes a third of a second with
4 000 topics, so it waits until the process is less busy, such as after a take-over of thousands of topics.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Final

EVERY_S: Final = 1.0  # a take-over of thousands of topics makes some ten thousand objects a second
#: frozen objects, below which there is no full round: a start makes fewer
LEAST: Final = 200_000
LONG_S: Final = 0.05
BUSY: Final = 0.25  # share of a processor, from which on a full round waits
CALM: Final = 10  # consecutive rounds in which the process was less busy, before a full one
WAITS_S: Final = 600.0  # a full round waits for at most so long
#: a frame of a key-shared consumer is a thousand short-lived tuples. The oldest generation is collected only
#: here
THRESHOLDS: Final = (50_000, 20, 1_000_000)

_log = logging.getLogger("pydanube.gc")


class Collecting:
    """Collects garbage until it is cancelled. One for a process."""

    def __init__(self) -> None:
        self._whole = 0  # objects that the last full round left
        self._frozen = 0  # frozen objects at most: those that were freed since the last count are in it
        self._due_s: float | None = None  # since when a full round waits
        self._calm = 0  # consecutive rounds in which the process was less busy
        self.longest_s = 0.0

    def begin(self) -> None:
        """Freeze the objects of the start: they live as long as the process."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self._whole = self._frozen = gc.get_freeze_count()

    async def run(self) -> None:
        """Collect every `EVERY_S`."""
        while True:
            began_s, spent_s = time.monotonic(), time.process_time()
            await asyncio.sleep(EVERY_S)
            took_s = time.monotonic() - began_s
            share = (time.process_time() - spent_s) / took_s
            self.round(share=share, late_s=took_s - EVERY_S)

    def round(self, *, share: float, late_s: float) -> int:
        """Collect once, as `collect`.

        Args:
            share: of a processor, that the process took since the last round.
            late_s: delay of this round. On a loaded machine a busy process has a small share, and is late.
        """
        self._calm = 0 if share >= BUSY or late_s >= LONG_S else self._calm + 1
        return self.collect(is_busy=self._calm < CALM)

    def collect(self, *, is_busy: bool = False) -> int:
        """Collect once, and freeze the survivors. Return the number of unreachable objects.

        Args:
            is_busy: a full round that is due waits, for at most `WAITS_S`.
        """
        begun_s = time.thread_time()  # processor time: on a loaded machine every round lasts long
        whole = self._is_due(time.monotonic(), is_busy=is_busy)
        if whole:
            gc.unfreeze()
            self._frozen = 0
        found = gc.collect()
        self._frozen += len(gc.get_objects(generation=2))
        gc.freeze()
        if whole:
            self._whole, self._due_s = self._frozen, None
        took_s = time.thread_time() - begun_s
        self.longest_s = max(self.longest_s, took_s)
        if took_s > LONG_S:
            _log.info(
                "collected", extra={"took_ms": round(took_s * 1000), "unreachable": found, "whole": whole}
            )
        return found

    def _is_due(self, now_s: float, *, is_busy: bool) -> bool:
        """Return whether to scan all objects now."""
        most = max(LEAST, self._whole + self._whole // 2)
        if self._frozen <= most:
            self._due_s = None
            return False
        if self._due_s is None:
            self._due_s = now_s
        if is_busy and now_s - self._due_s < WAITS_S:
            return False
        # Most objects of a busy process that lived for a second are freed by now
        self._frozen = gc.get_freeze_count()  # walks over all of them, so it is called rarely
        if self._frozen <= most:
            self._due_s = None
            return False
        return True
