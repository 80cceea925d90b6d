"""Cut a result to the size that a model can take, with the call that returns the rest.

A list of operations is read again with fewer items, so that its own `next_page` continues. Any other long
answer, and a page of one long item, is cut into parts: each has the next items of its lists and maps, the next
pieces of its long texts, and the small fields of cut objects. Only the last part has the `next_page` of a list.
`rest` holds the number of parts and the call for the next one. Each call
computes the parts from a new answer, so nothing is kept here, and a part shows the state at the time of its
call.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

MAX_RESULT_BYTES: Final = 8_000  # of the JSON of a result
# Of a read, 1 500 tokens: a model reads it again with each turn, and a caller that needs more has `next_page` or `rest`
READ_BYTES: Final = 6_000
PART: Final = "part"  # an argument of every read
REST: Final = "rest"
_RESERVE_BYTES: Final = 600  # for `rest`
_WHOLE_BYTES: Final = 2_500  # up to this size an item is not cut
_STICKY_BYTES: Final = 160  # fields of a cut object are in each part if they are this small
_STICKY_SUM: Final = 2_000

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of an answer that is too long, or all of a short one."""

    body: dict[str, Any]
    number: int
    of: int


def size_of(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def fewer(items: Sequence[Any], whole: int, limit: int) -> int | None:
    """Return how many items of a page fit into an answer, or None if all do, or not even the first.

    A first item that is too long for a page alone becomes a page of one, in parts, if it fits a result.

    Args:
        items: of the page that was too long.
        whole: bytes of the whole answer.
        limit: the requested number of items.
    """
    sizes = [size_of(item) + 1 for item in items]
    around = whole - sum(sizes) + _RESERVE_BYTES
    count = sum(around + up_to <= READ_BYTES for up_to in accumulate(sizes))
    if count == 0 and sizes and around + sizes[0] <= MAX_RESULT_BYTES:
        count = 1
    return count if 0 < count < limit else None


def in_parts(body: Mapping[str, Any], number: int, most: int = READ_BYTES) -> Part:
    """Return part `number` (from 1) of a body, at most the last one. A body of at most `most` bytes has one part."""
    if size_of(body) <= most:
        return Part(body=dict(body), number=1, of=1)
    parts: list[_Building] = [_Building(body, most)]
    for path, value in _units(body, ()):
        if not parts[-1].take(path, value):
            parts.append(_Building(body, most))
            parts[-1].take(path, value, anyway=True)
    number = min(number, len(parts))
    return Part(body=parts[number - 1].body, number=number, of=len(parts))


def _units(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Return the pieces that a part takes whole or not at all, in order."""
    if path and size_of(value) <= _WHOLE_BYTES:
        yield path, value
    elif isinstance(value, dict):
        sticky = _sticky(value)
        for key, inner in value.items():
            if key not in sticky or not _same(sticky[key], inner):
                yield from _units(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _units(inner, (*path, index))
    else:
        text = str(value)
        step = _WHOLE_BYTES // 4  # a character has at most 4 bytes, or a few more if escaped
        for begin in range(0, len(text), step):
            yield path, text[begin : begin + step]


def _sticky(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the beginning of a cut object in each part: its small fields, the others empty."""
    kept = {key: one if size_of(one) <= _STICKY_BYTES else _empty(one) for key, one in value.items()}
    return kept if size_of(kept) <= _STICKY_SUM else {}


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


class _Building:
    """A part of an answer while it is being filled."""

    def __init__(self, whole: Mapping[str, Any], most: int) -> None:
        self._whole = whole
        self.body = _sticky(whole)
        self._room = most - _RESERVE_BYTES - size_of(self.body)
        self._places: dict[Path, int] = {}  # of the items of lists, which count from 0 in each part

    def take(self, path: Path, value: Any, *, anyway: bool = False) -> bool:
        """Add a piece, if there is room for it and the objects around it."""
        new = [path[:depth] for depth in range(1, len(path)) if path[:depth] not in self._places]
        cost = size_of(value) + len(str(path[-1])) + 4
        cost += sum(size_of(self._begun(prefix)) + len(str(prefix[-1])) + 4 for prefix in new)
        if cost > self._room and not anyway:
            return False
        self._room -= cost
        at: Any = self.body
        source: Any = self._whole
        for depth, key in enumerate(path, start=1):
            source = source[key]
            last = depth == len(path)
            prefix = path[:depth]
            if isinstance(at, list):
                if prefix not in self._places:
                    self._places[prefix] = len(at)
                    at.append(value if last else self._begun(prefix))
                elif last:
                    at[self._places[prefix]] += value
                at = at[self._places[prefix]]
            elif last:
                known = prefix in self._places
                at[key] = at[key] + value if known and isinstance(value, str) else value
                self._places[prefix] = 0
            else:
                if prefix not in self._places:
                    self._places[prefix] = 0
                    at[key] = self._begun(prefix)
                at = at[key]
        return True

    def _begun(self, path: Path) -> Any:
        value: Any = self._whole
        for key in path:
            value = value[key]
        return _sticky(value) if isinstance(value, dict) else _empty(value)


def _empty(value: Any) -> Any:
    return "" if isinstance(value, str) else {} if isinstance(value, dict) else []
