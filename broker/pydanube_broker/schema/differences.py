"""A difference that prevents one schema from reading another's data, with its place and the rule it breaks.

Rules use the terms reader and writer, users before and after. With backward compatibility, the new schema reads data
of the old one. With forward compatibility, the old schema reads data of the new one. `Findings` converts between the
terms, so that one set of rules serves both directions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydanube_broker.schema.vocabulary import CompatibilityMode

MAX_SHOWN_CHARS: Final = 400
MAX_DIFFERENCES: Final = 200  # per comparison. A longer list helps no user


class Direction(StrEnum):
    BACKWARD = "backward"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`before` and `after` are the JSON values of the old and the new schema at `path`, None if absent."""

    path: str
    rule: str
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "rule": self.rule, "before": self.before, "after": self.after}

    def sentence(self) -> str:
        """Describe the difference in one line."""
        place = self.path or "the schema"
        return f"{place}: {self.rule} (before: {_text(self.before)}, after: {_text(self.after)})"


@dataclass(slots=True)
class Findings:
    """Collects the differences that prevent a reader from reading a writer's data."""

    direction: Direction
    found: list[Difference] = field(default_factory=list)

    def add(self, path: str, rule: str, *, writer: Any, reader: Any) -> None:
        if len(self.found) >= MAX_DIFFERENCES:
            return
        old, new = (writer, reader) if self.direction is Direction.BACKWARD else (reader, writer)
        self.found.append(Difference(path=path, rule=rule, before=_shown(old), after=_shown(new)))

    @property
    def ok(self) -> bool:
        return not self.found

    def trial(self) -> Findings:
        """Return an empty collection with the same direction, for an attempt whose findings may be dropped."""
        return Findings(self.direction)


def directions(mode: CompatibilityMode) -> tuple[Direction, ...]:
    match mode:
        case CompatibilityMode.NONE:
            return ()
        case CompatibilityMode.BACKWARD:
            return (Direction.BACKWARD,)
        case CompatibilityMode.FORWARD:
            return (Direction.FORWARD,)
        case CompatibilityMode.FULL:
            return (Direction.BACKWARD, Direction.FORWARD)


def merged(groups: Iterable[Iterable[Difference]]) -> tuple[Difference, ...]:
    """Return each difference once, in the order found."""
    seen: dict[str, Difference] = {}
    for group in groups:
        for difference in group:
            seen.setdefault(json.dumps(difference.to_dict(), sort_keys=True, default=str), difference)
    return tuple(seen.values())[:MAX_DIFFERENCES]


def _shown(value: Any) -> Any:
    text = _text(value)
    return value if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _text(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
