"""Unknown names and refused values in errors: suggest similar names, shorten values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from pydanube_core.names import TopicName

# Comparing costs some 30 µs per name. Of more than these, only the likeliest are compared.
MOST_COMPARED: Final = 200
MOST_LETTERS: Final = 256  # no name is longer than that
# A comparison costs the square of its length if the same letter is repeated, so fewer long names are compared.
MOST_STEPS: Final = 320_000
PASSES: Final = 6
# Topics compared on either side of the name's place. Ten concurrent callers compare no more each than one did.
BESIDE: Final = 16


def close_names(given: str, known: Iterable[str], *, at_most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return names similar to `given`, best first. At most `MOST_COMPARED` are compared letter by letter."""
    if len(given) > MOST_LETTERS:
        return []
    names = list(known)
    most = min(MOST_COMPARED, max(5, MOST_STEPS // max(1, len(given) ** 2)))
    if len(names) > most:
        names = _likeliest(given, names, most)
    import difflib  # slow to load, and rarely needed

    return difflib.get_close_matches(given, names, n=at_most, cutoff=cutoff)


class TopicNames:
    """Full names of topics, `/namespace/topic`, sorted by their begins and by their ends.

    Similar names are neighbours, so that a comparison costs the same for ten topics and for ten thousand.
    """

    def __init__(self) -> None:
        self._begins: list[str] = []
        self._ends: list[str] = []  # each name from its last letter to its first

    def add(self, name: str) -> None:
        for order, key in ((self._begins, name), (self._ends, name[::-1])):
            at = bisect_left(order, key)
            if order[at : at + 1] != [key]:
                order.insert(at, key)

    def discard(self, name: str) -> None:
        for order, key in ((self._begins, name), (self._ends, name[::-1])):
            at = bisect_left(order, key)
            if order[at : at + 1] == [key]:
                del order[at]

    def close(self, given: TopicName, *, at_most: int = 3) -> list[str]:
        """Return topics similar to `given`, best first: its name in another namespace, or spelled alike in its own.

        The namespace itself is not compared, because all topics of one would be alike for it.
        """
        here, name, full = f"/{given.namespace}/", f"/{given.name}"[::-1], str(given)
        first = bisect_left(self._ends, name)
        elsewhere = [other[::-1] for other in self._ends[first : first + at_most] if other.startswith(name)]
        near = {*_beside(self._begins, full), *(other[::-1] for other in _beside(self._ends, full[::-1]))}
        beside = sorted(other.removeprefix(here) for other in near if other.startswith(here))
        alike = [here + other for other in close_names(given.name, beside)]
        return list(dict.fromkeys([*elsewhere, *alike]))[:at_most]


def _beside(order: Sequence[str], key: str) -> Sequence[str]:
    at = bisect_left(order, key)
    return order[max(0, at - BESIDE) : at + BESIDE]


def _likeliest(given: str, names: Sequence[str], most: int) -> list[str]:
    """Return the names that share the longest begin or end with the given one. O(names)."""
    longest = max(3, len(given) // 4)
    names = [name for name in names if abs(len(name) - len(given)) <= longest]
    found: dict[str, None] = {}
    for length in range(len(given) - 1, 0, -max(1, len(given) // PASSES)):
        head, tail = given[:length], given[-length:]
        found |= dict.fromkeys(name for name in names if name.startswith(head) or name.endswith(tail))
        if len(found) >= most:
            break
    return list(islice(found, most))


MAX_SHOWN_CHARS: Final = 200  # of a refused value: enough to recognise it, too little to flood a model


def shown(value: Any) -> Any:
    """Return a refused value for an error: short, and encodable."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else "an integer beyond 64 bits"
    if isinstance(value, str):
        text = value
    else:
        import json

        text = json.dumps(value, default=str)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def either(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)
