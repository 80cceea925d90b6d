"""Keep the order of a key after a nack, also for messages that were on their way.

A nack gives back the buffered messages of its keys. Later messages of these keys that the broker had sent before it
read the nack still arrive. The lane gives them back, too, until the broker has read the nack and the returned messages: a
returned message came again, or the broker has answered a later request (the barrier). From then on the broker sends the
messages of the key in order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Key = bytes | str


class Behind(NamedTuple):
    """The messages that a nack returns: flat ranges, and the same by key. `first`: the first nacked offset of each key."""

    ranges: list[int]
    first: Mapping[Key, int]
    returned: Sequence[tuple[Key, int]]


@dataclass(slots=True)
class _Out:
    """The messages of a key that were nacked or given back, ascending, each with its barrier."""

    # Nacks that the broker may not have read: offset → barrier
    nacks: dict[int, int] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    barriers: dict[int, int] = field(default_factory=dict)

    def add(self, offset: int, barrier: int) -> None:
        if offset not in self.barriers:
            insort(self.offsets, offset)
        self.barriers[offset] = barrier

    def remove(self, offset: int) -> None:
        del self.barriers[offset]
        del self.offsets[bisect_left(self.offsets, offset)]

    def read_to(self, barrier: int) -> None:
        """Forget the nacks that the broker has read."""
        for offset in [each for each, its in self.nacks.items() if its <= barrier]:
            del self.nacks[offset]

    def is_early(self, offset: int) -> bool:
        return bool(self.offsets and self.offsets[0] < offset) or any(each < offset for each in self.nacks)


class Withheld:
    """The keys of one session whose messages may arrive out of order. Empty except for moments after a nack."""

    def __init__(self) -> None:
        self._keys: dict[Key, _Out] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def clear(self) -> None:
        self._keys.clear()

    def nacked(self, behind: Behind, barrier: int) -> None:
        """Note a nack, and the messages that it returns."""
        for key, offset in behind.first.items():
            self._keys.setdefault(key, _Out()).nacks[offset] = barrier
        for key, offset in behind.returned:
            self._keys[key].add(offset, barrier)

    def arrived(self, messages: Iterable[tuple[int, Key]], barrier: int) -> list[int]:
        """Return the offsets, of messages with their keys, that are to be given back before this barrier."""
        back = []
        for offset, key in messages:
            out = self._keys.get(key)
            if out is None:
                continue
            sent_after = out.barriers.get(offset, out.nacks.get(offset))
            if sent_after is not None:  # it came again
                out.read_to(sent_after)
            if out.is_early(offset):
                out.add(offset, barrier)
                back.append(offset)
            elif offset in out.barriers:
                out.remove(offset)
            self._drop_empty(key, out)
        return back

    def confirmed(self, barrier: int) -> None:
        """Forget the messages given back before the barrier, because the broker has read it."""
        for key, out in list(self._keys.items()):
            out.read_to(barrier)
            for offset in [each for each, its in out.barriers.items() if its <= barrier]:
                out.remove(offset)
            self._drop_empty(key, out)

    def _drop_empty(self, key: Key, out: _Out) -> None:
        if not out.nacks and not out.offsets:
            del self._keys[key]
