"""Make cursors durable: deltas ride in the journal, at most 100 ms behind the acknowledgement.

An acknowledgement whose sender asked for confirmation forces its delta out at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from pydanube_core.errors import ClusterError, JournalReadOnly

log = logging.getLogger("pydanube.delivery")

FLUSH_S: Final = 0.1


class KeptCursor(Protocol):
    """A subscription's cursor."""

    dirty: bool

    def write_cursor(self) -> None:
        """Append what changed to the journal; may raise `DiskFull` or `JournalReadOnly`."""
        ...


class CursorKeeper:
    """One timer for the dirty cursors of the whole broker."""

    def __init__(self) -> None:
        self._dirty: list[KeptCursor] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False  # said once, until one is written again

    def note(self, cursor: KeptCursor) -> None:
        """Something was acknowledged."""
        if not cursor.dirty:
            cursor.dirty = True
            self._dirty.append(cursor)
            if self._timer is None:
                self._timer = self._loop.call_later(FLUSH_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Append every dirty cursor; one that cannot be written is tried again, unless the journal has failed for good."""
        dirty, self._dirty = self._dirty, []
        for cursor in dirty:
            try:
                cursor.write_cursor()
            except JournalReadOnly:
                continue  # it stays dirty: nothing is written until the restart
            except Exception as error:
                cursor.dirty = False
                self.note(cursor)
                if not (isinstance(error, ClusterError) and error.retryable) and not self._failing:
                    self._failing = True
                    log.exception(
                        "cursor_not_written", extra={"event": "cursor_not_written", "error": str(error)}
                    )
            else:
                cursor.dirty = False
                self._failing = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
