"""Plans, changes and tasks as they are read back: one that cannot be read stops nobody else's."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Self, TypeVar

from pydanube_core.facts import StateItem

_log = logging.getLogger("pydanube.admin")

R = TypeVar("R")


class KeptRecord:
    """Mix-in of a frozen, slotted dataclass that is kept as JSON with a version."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        fields: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return json.dumps({"version": 1, **fields}, default=str).encode()

    @classmethod
    def from_item(cls, item: StateItem) -> Self:
        body = json.loads(item.value)
        body.pop("version")
        return cls(**body)


def readable(items: Iterable[StateItem], parse: Callable[[StateItem], R]) -> Iterator[tuple[StateItem, R]]:
    """Items with what they say; one that is damaged, or of another version, stays as it is and is passed over."""
    for item in items:
        try:
            record = parse(item)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            _log.warning("admin.record_unreadable", extra={"key": item.key, "error": str(error)})
        else:
            yield item, record
