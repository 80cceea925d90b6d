"""Numbers and names that a message or an enum has used, and must not use for something else ("Reserved Fields")."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Range = tuple[int, int]
#: place below the message or enum, rule, before, after
Broken = tuple[str, str, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Of one message or enum. `used`: number → (name, as a person writes it). `ranges` are half-open."""

    what: str  # field, enum_value
    used: Mapping[int, tuple[str, str]]
    ranges: Sequence[Range]
    names: frozenset[str]


def broken_reservations(old: Reserved, new: Reserved) -> Iterator[Broken]:
    """Return the reserved numbers and names that the new version uses, and those it no longer protects."""
    before, after = _Ranges(old.ranges), _Ranges(new.ranges)
    names = {name for name, _ in new.used.values()}
    for number, (name, shown) in new.used.items():
        if number in before:
            yield name, "reserved_number_used", f"reserved {number}", shown
        if name in old.names:
            yield name, "reserved_name_used", f"reserved {name!r}", shown
    for number, (name, shown) in old.used.items():
        if number not in new.used and number not in after:
            yield name, f"{old.what}_removed_not_reserved", shown, None
    used = sorted(new.used)
    for start, end in old.ranges:
        at = bisect_right(used, start - 1)
        if not after.covers(start, end) and not (at < len(used) and used[at] < end):
            yield "", "reservation_removed", _text(start, end), None
    for name in sorted(old.names - new.names - names):
        yield "", "reservation_removed", name, None


class _Ranges:
    """The union of ranges, which may be many: looked up by halving."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __contains__(self, number: int) -> bool:
        return self.covers(number, number + 1)

    def covers(self, start: int, end: int) -> bool:
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and end <= self._ends[at]


def _text(start: int, end: int) -> str:
    return f"reserved {start}" if end == start + 1 else f"reserved {start} to {end - 1}"
