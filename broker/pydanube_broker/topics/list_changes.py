"""Which topics and subscriptions changed since a mark, for lists that fetch only changes.

Whoever changes what a list shows notes the key: a name in a set, nothing more. Who asks has what was noted numbered, each
key with the number of its newest change, so that an answer costs what changed and not what is there. A mark is such a
number. It is good for one start of the broker, and for as long as no newer change had to be forgotten. Pure.
"""

from __future__ import annotations

from typing import Final

#: a log's own name, or a log's name and the name of a subscription of it
Key = str | tuple[str, str]

MOST_KEYS: Final = 50_000  # that are remembered, of which many may be gone: about 5 MB

MOST_NOTED: Final = 5_000  # keys between two marks: taking them in costs some 3 ms


class ListChanges:
    """See the module. Single user: the loop."""

    def __init__(self, *, most: int = MOST_KEYS) -> None:
        self.most = most
        self._noted: set[Key] = set()
        self.note = self._noted.add  # a change of what a list shows of this key
        self._numbers: dict[Key, int] = {}  # ascending: the number of each key's newest change
        self._last = 0
        self._forgotten = 0  # changes up to this one are not all known any more

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
    def kept(self) -> int:
        """How many keys are remembered."""
        return len(self._noted) + len(self._numbers)

    def keep_within(self) -> None:
        """Take in what was noted, if it is much. To be called regularly, as nobody may ever ask for a list."""
        if len(self._noted) > MOST_NOTED:
            self.mark()

    def since(self, mark: int) -> list[Key] | None:
        """Return the keys that changed after a mark, newest first; None: the mark is too old, or unknown. O(those keys)."""
        last = self.mark()
        if not self._forgotten <= mark <= last:
            return None
        found = []
        for key, number in reversed(self._numbers.items()):
            if number <= mark:
                break
            found.append(key)
        return found
