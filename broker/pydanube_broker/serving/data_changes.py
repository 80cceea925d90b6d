"""Changes that clients made by data calls (moved cursors, new topics and subscriptions), until the audit takes them.
The audit is slower than the data plane. So equal changes are merged, and changes beyond a maximum are only counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pydanube_core.facts import DataChange, DataChangesTaken

MOST_WAITING: Final = 100


class DataChanges:
    """A bounded queue of changes for the audit. Single user: the loop."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str, int | None, str | None], DataChange] = {}
        self._left_out = 0
        self._wake: Callable[[], None] | None = None

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever the queue becomes non-empty."""
        self._wake = wake
        if self._waiting:
            wake()

    def note(self, change: DataChange) -> None:
        key = (change.operation, change.topic, change.partition, change.subscription)
        before = self._waiting.get(key)
        if before is None and len(self._waiting) >= MOST_WAITING:
            self._left_out += 1
            return
        first = not self._waiting
        if before is not None:  # from the first position to the newest
            change = replace(change, before=before.before, cursor=before.cursor, times=before.times + 1)
        self._waiting[key] = change
        if first and self._wake is not None:
            self._wake()

    def take(self) -> DataChangesTaken:
        """Return the queued changes, and empty the queue."""
        taken = DataChangesTaken(changes=tuple(self._waiting.values()), left_out=self._left_out)
        self._waiting, self._left_out = {}, 0
        return taken
