"""A dict of bounded size that drops the least recently used item."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentDict(OrderedDict[K, V]):
    """At most `most` items. Setting an item and `use` count as use, plain reading does not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

    def use(self, key: K) -> V | None:
        """Return an item and mark it as used. None if it is not there."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
