"""Positions in a topic, one string form on every face: `earliest`, `latest`, `offset:42`, `time:…`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydanube_core.errors import InvalidArgument
from pydanube_core.units import format_time, parse_duration_s, parse_time_ms

_FORMS = "write earliest, latest, offset:42, time:2026-01-31T12:00:00Z or time:-15m"


class PositionKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a topic. `value` is an offset, or milliseconds since 1970 by the broker's clock."""

    kind: PositionKind
    value: int = 0

    @classmethod
    def parse(cls, text: str, *, now_ms: int, field: str = "position") -> Position:
        """Parse a position. `time:-15m` is taken from `now_ms`.

        Raises `InvalidArgument` with the field, the value and the existing forms.
        """
        if not isinstance(text, str):
            raise InvalidArgument(
                f"{field} is text, got {repr(text)[:100]}; {_FORMS}", field=field, value=repr(text)[:100]
            )
        kind, _, rest = text.partition(":")
        match kind:
            case "earliest" | "latest" if not rest and ":" not in text:
                return cls(PositionKind(kind))
            case "offset" if rest.isascii() and rest.isdigit() and len(rest) <= 19:
                return cls(PositionKind.OFFSET, int(rest))
            case "time" if rest.startswith("-"):
                ago_ms = round(parse_duration_s(rest[1:], field=field) * 1000)
                return cls(PositionKind.TIME, max(0, now_ms - ago_ms))
            case "time" if rest:
                return cls(PositionKind.TIME, parse_time_ms(rest, field=field))
        raise InvalidArgument(f"{field}: {text!r} is not a position; {_FORMS}", field=field, value=text)

    def __str__(self) -> str:
        match self.kind:
            case PositionKind.OFFSET:
                return f"offset:{self.value}"
            case PositionKind.TIME:
                return f"time:{format_time(self.value)}"
        return self.kind.value
