"""Plans, changes and tasks as they are read back: one that cannot be read stops nobody else's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pydanube_core.facts import StateItem

_log = logging.getLogger("pydanube.admin")

R = TypeVar("R")


def readable(items: Iterable[StateItem], parse: Callable[[StateItem], R]) -> Iterator[tuple[StateItem, R]]:
    """Items with what they say; one that is damaged, or of another version, stays as it is and is passed over."""
    for item in items:
        try:
            record = parse(item)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            _log.warning("admin.record_unreadable", extra={"key": item.key, "error": str(error)})
        else:
            yield item, record
