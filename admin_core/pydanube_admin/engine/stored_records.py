"""Ids of plans, changes and tasks.

An id is a letter, the time and a random part. Ids sort by time. An unreadable record is skipped and does not
keep others from being read.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from pydanube_core.facts import StateItem

CALL = "c"
PLAN = "p"
MAX_CHARS: Final = 64


def new_id(kind: str, now_ms: int) -> str:
    """Return an id such as `c019a2b3c4d5e8f0a1b2c3d4e`, unique without coordination."""
    return f"{kind}{now_ms:012x}{secrets.token_hex(6)}"


def time_of(made: str) -> int:
    """Return the time of an id in milliseconds since 1970."""
    return int(made[1:13], 16)


def is_id(text: str) -> bool:
    """Return whether a text from outside is a well-formed id."""
    return len(text) <= MAX_CHARS and text.isascii() and text.isalnum()


_log = logging.getLogger("pydanube.admin")

R = TypeVar("R")


def readable(items: Iterable[StateItem], parse: Callable[[bytes], R]) -> Iterator[tuple[StateItem, R]]:
    """Parse items. A damaged one, or one of another version, is skipped and not changed."""
    for item in items:
        try:
            record = parse(item.value)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            _log.warning("admin.record_unreadable", extra={"key": item.key, "error": str(error)})
        else:
            yield item, record
