"""A dict of bounded size: the item that was set or asked for longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentDict(OrderedDict[K, V]):
    """At most `most` items. `use` counts as use of an item, as setting it does; plain reading does not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

    def use(self, key: K) -> V | None:
        """Return an item, which is then the last to go; None if it is not there."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
