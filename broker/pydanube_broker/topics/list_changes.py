"""The topics and subscriptions that changed since a mark, for lists that fetch only changes.

A change of a listed value notes the key, which only adds it to a set. A query numbers the noted keys, so that each key
has the number of its newest change, and the cost of an answer depends on the changes and not on the number of keys. A
mark is such a number. It is valid for one start of the broker, until a newer change had to be forgotten. Pure.
"""

from __future__ import annotations

from typing import Final

#: a log's own name, or a log's name and the name of a subscription of it
Key = str | tuple[str, str]

MOST_KEYS: Final = 50_000  # remembered keys, about 5 MB. Many may no longer exist

MOST_NOTED: Final = 5_000  # keys between two marks: numbering them takes some 3 ms


class ListChanges:
    """See the module. Single user: the loop."""

    def __init__(self, *, most: int = MOST_KEYS) -> None:
        self.most = most
        self._noted: set[Key] = set()
        self.note = self._noted.add  # notes that the listed values of a key changed
        self._numbers: dict[Key, int] = {}  # ascending: the number of each key's newest change
        self._last = 0
        self._forgotten = 0  # the number up to which changes may be forgotten

    def mark(self) -> int:
        """Return a mark for a later `since`. O(keys noted since the last time)."""
        for key in self._noted:
            self._numbers.pop(key, None)
            self._last += 1
            self._numbers[key] = self._last
        self._noted.clear()
        while len(self._numbers) > self.most:
            self._forgotten = self._numbers.pop(next(iter(self._numbers)))
        return self._last

    @property
    def size(self) -> int:
        """The number of remembered keys."""
        return len(self._noted) + len(self._numbers)

    def keep_within(self) -> None:
        """Number the noted keys if they are many. To be called regularly, because there may be no queries."""
        if len(self._noted) > MOST_NOTED:
            self.mark()

    def since(self, mark: int) -> list[Key] | None:
        """Return the keys changed after a mark, newest first. None: the mark is too old, or unknown. O(those keys)."""
        last = self.mark()
        if not self._forgotten <= mark <= last:
            return None
        found = []
        for key, number in reversed(self._numbers.items()):
            if number <= mark:
                break
            found.append(key)
        return found
