"""What a name that does not exist may have been meant as."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from pydanube_core.names import TopicName

# Likeness costs some 30 µs a name; of more than these only the likeliest are looked at.
MOST_COMPARED: Final = 200
MOST_LETTERS: Final = 256  # no name is longer than that
# The cost of one goes with the square of its length where the same letter is repeated: of long names fewer are compared.
MOST_STEPS: Final = 320_000
PASSES: Final = 6


def close_names(given: str, known: Iterable[str], *, at_most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Names that `given` may have been meant as, best first. At most `MOST_COMPARED` are compared letter by letter."""
    if len(given) > MOST_LETTERS:
        return []
    names = list(known)
    most = min(MOST_COMPARED, max(5, MOST_STEPS // max(1, len(given) ** 2)))
    if len(names) > most:
        names = _likeliest(given, names, most)
    return difflib.get_close_matches(given, names, n=at_most, cutoff=cutoff)


def close_topics(given: TopicName, known: Iterable[str], *, at_most: int = 3) -> list[str]:
    """Topics that `given` may have been meant as, best first: spelled alike in its namespace, or of its name in another.

    The namespace itself is not compared: all topics of one would be alike for it.

    Args:
        known: full names, `/namespace/topic`. They are not parsed: of ten thousand that alone would be a stall.
    """
    known = dict.fromkeys(known)
    here, name = f"/{given.namespace}/", f"/{given.name}"
    beside = [one.removeprefix(here) for one in known if one.startswith(here)]
    elsewhere = sorted(one for one in known if one.endswith(name))
    return [*elsewhere, *(here + other for other in close_names(given.name, beside))][:at_most]


def _likeliest(given: str, names: Sequence[str], most: int) -> list[str]:
    """The names that have most of their begin or their end in common with what was given. O(names)."""
    longest = max(3, len(given) // 4)
    names = [name for name in names if abs(len(name) - len(given)) <= longest]
    found: dict[str, None] = {}
    for length in range(len(given) - 1, 0, -max(1, len(given) // PASSES)):
        head, tail = given[:length], given[-length:]
        found |= dict.fromkeys(name for name in names if name.startswith(head) or name.endswith(tail))
        if len(found) >= most:
            break
    return list(islice(found, most))
