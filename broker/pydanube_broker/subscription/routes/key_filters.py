"""Key filters: globs that a consumer's keys must match.

Filters and keys come from different untrusted clients, so matching must be cheap for the worst pair. A filter becomes
an expression that never backtracks: the text between two stars matches at its first place and stays there (an atomic
group). A later place would leave less of the key for the rest of the filter, so it could not match more. The cost is at
most the filter's length times the key's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument

MAX_KEY_FILTERS: Final = 100
MAX_FILTER_CHARS: Final = 256


def check_key_filters(type: str, filters: Sequence[str]) -> None:
    """Refuse filters for a type that does not route by keys, and filters that are too expensive to match.

    Raises:
        InvalidArgument: there are filters and the type is not key-shared, there are too many, or one is empty
            or too long.
    """
    if filters and type != "key-shared":
        raise InvalidArgument(
            f"key_filters: a subscription of type {type} has none. Subscribe as key-shared",
            field="key_filters",
            value=list(filters)[:MAX_KEY_FILTERS],
        )
    check_filter_sizes(filters)


def check_filter_sizes(filters: Sequence[str]) -> None:
    """Check filters as `check_key_filters` does, for any type."""
    if len(filters) > MAX_KEY_FILTERS:
        raise InvalidArgument(
            f"{len(filters)} key filters, at most {MAX_KEY_FILTERS} are taken",
            field="key_filters",
            value=len(filters),
        )
    for text in filters:
        if not 1 <= len(text) <= MAX_FILTER_CHARS:
            raise InvalidArgument(
                f"a key filter of {len(text)} characters: use 1 to {MAX_FILTER_CHARS}",
                field="key_filters",
                value=text[:32],
            )


def key_pattern(filters: Sequence[str]) -> re.Pattern[str]:
    """Return one expression for key filters: globs with `*` and `?`, all other characters literal."""
    return re.compile("|".join(f"(?:{_translated(glob)})" for glob in filters), re.DOTALL)


def _translated(glob: str) -> str:
    first, *others = re.split(r"\*+", glob)
    if not others:
        return _fixed(first)
    *middle, last = others
    found = "".join(f"(?>.*?{_fixed(part)})" for part in middle)
    return f"{_fixed(first)}{found}{_ending(last)}"


def _ending(last: str) -> str:
    """Return the pattern for the end of a key. It is greedy, and tried at most once for each character."""
    return f".*{_fixed(last)}" if last else ".*"


def _fixed(part: str) -> str:
    return "".join("." if character == "?" else re.escape(character) for character in part)
