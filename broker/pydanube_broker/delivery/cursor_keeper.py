"""Make cursors durable: deltas ride in the journal, at most 100 ms behind the acknowledgement.

An acknowledgement whose sender asked for confirmation forces its delta out at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Final, Protocol

from pydanube_core.errors import ClusterError, JournalReadOnly

from pydanube_broker.slices import SLICE_S

log = logging.getLogger("pydanube.delivery")

FLUSH_S: Final = 0.1


class KeptCursor(Protocol):
    """The cursor of a subscription, as the keeper sees it."""

    dirty: bool

    def write_cursor(self) -> None:
        """Append what changed to the journal; may raise `DiskFull` or `JournalReadOnly`."""


class CursorKeeper:
    """One timer for the dirty cursors of the whole broker."""

    def __init__(self) -> None:
        self._dirty: list[KeptCursor] = []
        self._due: deque[KeptCursor] = deque()  # of the flush that is under way
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False  # said once, until one is written again

    def note(self, cursor: KeptCursor) -> None:
        """Note that something was acknowledged."""
        if not cursor.dirty:
            cursor.dirty = True
            self._dirty.append(cursor)
            if self._timer is None:
                self._timer = self._loop.call_later(FLUSH_S, self._fire)

    def _fire(self) -> None:
        """Write for 5 ms, then let others run: a cursor full of holes takes 15 ms, and many may be dirty."""
        if not self._due:
            self._take()
        begun = time.perf_counter()
        while self._due and time.perf_counter() - begun < SLICE_S:
            self._write(self._due.popleft())
        self._timer = None
        if self._due or self._dirty:
            self._timer = self._loop.call_later(0 if self._due else FLUSH_S, self._fire)

    def flush(self) -> None:
        """Append every dirty cursor at once."""
        self._take()
        while self._due:
            self._write(self._due.popleft())

    def _take(self) -> None:
        self._due += self._dirty
        self._dirty = []

    def _write(self, cursor: KeptCursor) -> None:
        """One that cannot be written is tried again with the next flush, unless the journal has failed for good."""
        try:
            cursor.write_cursor()
        except JournalReadOnly:
            pass  # it stays dirty: nothing is written until the restart
        except Exception as error:
            cursor.dirty = False
            self.note(cursor)
            if not (isinstance(error, ClusterError) and error.retryable) and not self._failing:
                self._failing = True
                log.exception("cursor_not_written", extra={"error": str(error)})
        else:
            cursor.dirty = False
            self._failing = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
